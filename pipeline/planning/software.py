"""Software that a job needs against the versions its system offers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.planning.job import Job, recomputes
from pipeline.planning.layout import Problem
from pipeline.types import CrossEntropy, LowPrecision


@dataclass(frozen=True, slots=True)
class Need:
    """A version that a job needs of one component."""

    component: str
    at_least: str | None
    below: str | None
    why: str


# First versions that know a GPU generation (CUDA, driver and torch release notes; conf/hardware/software).
_GENERATIONS = (
    (103, (("cuda", "12.9"), ("driver", "575"), ("torch", "2.8"), ("te", "2.0"))),
    (100, (("cuda", "12.8"), ("driver", "570"), ("torch", "2.7"), ("te", "2.0"))),
    (90, (("cuda", "11.8"), ("driver", "520"), ("torch", "2.0"))),
    (80, (("cuda", "11.0"), ("driver", "450"))),
)
_SUPPORTED = (
    Need("megatron-core", "0.16", None, "himori trains with 0.16 to 0.19"),
    Need("megatron-core", None, "0.20", "himori trains with 0.16 to 0.19"),
)
"""What the training side is written for (pyproject.toml, himori[train])."""
# What one release knows and the one before doesn't, beside the formats.
_BLOCKWISE_CUDA = "12.9"
"""Transformer Engine's condition for fp8 in blocks (pytorch/fp8.py), whatever the GPU."""
_RECOMPUTE_IN_FP8 = "2.6"
"""Megatron-Core's condition for recomputing norms and expert activations in fp8 (transformer_config.py of 0.16)."""
# Megatron-Core's own conditions on Transformer Engine (fp8_utils.py, fp4_utils.py of 0.16).
_RECIPES = {
    LowPrecision.fp8_delayed: "1.0",
    LowPrecision.fp8_current: "2.2",
    LowPrecision.fp8_blockwise: "2.3",
    LowPrecision.mxfp8: "2.1",
    LowPrecision.nvfp4: "2.7",
}


def needs(job: Job) -> Iterator[Need]:
    """What the GPU, the formats and the techniques of a job ask of the software."""
    capability = job.gpu.compute_capability
    for least, versions in _GENERATIONS:
        if capability is not None and capability >= least:
            yield from (Need(name, version, None, f"{job.gpu.name} appeared with it") for name, version in versions)
            break
    low, techniques = job.precision.low_precision, job.techniques
    if low is not None:
        yield Need("te", _RECIPES[low], None, f"{low.value} appeared with it")
        if low is LowPrecision.fp8_blockwise:
            yield Need("cuda", _BLOCKWISE_CUDA, None, "Transformer Engine multiplies fp8 in blocks from there on")
        if recomputes(job, "layernorm") or recomputes(job, "moe_act"):
            yield Need("te", _RECOMPUTE_IN_FP8, None, "recompute of layernorm or moe_act in low precision needs it")
    if techniques.param_remainders or techniques.moments is not techniques.moments.fp32:
        yield Need("te", "2.1", None, "the precision-aware optimizer needs it")
    if techniques.cross_entropy is CrossEntropy.te:
        yield Need("megatron-core", None, "0.19", "0.19 refuses Transformer Engine's cross entropy; use native")
    yield from _SUPPORTED


def check_software(job: Job, offered: Mapping[str, str]) -> list[Problem]:
    """Needs that the versions of a profile can't meet; components that it doesn't name are not judged."""
    return [
        Problem("software", _message(need, offered[need.component]))
        for need in needs(job)
        if need.component in offered and not _meets(offered[need.component], need)
    ] + [_unreadable(name, text) for name, text in offered.items() if not _READABLE.fullmatch(text)]


_READABLE = re.compile(r"\s*(>=|<|==)\s*\d[\d.]*\s*(,\s*(>=|<|==)\s*\d[\d.]*\s*)*")


def _unreadable(name: str, text: str) -> Problem:
    return Problem("software", f"hardware.software.{name}: got {text!r}; the form is >=12.4,<13 or ==2.8.1")


def _meets(offered: str, need: Need) -> bool:
    """Whether some version of the range will do."""
    bounds = [(sign, _key(version)) for sign, version in re.findall(r"(>=|<|==)\s*([\d.]+)", offered)]
    for sign, version in bounds:
        if need.at_least and (
            (sign == "<" and version <= _key(need.at_least)) or (sign == "==" and version < _key(need.at_least))
        ):
            return False
        if need.below and sign in {">=", "=="} and version >= _key(need.below):
            return False
    return True


def _message(need: Need, offered: str) -> str:
    wanted = f"{need.at_least} or later" if need.at_least else f"before {need.below}"
    return (
        f"software.{need.component}: this job needs {wanted} ({need.why}), the profile offers {offered}; change the "
        f"request, or hardware.software.{need.component} when the system has more"
    )


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
