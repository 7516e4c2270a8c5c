"""What samples add up to, and when clocks were held down."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.tracking.telemetry.intervals import REASONS, throttle_intervals
from pipeline.tracking.telemetry.readings import GpuReading, HostReading, Sample, from_data, metrics, to_data
from pipeline.tracking.telemetry.totals import NodeTotals, combine, throttle_text

HOST = HostReading(
    cpu_percent=50.0, load_1min=1.0, memory_used_gib=2.0, memory_available_gib=6.0, disk_free_gib=9.0, rdma_errors=3
)
THERMAL, POWER = 0x40, 0x04


def sample(time: float, *gpus: GpuReading, host: HostReading = HOST) -> Sample:
    return Sample(time=time, elapsed_s=time - 100.0, host=host, gpus=gpus)


def gpu(name: str = "0000:01:00.0", **values: object) -> GpuReading:
    return GpuReading(bus_id=name, **values)  # type: ignore[arg-type]


def total(samples: Sequence[Sample]) -> NodeTotals:
    totals = NodeTotals()
    for one in samples:
        totals.absorb(one)
    return totals


def test_a_sample_survives_the_journal() -> None:
    one = sample(101.25, gpu(power_w=650.5, throttle_reasons=THERMAL, xid=(79,), ecc_uncorrected=0), gpu("b"))
    assert from_data(one.time, to_data(one, as_curves=True)) == one
    assert "values" not in to_data(one, as_curves=False)


def test_curves_show_the_extreme_that_matters() -> None:
    shown = metrics(
        sample(
            100.0,
            gpu(power_w=600.0, temperature_c=60.0, sm_clock_mhz=1980.0),
            gpu("b", power_w=700.0, temperature_c=85.0, sm_clock_mhz=1200.0),
        )
    )
    assert shown["gpu/power_mean_w"] == 650.0
    assert shown["gpu/temperature_max_c"] == 85.0
    assert shown["gpu/sm_clock_min_mhz"] == 1200.0
    assert "gpu/memory_temperature_max_c" not in shown


def test_a_node_without_gpus_has_no_gpu_curves_and_no_energy() -> None:
    assert all(name.startswith("host/") for name in metrics(sample(100.0)))
    found = total([sample(100.0), sample(105.0)]).summary()
    assert found is not None
    assert (found.energy_j, dict(found.throttled), found.seconds) == (None, {}, 5.0)


def test_one_sample_says_nothing() -> None:
    assert total([]).summary() is None
    assert total([sample(100.0)]).summary() is None


def test_energy_is_the_counters_growth_else_power_over_time() -> None:
    powered = [sample(100.0 + t, gpu(power_w=p)) for t, p in ((0, 100.0), (10, 300.0), (20, 300.0))]
    found = total(powered).summary()
    assert found is not None
    assert found.energy_j == pytest.approx(200 * 10 + 300 * 10)
    assert found.power_mean_w == pytest.approx(250.0)
    counted = [sample(100.0 + t, gpu(power_w=1.0, energy_j=e)) for t, e in ((0, 5000.0), (20, 9000.0))]
    found = total(counted).summary()
    assert found is not None
    assert found.energy_j == 4000.0


def test_the_worst_gpu_tells_how_much_was_throttled() -> None:
    samples = [
        sample(100.0, gpu(throttle_reasons=POWER), gpu("b", throttle_reasons=0)),
        sample(110.0, gpu(throttle_reasons=POWER | THERMAL), gpu("b", throttle_reasons=0)),
        sample(120.0, gpu(throttle_reasons=POWER), gpu("b", throttle_reasons=POWER)),
        sample(140.0, gpu(throttle_reasons=POWER), gpu("b", throttle_reasons=0)),
    ]
    found = total(samples).summary()
    assert found is not None
    assert found.throttled == {"power": 1.0, "thermal": 0.25}
    assert throttle_text(found.throttled) == "power 100.0 %, thermal 25.0 %"
    held = [(one.bus_id, one.cause, one.start, one.end) for one in throttle_intervals(samples)]
    assert held == [
        ("0000:01:00.0", "power", 100.0, 140.0),
        ("0000:01:00.0", "thermal", 110.0, 120.0),
        ("b", "power", 120.0, 140.0),
    ]


def test_the_drivers_own_count_stands_before_what_samples_happened_to_see() -> None:
    samples = [
        sample(100.0, gpu(throttle_reasons=0, thermal_violation_s=7.0)),
        sample(200.0, gpu(throttle_reasons=0, thermal_violation_s=10.2)),
    ]
    found = total(samples).summary()
    assert found is not None
    assert found.throttled == {"thermal": pytest.approx(0.032)}


def test_faults_are_new_ones() -> None:
    worn = HostReading(
        cpu_percent=1, load_1min=1, memory_used_gib=1, memory_available_gib=1, disk_free_gib=1, rdma_errors=5
    )
    found = total(
        [sample(100.0, gpu(ecc_uncorrected=2)), sample(101.0, gpu(ecc_uncorrected=3, xid=(63,)), host=worn)]
    ).summary()
    assert found is not None
    assert (found.ecc_uncorrected, found.xid, found.rdma_errors) == (1, (63,), 2)


def test_a_gpu_that_falls_off_the_bus_leaves_the_rest_standing() -> None:
    samples = [
        sample(100.0, gpu(power_w=100.0, throttle_reasons=POWER), gpu("b", power_w=100.0)),
        sample(110.0, gpu("b", power_w=100.0)),
    ]
    found = total(samples).summary()
    assert found is not None
    assert found.energy_j == pytest.approx(1000.0)
    assert throttle_intervals(samples)


def test_nodes_add_up_and_the_worst_counts() -> None:
    first = total([sample(100.0, gpu(power_w=100.0, throttle_reasons=0)), sample(110.0, gpu(power_w=100.0))]).summary()
    second = total(
        [sample(100.0, gpu(power_w=300.0, throttle_reasons=THERMAL)), sample(110.0, gpu(power_w=300.0))]
    ).summary()
    assert first is not None
    assert second is not None
    both = combine([first, second])
    assert both is not None
    assert (both.energy_j, both.power_mean_w, both.throttled) == (4000.0, 200.0, {"thermal": 1.0})
    assert combine([]) is None


@given(
    st.lists(
        st.tuples(st.floats(0.1, 60.0), st.integers(0, 0xFF), st.none() | st.floats(0.0, 1200.0)),
        min_size=2,
        max_size=30,
    )
)
def test_shares_lie_between_none_and_all_and_intervals_within_the_run(
    steps: list[tuple[float, int, float | None]],
) -> None:
    time, samples = 100.0, []
    for seconds, reasons, power in steps:
        time += seconds
        samples.append(sample(time, gpu(throttle_reasons=reasons, power_w=power)))
    found = total(samples).summary()
    assert found is not None
    assert all(0 < share <= 1 + 1e-9 for share in found.throttled.values())
    assert set(found.throttled) <= set(REASONS)
    held = throttle_intervals(samples)
    assert all(samples[0].time <= one.start < one.end <= samples[-1].time for one in held)
    for cause, share in found.throttled.items():
        assert sum(one.end - one.start for one in held if one.cause == cause) == pytest.approx(share * found.seconds)
