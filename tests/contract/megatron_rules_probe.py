"""Asks Megatron-Core itself, in a process of its own, which layouts it accepts: `python megatron_rules_probe.py`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "training"))

from build_probe import changed, ranks
from training_workers import plan_for, tiny_experiment

from pipeline.types import Experiment, Layout


@dataclass(frozen=True, kw_only=True)
class Case:
    """A request: the tiny experiment with some keys changed, on a layout."""

    keys: dict[str, object] = field(default_factory=dict)
    layout: dict[str, Any] = field(default_factory=dict)
    ranks: int | None = None
    """Ranks there are; None: as many as the layout needs."""

    def request(self) -> tuple[Experiment, Layout]:
        """The experiment and its layout, legal or not."""
        experiment = tiny_experiment()
        experiment.hardware.cpu_ranks_per_node = 16
        for key, value in self.keys.items():
            changed(experiment, key, value)
        layout = plan_for(experiment, **self.layout).layout
        return experiment, layout if self.ranks is None else replace(layout, ranks_per_node=self.ranks)


LEGAL = {
    "single": Case(),
    "tp2": Case(layout={"tp": 2}),
    "sequence parallel": Case(layout={"tp": 2, "sequence_parallel": True}),
    "pp2": Case(layout={"pp": 2}),
    "cp2": Case(layout={"cp": 2}),
    "dp4": Case(layout={"dp": 4}),
    "all": Case(layout={"tp": 2, "pp": 2, "cp": 2, "dp": 2, "sequence_parallel": True}),
    "head_dim": Case(keys={"model.hidden_size": 30, "model.head_dim": 8}),
}

ILLEGAL = {
    "num_attention_heads": Case(
        keys={"model.num_attention_heads": 3, "model.num_query_groups": 3, "model.head_dim": 8}, layout={"tp": 2}
    ),
    "num_query_groups": Case(
        keys={"model.num_attention_heads": 6, "model.num_query_groups": 3, "model.head_dim": 8}, layout={"tp": 2}
    ),
    "ffn_hidden_size": Case(keys={"model.ffn_hidden_size": 63}, layout={"tp": 2}),
    "layers": Case(keys={"model.num_layers": 3}, layout={"pp": 2}),
    "sequence_parallel": Case(layout={"sequence_parallel": True}),
    "world": Case(layout={"tp": 2}, ranks=3),
    "global_batch": Case(keys={"recipe.micro_batch": 3}),
}
"""Requests that Megatron-Core refuses, by the rule of ours that they break."""

SILENT = {
    "head_dim": Case(keys={"model.hidden_size": 30}),
    "groups_of_heads": Case(keys={"model.num_query_groups": 3}),
    "rope": Case(keys={"model.head_dim": 7}),
    "max_sequence_length": Case(keys={"recipe.sequence_length": 128}),
    "cp": Case(keys={"recipe.sequence_length": 34}, layout={"cp": 2}),
    "sequence_parallel_split": Case(keys={"recipe.sequence_length": 33}, layout={"tp": 2, "sequence_parallel": True}),
    "num_query_groups": Case(keys={"model.num_query_groups": 1}, layout={"tp": 2}),
}
"""Requests that Megatron-Core builds without a word, by the rule of ours that refuses them."""


def main() -> None:
    """Prints Megatron-Core's answer to each case, "" for yes."""
    from pipeline.training import cpu_backend

    backend = cpu_backend.install()
    json.dump({table: dict(answers(cases, backend)) for table, cases in TABLES.items()}, sys.stdout)


TABLES = {"legal": LEGAL, "illegal": ILLEGAL, "silent": SILENT}


def answers(cases: dict[str, Case], backend: Any) -> Iterator[tuple[str, str]]:
    """Each case's name and what Megatron-Core has against it."""
    for name, case in cases.items():
        try:
            build(case, backend)
        except (AssertionError, ValueError, RuntimeError) as error:
            yield name, f"{type(error).__name__}: {error}"
        else:
            yield name, ""


def build(case: Case, backend: Any) -> None:
    """Divides ranks and batch and builds rank 0's part of the model, as Megatron-Core does."""
    from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator

    from pipeline.training import megatron

    experiment, layout = case.request()
    plan = replace(plan_for(experiment), layout=layout)
    ConstantNumMicroBatchesCalculator(
        layout.global_batch, layout.micro_batch, layout.dp, decrease_batch_size_if_needed=False, rank=0
    )
    with ranks(layout, experiment.seed, backend):
        megatron.build_model(experiment, plan, backend)


if __name__ == "__main__":
    main()
