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
    attention_mask,
    clear_gradients,
    forward_backward,
    forward_only,
    gradient_sum,
    timed_configs,
)


def version() -> str:
    """The release of Megatron-Core in use."""
    return str(_version)


__all__ = [
    "Model",
    "Position",
    "advance_schedule",
    "attention_mask",
    "build_model",
    "build_optimizer",
    "build_schedule",
    "clear_gradients",
    "forward_backward",
    "forward_only",
    "gradient_sum",
    "initialize_ranks",
    "learning_rate",
    "optimizer_step",
    "timed_configs",
    "version",
]
