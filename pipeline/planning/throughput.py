"""How fast a job runs, with an honest interval, and what that costs."""

from __future__ import annotations

import math

from pipeline.model_math import flops_per_token
from pipeline.planning.calibration import DEFAULT_STACK, UNCALIBRATED, Calibration, Correction
from pipeline.planning.job import Job
from pipeline.planning.steptime import SpeedModel, step_time
from pipeline.types import Cost, Interval, NodeSpec, StepTime, ThroughputEstimate

SPEED = SpeedModel()


def estimate_throughput(
    job: Job,
    *,
    calibration: Calibration = UNCALIBRATED,
    stack: str = DEFAULT_STACK,
    speed: SpeedModel = SPEED,
) -> ThroughputEstimate:
    """Step time and rates at P10, P50 and P90.

    The model's step time is multiplied by the correction of the narrowest measured group; the interval is the spread
    of runs around predictions that had to stop at that level. P10 of the rate belongs to P90 of the time.
    """
    modelled = step_time(job, speed, job.layout.ranks_per_node)
    correction = calibration.correct(job, stack)
    step = _scaled(modelled, math.exp(correction.log_factor))
    low, high = _offsets(job, correction)
    tokens = job.layout.global_batch * job.sequence_length
    seconds = Interval(p10=step.total_s * math.exp(low), p50=step.total_s, p90=step.total_s * math.exp(high))
    rate = Interval(p10=tokens / seconds.p90, p50=tokens / seconds.p50, p90=tokens / seconds.p10)
    each = Interval(**{name: getattr(rate, name) / job.layout.ranks for name in ("p10", "p50", "p90")})
    return ThroughputEstimate(
        step=step,
        step_s=seconds,
        tokens_per_s=rate,
        tokens_per_s_per_gpu=each,
        model_tflops_per_gpu=flops_per_token(job.model, job.sequence_length, tp=job.layout.tp) * each.p50 / 1e12,
        calibration=calibration.version,
        level=f"{correction.level}, weight {correction.count:.3g}",
    )


def _offsets(job: Job, correction: Correction) -> tuple[float, float]:
    """The interval, wider where the data don't reach: many nodes, unknown network."""
    wider = 0.10 if job.layout.nodes > 8 and correction.count == 0 else 0.0
    if job.layout.nodes > 1 and not (job.node.nics_per_node and job.node.nic_gbit_per_s):
        wider += 0.10
    return correction.low - wider, correction.high + wider


def _scaled(step: StepTime, factor: float) -> StepTime:
    return StepTime(**{name: factor * getattr(step, name) for name in StepTime.__slots__})


# --------------------------------------------------------------------------- cost


def estimate_cost(job: Job, estimate: ThroughputEstimate, *, steps: int, price: tuple[float, str, str] | None) -> Cost:
    """Time, GPU-hours, energy and money of `steps` steps; `price` is (an hour of a GPU, currency, basis)."""
    hours = Interval(**{name: getattr(estimate.step_s, name) * steps / 3600 for name in ("p10", "p50", "p90")})
    gpu_hours = hours.p50 * job.layout.ranks
    watts, basis = _watts(job)
    return Cost(
        hours=hours,
        gpu_hours=gpu_hours,
        energy_kwh=watts * gpu_hours / 1000 if watts is not None else None,
        energy_basis=basis,
        money=price[0] * gpu_hours if price else None,
        currency=price[1] if price else "",
        money_basis=price[2] if price else "no price in the profile; give cluster.price_per_gpu_hour",
    )


def _watts(job: Job) -> tuple[float | None, str]:
    """Watts for each GPU, its share of the node included, and what that is."""
    board, overhead = job.gpu.power_watts, job.node.overhead_watts
    if board is None:
        return None, "the profile doesn't say how much power a GPU takes"
    if overhead is None:
        return board, f"GPU boards at their limit of {board:.0f} W; node overhead unknown, not counted"
    share = overhead / job.layout.ranks_per_node
    return (
        board + share,
        f"GPU boards at their limit of {board:.0f} W and {share:.0f} W of the node each, an upper bound",
    )


def profile_price(node: NodeSpec, override: tuple[float, str, str] | None) -> tuple[float, str, str] | None:
    """The site's price, else the profile's."""
    if override or node.price_per_gpu_hour is None:
        return override
    return node.price_per_gpu_hour, node.price_currency, node.price_basis or "basis not stated"
