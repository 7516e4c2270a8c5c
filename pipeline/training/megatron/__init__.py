"""Every name of Megatron-Core that himori uses, behind functions of our own types (0.16 to 0.19).

A contract test reads these modules and looks each name, keyword and method up in the wheels of both ends.
"""

from megatron.core import __version__ as _version

from pipeline.training.megatron.model import Model, build_model
from pipeline.training.megatron.optimizer import (
    advance_schedule,
    build_optimizer,
    build_schedule,
    learning_rate,
    optimizer_step,
)
from pipeline.training.megatron.ranks import Position, initialize_ranks
from pipeline.training.megatron.step import (
    clear_gradients,
    forward_backward,
    forward_only,
    has_finite_gradients,
)


def version() -> str:
    """The release of Megatron-Core in use."""
    return str(_version)


__all__ = [
    "Model",
    "Position",
    "advance_schedule",
    "build_model",
    "build_optimizer",
    "build_schedule",
    "clear_gradients",
    "forward_backward",
    "forward_only",
    "has_finite_gradients",
    "initialize_ranks",
    "learning_rate",
    "optimizer_step",
    "version",
]
