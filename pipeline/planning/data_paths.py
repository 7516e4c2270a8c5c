"""Which files a run reads, by the keys that name them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeline.types import DataKind, Experiment


@dataclass(frozen=True, slots=True)
class InputPath:
    """A file or folder that has to be there."""

    key: str
    path: str


def input_paths(experiment: Experiment) -> tuple[InputPath, ...]:
    """What workers read; of an indexed dataset its index."""
    data, recipe = experiment.data, experiment.recipe
    suffix = ".idx" if data.kind is DataKind.indexed else ""
    sources = [("data.path", data.path), ("data.validation_path", data.validation_path)]
    sources += [("data.blend", path) for path in data.blend]
    others = [("data.tokenizer", data.tokenizer), ("recipe.init_from", recipe.init_from)]
    return (
        *(InputPath(key, f"{path}{suffix}") for key, path in sources if path is not None),
        *(InputPath(key, path) for key, path in others if path is not None),
    )


def with_paths(experiment: Experiment, change: Callable[[str], str]) -> Experiment:
    """The experiment with every path of its input changed."""

    def changed(path: str | None) -> str | None:
        return None if path is None else change(path)

    data, recipe = experiment.data, experiment.recipe
    return replace(
        experiment,
        data=replace(
            data,
            path=changed(data.path),
            blend={change(path): weight for path, weight in data.blend.items()},
            validation_path=changed(data.validation_path),
            tokenizer=changed(data.tokenizer),
            stage_dir=changed(data.stage_dir),
        ),
        recipe=replace(recipe, init_from=changed(recipe.init_from)),
    )
