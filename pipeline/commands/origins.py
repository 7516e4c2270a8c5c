"""Who set a value of a run's configuration: the option of a config group, or somebody by hand."""

from __future__ import annotations

from functools import cache

from pipeline.analysis.facts import RunFacts, Value
from pipeline.analysis.runs import config_leaves
from pipeline.commands.fair import GROUPS
from pipeline.conf_groups import options
from pipeline.config import load


def origin_of(run: RunFacts, key: str, value: Value | None) -> str:
    """`model=llama3_8b` where that option says so as shipped today, else `override`."""
    if not run.config:
        return ""
    chosen = tuple(f"{group}={run.config[f'{group}.name']}" for group in GROUPS
                   if run.config.get(f"{group}.name") in options(group))  # fmt: skip
    if _composed(chosen).get(key) != value:
        return "override"
    group = key.split(".")[0]
    return next((one for one in chosen if one.startswith(f"{group}=")), "default")


@cache
def _composed(chosen: tuple[str, ...]) -> dict[str, Value]:
    return config_leaves(load(chosen).experiment)
