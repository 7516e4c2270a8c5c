"""Why two runs are different: their configurations key by key, what ran them, and where (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipeline.analysis.causes import Cause, causes
from pipeline.analysis.convergence import LOSS
from pipeline.analysis.facts import RunFacts, Value

NOT_SET = "not set"
_PLACES = ("run_root", "tracking.", "cluster.setup", "cluster.python")
"""Where files go is no difference of the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One thing in which two runs differ."""

    what: str
    a: str
    b: str
    origin_a: str = ""
    """Who set the value: the option of a config group, or an override."""
    origin_b: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """All of it."""

    config: tuple[Change, ...]
    circumstances: tuple[Change, ...]
    """Code, versions, nodes, binding."""
    results: tuple[Change, ...]
    causes: tuple[Cause, ...]
    rate_ratio: float | None
    """tokens/s/GPU of B over A."""


Origin = Callable[[RunFacts, str, Value | None], str]
"""Who set a key of a run's configuration."""


def difference(a: RunFacts, b: RunFacts, origin: Origin = lambda *_: "") -> Difference:
    """Everything recorded in which B differs from A."""
    rate_a, rate_b = a.tokens_per_s_per_gpu, b.tokens_per_s_per_gpu
    return Difference(
        config=tuple(_config(a, b, origin)),
        circumstances=tuple(_changed(_circumstances(a), _circumstances(b))),
        results=tuple(_changed(_results(a), _results(b))),
        causes=tuple(causes(a, b)),
        rate_ratio=rate_b / rate_a if rate_a and rate_b else None,
    )


def _config(a: RunFacts, b: RunFacts, origin: Origin) -> Iterator[Change]:
    for key in sorted(a.config.keys() | b.config.keys()):
        value_a, value_b = a.config.get(key), b.config.get(key)
        if value_a != value_b and not key.startswith(_PLACES):
            yield Change(
                what=key,
                a=NOT_SET if value_a is None else str(value_a),
                b=NOT_SET if value_b is None else str(value_b),
                origin_a=origin(a, key, value_a),
                origin_b=origin(b, key, value_b),
            )


def _circumstances(run: RunFacts) -> dict[str, str]:
    versions = dict(part.rsplit(" ", 1) for part in str(run.factors.get("software", "")).split(", ") if " " in part)
    bindings = {f"binding of {node.node}": ", ".join(node.flags) for node in run.bindings}
    keys = ("gpu", "platform", "layout", "techniques", "driver", "code", "data", "gpus", "nodes", "power_limit_watts")
    return {
        **{key: str(run.factors[key]) for key in keys if key in run.factors},
        **versions,
        "node names": ", ".join(run.nodes),
        **bindings,
        "throttling": run.throttled or ("none seen" if run.telemetry else "not watched"),
    }


def _results(run: RunFacts) -> dict[str, str]:
    loss = run.curves.get(LOSS)
    found = {
        "state": run.state,
        "tokens/s/GPU": _number(run.tokens_per_s_per_gpu),
        "step time, median steady (s)": _number(run.step_s),
        "steady steps": str(len(run.steady_step_s)) if run.steady_step_s else "",
        "start-up (s)": _number(run.startup_s),
        "peak memory (GiB)": _number(run.peak_memory_gib),
        "last loss": _number(loss.values[-1]) if loss else "",
        "last step": str(loss.steps[-1]) if loss else "",
    }
    return {key: value for key, value in found.items() if value}


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


def _changed(a: dict[str, str], b: dict[str, str]) -> Iterator[Change]:
    for key in dict.fromkeys((*a, *b)):
        value_a, value_b = a.get(key, "unknown"), b.get(key, "unknown")
        if value_a != value_b:
            yield Change(what=key, a=value_a, b=value_b)
