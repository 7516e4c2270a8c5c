"""What is known of one run, ours or a published one, in the form that comparing, explaining and reporting read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from pipeline.types import Experiment, GpuSpec, ModelSpec, Plan

Value: TypeAlias = str | int | float | bool
"""Value of a variable or of a configuration key; what nobody recorded is absent."""


class Origin(Enum):
    """Where the facts come from."""

    run = "run"
    published = "published"


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One metric over the steps of a run."""

    steps: tuple[int, ...]
    values: tuple[float, ...]
    times: tuple[float, ...]
    """Seconds since the epoch, one a point."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """What a GPU costs an hour; only prices of one currency and basis compare."""

    per_gpu_hour: float
    currency: str
    basis: str
    """On demand, reserved, capacity block, and the date."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFacts:
    """How the ranks of one node were bound."""

    node: str
    flags: tuple[str, ...]
    red: tuple[int, ...]
    """Ranks that were not where they had been put."""
    warnings: tuple[str, ...] = ()
    ranks: tuple[RankPlace, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    """Where one rank was put."""

    rank: int
    gpu: str
    home: str
    cpus: str
    memory: str
    nics: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuTrace:
    """One GPU over time, as it was sampled."""

    gpu: str
    times: tuple[float, ...]
    """Seconds since the epoch."""
    power_watts: tuple[float | None, ...]
    temperature_c: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """A time for which a GPU's clocks were held down."""

    gpu: str
    cause: str
    begin: float
    end: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A loss that was reached."""

    loss: float
    steps: float | None = None
    """Optimizer steps until then."""
    tokens: float | None = None
    """Tokens consumed until then."""
    seconds: float | None = None
    """Training time until then, waiting and evaluation not counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """One run as facts; None and absent keys are what was not recorded, which is never taken for a match."""

    name: str
    origin: Origin
    source: str
    """The run directory, or the citation."""
    state: str = "FINISHED"
    factors: Mapping[str, Value] = field(default_factory=dict)
    """Values of the variables of `pipeline.analysis.roles`, by key."""
    config: Mapping[str, Value] = field(default_factory=dict)
    """Every leaf of the resolved configuration by dotted key; empty for published rows."""
    gpu: GpuSpec | None = None
    model: ModelSpec | None = None
    experiment: Experiment | None = None
    plan: Plan | None = None
    gpus: int = 1
    """GPUs (ranks, where there is no GPU) of the whole run."""
    seed: int | None = None
    sweep: tuple[str, ...] = ()
    """Id and name of the sweep it is a point of; empty for a run of its own."""
    started: float | None = None
    """Seconds since the epoch."""
    tokens_per_step: int | None = None
    flops_per_token: float | None = None
    """Canonical count (Megatron-LM's)."""
    tokens_per_s_per_gpu: float | None = None
    """Of the median steady step."""
    step_s: float | None = None
    """Median steady step."""
    steady_step_s: tuple[float, ...] = ()
    """Steady steps one by one; empty for published rows."""
    startup_s: float | None = None
    """From the first word of the job to the end of the first step."""
    peak_memory_gib: float | None = None
    memory_capacity_gib: float | None = None
    price: Price | None = None
    energy_j_per_token: float | None = None
    energy_boundary: str = ""
    """GPU board, node or facility."""
    targets: tuple[Target, ...] = ()
    curves: Mapping[str, Curve] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    bindings: tuple[NodeFacts, ...] = ()
    throttled: str = ""
    """Why the GPUs were slowed down during steady steps; empty where they were not, or nobody looked."""
    telemetry: bool = False
    """Whether clocks and throttling were watched."""
    traces: tuple[GpuTrace, ...] = ()
    bands: tuple[Band, ...] = ()
    notes: str = ""

    @property
    def model_tflops_per_gpu(self) -> float | None:
        """Model FLOP/s by the canonical count, TFLOP/s."""
        if self.tokens_per_s_per_gpu is None or self.flops_per_token is None:
            return None
        return self.tokens_per_s_per_gpu * self.flops_per_token / 1e12

    @property
    def cost_per_token(self) -> float | None:
        """Currency units a token at the steady rate."""
        if self.price is None or not self.tokens_per_s_per_gpu:
            return None
        return self.price.per_gpu_hour / 3600 / self.tokens_per_s_per_gpu


def digest(values: object) -> str:
    """Twelve hexadecimal digits that stand for plain data."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def recipe_hash(run: RunFacts, blocks: Sequence[str]) -> str:
    """Identifies what must match between runs that are compared; the seed is not in it."""
    return digest({key: run.factors.get(key) for key in blocks})
