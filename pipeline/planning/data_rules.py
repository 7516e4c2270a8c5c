"""Which keys of `data` and of the recipe go together, and with which model and layout."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.planning.layout import uses_gpus
from pipeline.types import DataKind, DataSpec, Experiment, Layout

BLEND_PERIOD = 1 << 16
"""Places after which the pattern of a blend repeats; weights are exact to one part in it."""

_KINDS = {
    "path": (DataKind.text, DataKind.indexed, DataKind.chat),
    "blend": (DataKind.indexed,),
    "stage_dir": (DataKind.indexed,),
    "tokenizer": (DataKind.chat,),
    "validation_fraction": (DataKind.text, DataKind.indexed, DataKind.chat),
    "validation_path": (DataKind.text, DataKind.indexed, DataKind.chat),
    "reset_positions": (DataKind.indexed, DataKind.chat),
    "reset_attention": (DataKind.indexed, DataKind.chat),
}
"""Kinds of data that a key has an effect on."""


def data_problems(experiment: Experiment, layout: Layout) -> Iterator[str]:
    """What can't be trained as asked, or would be ignored; a line each."""
    yield from _kind_problems(experiment.data)
    yield from _source_problems(experiment.data)
    yield from _held_out_problems(experiment)
    yield from _document_problems(experiment, layout)


def _kind_problems(spec: DataSpec) -> Iterator[str]:
    for key, kinds in _KINDS.items():
        if getattr(spec, key) and spec.kind not in kinds:
            allowed = ", ".join(kind.value for kind in kinds)
            yield f"data.{key}: has no effect on data.kind={spec.kind.value}; it is for {allowed}"


def _source_problems(spec: DataSpec) -> Iterator[str]:
    if spec.kind is DataKind.indexed and (spec.path is None) == (not spec.blend):
        yield "data.path: data.kind=indexed takes either data.path=PREFIX or data.blend={PREFIX:WEIGHT,...}"
    if spec.kind is DataKind.chat and spec.path is None:
        yield "data.path: data.kind=chat needs a .jsonl file of conversations"
    if spec.kind is DataKind.chat and spec.tokenizer is None:
        yield "data.tokenizer: data.kind=chat needs the folder of the model's tokenizer.json"
    total = sum(weight for weight in spec.blend.values() if weight > 0)
    for path, weight in spec.blend.items():
        if weight * BLEND_PERIOD < total or weight <= 0:
            yield f"data.blend: weight {weight:g} of {path}; it has to be at least 1/{BLEND_PERIOD} of all, {total:g}"


def _held_out_problems(experiment: Experiment) -> Iterator[str]:
    spec, recipe = experiment.data, experiment.recipe
    held_out = bool(spec.validation_fraction) or spec.validation_path is not None
    if not 0 <= spec.validation_fraction < 1:
        yield f"data.validation_fraction: {spec.validation_fraction} is no part of a whole; give 0 to below 1"
    if spec.validation_fraction and spec.validation_path is not None:
        yield "data.validation_fraction: held-out data has a path of its own, data.validation_path; give one of them"
    if recipe.eval_every < 0 or recipe.eval_batches < 1:
        yield (
            f"recipe.eval_every={recipe.eval_every}, recipe.eval_batches={recipe.eval_batches}; "
            "give at least 0 steps and 1 batch"
        )
    if recipe.eval_every and not held_out and spec.kind is not DataKind.mock:
        yield (
            f"recipe.eval_every={recipe.eval_every}: nothing is held out; give data.validation_fraction or "
            "data.validation_path"
        )


def _document_problems(experiment: Experiment, layout: Layout) -> Iterator[str]:
    spec = experiment.data
    if spec.reset_positions and not experiment.model.learned_positions:
        yield (
            "data.reset_positions: has no effect on rotary positions, which only tell how far apart two tokens are; "
            "data.reset_attention keeps documents apart"
        )
    if spec.reset_attention and layout.cp > 1:
        yield f"data.reset_attention: can't be had with layout.cp={layout.cp}; give layout.cp=1"
    if spec.reset_attention and uses_gpus(experiment):
        yield "data.reset_attention: runs on a CPU only in this version; give data.reset_attention=false"
