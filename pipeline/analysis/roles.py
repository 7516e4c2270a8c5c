"""Which variable plays which part in a comparison, and what a difference in it does to each question.

A difference is fatal to a question when no arithmetic can undo it, correctable when a measurement can, and to be
disclosed when it may differ between well-tuned runs but has to be said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """What a variable is in a comparison."""

    treatment = "treatment"
    """What is compared; exactly one may differ."""
    block = "must match"
    tuned = "tuned per arm"
    correctable = "correctable"
    nuisance = "to record"


class Severity(Enum):
    """What a difference does to a question."""

    fatal = "fatal"
    correctable = "correctable"
    disclose = "disclose"


class Estimand(Enum):
    """A question that can be asked of two arms; ratios are B over A."""

    throughput = "throughput"
    """tokens/s/GPU."""
    flops = "flops"
    """Model FLOP/s/GPU, one canonical count for both."""
    time_to_loss = "time_to_loss"
    """GPU-seconds to the target loss at an equal recipe, A over B, so that above 1 B is faster."""
    recipe_time_to_loss = "recipe_time_to_loss"
    """The same for each arm's own recipe: hardware and recipe together, which can't be told apart."""
    cost = "cost"
    """Cost of a token."""
    energy = "energy"
    """Energy of a token."""
    feasibility = "feasibility"
    """What fits, in its own units."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """One variable of a comparison."""

    key: str
    title: str
    role: Role
    throughput: Severity
    time_to_loss: Severity
    effect: str
    """What a difference does."""
    needed: bool = False
    """Whether nobody having recorded it is as bad as a difference, also for throughput."""
    blurs: bool = False
    """Whether a difference makes a result indicative only."""

    def severity(self, estimand: Estimand) -> Severity:
        """What a difference does to a question."""
        if estimand is Estimand.feasibility:
            return Severity.disclose
        if estimand is Estimand.time_to_loss:
            return self.time_to_loss
        if estimand is Estimand.recipe_time_to_loss:
            return self.time_to_loss if self.key in _MEANING_OF_A_LOSS else Severity.disclose
        if estimand is Estimand.flops and self.key == "sequence_length":
            return Severity.disclose
        return self.throughput


_MEANING_OF_A_LOSS = ("model", "model_shape", "task", "data", "sequence_length", "gpus")
"""Variables without which two losses, or two times to one, are not of one kind."""


def _block(
    key: str, title: str, effect: str, throughput: Severity = Severity.fatal, *, needed: bool = False
) -> Variable:
    return Variable(
        key=key,
        title=title,
        role=Role.block,
        throughput=throughput,
        time_to_loss=Severity.fatal,
        effect=effect,
        needed=needed,
    )


def _other(key: str, title: str, role: Role, effect: str, severity: Severity, *, blurs: bool = False) -> Variable:
    return Variable(
        key=key, title=title, role=role, throughput=severity, time_to_loss=severity, effect=effect, blurs=blurs
    )


VARIABLES: tuple[Variable, ...] = (
    _other("gpu", "GPU", Role.treatment, "is the hardware", Severity.fatal),
    _other("platform", "node type", Role.treatment, "changes CPUs, NVLink domain and adapters", Severity.disclose),
    _block("model", "model", "changes the work of a token", needed=True),
    _block("model_shape", "shape of the model", "changes the work of a token"),
    _block("task", "task", "changes what a token costs: adapters and packed samples do less work", needed=True),
    _block("sequence_length", "sequence length", "changes FLOPs a token and what a token learns from", needed=True),
    _block("precision", "precision", "changes the peak rate and the numerics, so not only hardware", needed=True),
    _block("global_batch", "global batch", "changes micro-batches a step and tokens to the loss", Severity.correctable),
    _block("optimizer", "optimizer", "changes tokens to the loss, not the speed of a step", Severity.disclose),
    _block("schedule", "length of the schedule", "changes the loss at a given token", Severity.disclose),
    _block("data", "data and tokenizer", "changes what a loss means", Severity.disclose),
    _other("layout", "layout", Role.tuned, "may be tuned for each arm", Severity.disclose),
    _other("micro_batch", "micro-batch", Role.tuned, "may be tuned for each arm", Severity.disclose),
    _other("techniques", "memory techniques", Role.tuned, "may be tuned for each arm", Severity.disclose),
    _other("gpus", "GPUs", Role.correctable, "changes the share of communication", Severity.correctable),
    _other("nodes", "nodes", Role.correctable, "may put traffic between nodes on one side only", Severity.disclose),
    _other("power_limit_watts", "power limit", Role.correctable, "changes clocks under load", Severity.disclose),
    _other(
        "software",
        "software",
        Role.nuisance,
        "moved one configuration by 3.7 % (median) to 190 % between public releases",
        Severity.disclose,
        blurs=True,
    ),
    _other("driver", "driver", Role.nuisance, "may change clocks and kernels", Severity.disclose, blurs=True),
    _other("code", "code", Role.nuisance, "may change anything", Severity.disclose),
    _other("binding", "binding", Role.nuisance, "remote memory and shared cores cost time", Severity.disclose),
)

BY_KEY: Mapping[str, Variable] = {one.key: one for one in VARIABLES}
BLOCKS = tuple(one.key for one in VARIABLES if one.role is Role.block)
TUNED = tuple(one.key for one in VARIABLES if one.role is Role.tuned)
