"""What the installed releases lack of a recipe, said before Megatron-Core would say it, or leave it out."""

from __future__ import annotations

from megatron.core import __version__

from pipeline.errors import UserError
from pipeline.types import CrossEntropy, Experiment

_WITHOUT_TE_LOSS = (0, 19)
"""From here on Megatron-LM refuses Transformer Engine's cross entropy "due to stability issues" (its arguments.py);
Megatron-Core by itself takes it without a word."""
_WITH_LOW_PRECISION_OUTPUT = (0, 18)


def require_features(experiment: Experiment) -> None:
    """Raises UserError naming a key that the installed Megatron-Core can't obey, and a way out."""
    release = _release()
    if experiment.techniques.cross_entropy is CrossEntropy.te and release >= _WITHOUT_TE_LOSS:
        raise UserError(
            f"techniques.cross_entropy=te: megatron-core {__version__} counts it as unstable; give native or linear"
        )
    if experiment.precision.low_precision_output and release < _WITH_LOW_PRECISION_OUTPUT:
        raise UserError(
            f"precision.low_precision_output: megatron-core {__version__} doesn't have it; install 0.19, or leave it "
            "false"
        )


def _release() -> tuple[int, int]:
    major, minor, *_ = str(__version__).split(".")
    return int(major), int(minor)
