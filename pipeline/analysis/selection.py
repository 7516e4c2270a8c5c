"""What people type to name the runs of an arm -> facts: ids, groups by value, recipes, rows of published tables."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from pipeline.analysis.facts import RunFacts, recipe_hash
from pipeline.analysis.published import SHIPPED, read_published, select
from pipeline.analysis.roles import BLOCKS
from pipeline.analysis.runs import read_run
from pipeline.analysis.specs import gpu_named, model_named
from pipeline.errors import RunDirError, UserError
from pipeline.rundir import find_run, list_runs


def select_runs(text: str, run_root: Path) -> list[RunFacts]:
    """The runs a selector names; raises UserError when it names none."""
    if text.startswith("published:"):
        return _rows(SHIPPED, text.removeprefix("published:"))
    path, _, pattern = text.partition(".csv")
    if text.endswith(".csv") or ".csv:" in text:
        return _rows(Path(f"{path}.csv"), pattern.removeprefix(":") or "*")
    if "=" in text:
        return _with_values(text, run_root)
    return [read_run(find_run(run_root, one)) for one in text.split(",") if one]


def all_runs(run_root: Path) -> list[RunFacts]:
    """All runs of a run root that can be read; a damaged one hides no other."""
    found = []
    for run in list_runs(run_root):
        try:
            found.append(read_run(run))
        except RunDirError:
            continue
    return found


def shipped_rows() -> list[RunFacts]:
    """The shipped table of public results."""
    return read_published(SHIPPED, gpu_named, model_named)


def _rows(path: Path, pattern: str) -> list[RunFacts]:
    rows = read_published(path, gpu_named, model_named)
    found = select(rows, pattern)
    if not found:
        names = ", ".join(row.name for row in rows[:5]) or "none"
        more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
        raise UserError(f"{path.name}: no row matches {pattern!r}; rows are {names}{more}")
    return found


def _with_values(text: str, run_root: Path) -> list[RunFacts]:
    wanted = [_condition(part) for part in text.split(",")]
    runs = all_runs(run_root)
    found = [run for run in runs if all(_holds(run, key, value) for key, value in wanted)]
    if not found:
        for key, _ in wanted:
            _require_known(key, runs)
        raise UserError(f"no run of {run_root} has {text}; there are {len(runs)} runs, see `himori status`")
    return found


def _condition(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"{text!r} is no KEY=VALUE; several values are given as key=value,key=value")
    return key.strip(), value.strip()


def _holds(run: RunFacts, key: str, value: str) -> bool:
    if key == "sweep":
        return any(fnmatchcase(name, value) for name in run.sweep)
    found = _value(run, key)
    return found is not None and fnmatchcase(str(found), value)


def _value(run: RunFacts, key: str) -> object:
    if key == "recipe":
        return recipe_hash(run, BLOCKS)
    if key == "state":
        return run.state
    for named in (key, f"{key}.name"):
        if named in run.config:
            return run.config[named]
    return run.factors.get(key)


def _require_known(key: str, runs: Sequence[RunFacts]) -> None:
    if key != "sweep" and runs and all(_value(run, key) is None for run in runs):
        keys = ", ".join(sorted({one.split(".")[0] for one in runs[0].config}))
        raise UserError(f"{key!r} is no key of the runs' configuration; groups there are {keys}")
