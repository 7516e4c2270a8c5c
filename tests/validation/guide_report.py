"""The AWS guide to training on P6-B200 beside the planner: plausibility, since set-ups differ."""

from __future__ import annotations

from tables import table

from pipeline.config import load
from pipeline.errors import PlanRefused
from pipeline.planning.calibration import Calibration
from pipeline.planning.plan import make_plan

_SIZES = ("1b", "3b", "8b", "14b", "32b", "64b")
_TEXT = """
The guide prints about 51,000 tokens/s for 1 B at batch 16 with recompute, 8 times its own baseline, and needs
recompute from 14 B on. It trains with torch FSDP, not Megatron-Core, and its shapes are not known here: the table is
for one node of eight GPUs, a micro-batch of 16, sequences of 2048 and shapes of our own. The rates don't compare. What
agrees is the order: from 14 B on a micro-batch of 16 needs recompute or a division of the model.
"""


def guide_section(calibration: Calibration) -> str:
    """A table of the ladder, with and without recompute."""
    rows = []
    for size in _SIZES:
        cells = [_cell(size, recompute, calibration) for recompute in ("none", "full")]
        rows.append((size.replace("b", " B"), *cells))
    head = ("model", "no recompute", "full recompute")
    return "## Plausibility: the ladder of the AWS guide\n\n" + table(head, rows) + _TEXT


def _cell(size: str, recompute: str, calibration: Calibration) -> str:
    words = ["experiment=blackwell_guide", f"model=guide_{size}", f"techniques.recompute={recompute}"]
    try:
        plan = make_plan(load(words).experiment, calibration)
    except PlanRefused:
        return "REFUSED"
    assert plan.throughput is not None
    assert plan.memory is not None
    layout = plan.layout
    divided = f", tp {layout.tp} pp {layout.pp} cp {layout.cp}" if layout.tp * layout.pp * layout.cp > 1 else ""
    return f"{plan.throughput.tokens_per_s.p50:,.0f} tokens/s, {plan.memory.fit.value}{divided}"
