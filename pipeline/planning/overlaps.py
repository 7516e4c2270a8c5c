"""What a run overlaps with computation: what was asked for, else what its layout has to gain."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.planning.layout import uses_gpus
from pipeline.types import Experiment, Layout, Sharding


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlaps:
    """Communication that runs beside computation."""

    grad_reduce: bool
    param_gather: bool
    p2p: bool


def derive_overlaps(experiment: Experiment, layout: Layout) -> Overlaps:
    """The overlaps of a run; a CPU run has none unless asked, since gloo's threads take the same cores."""
    techniques, gpus = experiment.techniques, uses_gpus(experiment)
    shared = gpus and layout.dp * layout.cp > 1
    grad_reduce = _chosen(techniques.overlap_grad_reduce, shared)
    return Overlaps(
        grad_reduce=grad_reduce,
        param_gather=_chosen(
            techniques.overlap_param_gather, shared and grad_reduce and gathers_parameters(experiment)
        ),
        p2p=_chosen(techniques.overlap_p2p, gpus and layout.vp > 1),
    )


def gathers_parameters(experiment: Experiment) -> bool:
    """Whether ranks update shards of the parameters and then gather them."""
    if experiment.techniques.sharding is not Sharding.none:
        return True
    # Muon's sharding goes by whole layers; Megatron-Core gathers those in its optimizer.
    return experiment.optimizer.distributed and experiment.optimizer.muon is None


def _chosen(asked: bool | None, otherwise: bool) -> bool:
    return otherwise if asked is None else asked
