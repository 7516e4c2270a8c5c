"""An experiment, its plan and where it was submitted from, as small as they can be."""

from __future__ import annotations

import pytest

from pipeline.tracking.provenance import GitState, Provenance
from pipeline.types import (
    Cluster,
    DataSpec,
    DType,
    Experiment,
    HardwareProfile,
    LauncherKind,
    Layout,
    ModelSpec,
    OptimizerSpec,
    Plan,
    Precision,
    Recipe,
    Tracking,
)


@pytest.fixture
def experiment() -> Experiment:
    return Experiment(
        name="demo",
        hardware=HardwareProfile(name="node-cpu"),
        cluster=Cluster(name="desk", launcher=LauncherKind.local),
        model=ModelSpec(
            name="tiny",
            num_layers=2,
            hidden_size=64,
            ffn_hidden_size=128,
            num_attention_heads=4,
            num_query_groups=2,
            vocab_size=256,
            max_sequence_length=64,
        ),
        precision=Precision(name="single", dtype=DType.fp32),
        optimizer=OptimizerSpec(name="adamw", lr=1e-3, min_lr=1e-4, warmup_steps=2),
        recipe=Recipe(name="smoke", steps=20, sequence_length=64, micro_batch=2, global_batch=4),
        data=DataSpec(name="stdlib"),
        tracking=Tracking(name="local"),
    )


@pytest.fixture
def plan() -> Plan:
    return Plan(
        experiment="demo",
        layout=Layout(
            nodes=1,
            ranks_per_node=2,
            tp=1,
            pp=1,
            cp=1,
            dp=2,
            sequence_parallel=False,
            micro_batch=2,
            global_batch=4,
            num_microbatches=1,
        ),
        gpus_per_node=0,
        cpus_per_rank=None,
        parameters=123_456,
        padded_vocab_size=256,
        tokens_per_step=256,
        total_tokens=5120,
        reasons=(),
    )


@pytest.fixture
def provenance() -> Provenance:
    return Provenance(
        time=1.0,
        code=GitState(commit="c0ffee", branch="main", dirty=True, remote="https://example.org/r.git"),
        workdir=None,
        versions={"python": "3.11.9", "himori": "0.1.0", "torch": None, "megatron-core": "0.16.1"},
        boot_id="of-the-login-node",
        platform="Linux",
        kernel="Linux 6",
    )
