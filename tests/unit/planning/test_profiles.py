"""Every shipped hardware profile composes, and every number in it says where it comes from."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.conf_groups import options
from pipeline.config import load
from pipeline.types import Evidence, GpuSpec, HardwareProfile, NodeSpec

GPU_PROFILES = [name for name in options("hardware") if name != "laptop"]
NOT_NUMBERS = {"name", "sources", "fabric", "cpu", "price_currency", "price_basis", "excluded_nics"}


def profile(name: str) -> HardwareProfile:
    return load([f"hardware={name}"]).experiment.hardware


def numbers(spec: GpuSpec | NodeSpec) -> set[str]:
    """Fields that hold a number, an id or a list of numbers."""
    held = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    return {name for name, value in held.items() if name not in NOT_NUMBERS and value not in (None, [], {})}


@pytest.mark.parametrize("name", GPU_PROFILES)
def test_every_number_has_evidence(name: str) -> None:
    found = profile(name)
    assert found.gpu_spec is not None
    for spec in (found.gpu_spec, found.node_spec):
        assert numbers(spec) == set(spec.sources)
        assert all(isinstance(evidence, Evidence) and evidence.source for evidence in spec.sources.values())


@pytest.mark.parametrize("name", GPU_PROFILES)
def test_numbers_are_plausible(name: str) -> None:
    spec = profile(name).gpu_spec
    assert spec is not None
    assert spec.memory_gib is not None
    assert spec.hbm_tb_per_s is not None
    assert 39 < spec.memory_gib < 300
    if spec.memory_mib_nvidia_smi is not None:
        assert spec.memory_gib < spec.memory_mib_nvidia_smi / 1024
    assert 1 < spec.hbm_tb_per_s < 10
    assert spec.peak_tflops["bf16"] == min(spec.peak_tflops.values())


def test_a_price_names_its_basis() -> None:
    for name in GPU_PROFILES:
        node = profile(name).node_spec
        assert (node.price_per_gpu_hour is None) == (node.price_basis is None)


def test_all_systems_of_the_sources_are_there() -> None:
    expected = "laptop sakura_phy_h100 sakura_phy_h200 sakura_phy_b200 sakuraone_h100 tsubame4_h100 aws_p5 aws_p5en"
    expected += " aws_p6_b200 aws_p6_b300 dgx_a100 dgx_h100 dgx_h200 dgx_b200 dgx_b300 gb200_nvl72 gb300_nvl72"
    assert set(expected.split()) == set(options("hardware"))


def test_unknown_stays_unknown() -> None:
    assert profile("sakuraone_h100").node_spec.nic_gbit_per_s is None
    assert profile("sakura_phy_b200").node_spec.nics_per_node == []
    assert profile("sakura_phy_b200").node_spec.numa_nodes == [3, 6]
