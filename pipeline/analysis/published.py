"""Published measurements as a table: one row a run, in a format of our own, every row with its source.

Columns (an empty cell is what was not stated; lines that start with # are comments):

name, source                  required: what to call the row, and where it was printed
gpu, gpus                     required: GPU as conf/hardware/gpu names it, and how many
platform, nodes               node type; number of nodes
model, task                   option of conf/model where there is one; pretrain, sft, lora
sequence_length, global_batch tokens of a sample; samples of a step
precision, optimizer, data    as conf/ names them where it does
schedule                      steps of the whole schedule
layout, micro_batch, techniques, software, driver, power_limit_watts
seed
tokens_per_s_per_gpu          measured, steady
step_s                        seconds of a step; gives the rate where that is not printed
tflops_per_gpu                by the source's own count: shown, never compared
peak_memory_gib
target_loss, steps_to_target, tokens_to_target, seconds_to_target
price_per_gpu_hour, price_currency, price_basis
energy_j_per_token, energy_boundary
notes
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from pipeline.analysis.facts import Origin, Price, RunFacts, Target, Value
from pipeline.errors import UserError
from pipeline.model_math import flops_per_token
from pipeline.types import GpuSpec, ModelSpec

_WORDS = (
    "gpu", "platform", "model", "task", "precision", "optimizer", "data", "layout", "techniques", "software", "driver",
)  # fmt: skip
_WHOLE = ("sequence_length", "global_batch", "schedule", "micro_batch", "gpus", "nodes")
_NUMBERS = (
    "power_limit_watts", "tokens_per_s_per_gpu", "step_s", "tflops_per_gpu", "peak_memory_gib", "target_loss",
    "steps_to_target", "tokens_to_target", "seconds_to_target", "price_per_gpu_hour", "energy_j_per_token",
)  # fmt: skip
_OTHERS = ("name", "source", "seed", "price_currency", "price_basis", "energy_boundary", "notes")
COLUMNS = frozenset((*_WORDS, *_WHOLE, *_NUMBERS, *_OTHERS))
_REQUIRED = ("name", "source", "gpu", "gpus")

SHIPPED = Path(__file__).with_name("published.csv")
"""A small table of public results; its rows are what `himori gap` measures against."""

GpuLookup = Callable[[str], GpuSpec | None]
ModelLookup = Callable[[str], ModelSpec | None]


def read_published(path: Path, gpu_of: GpuLookup, model_of: ModelLookup) -> list[RunFacts]:
    """All rows of a table; raises UserError naming file, line and column of what can't be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: can't be read ({error}); give a CSV file, its columns are in docs/comparing.md"
        ) from error
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    rows = csv.DictReader(line for _, line in numbered)
    _check_columns(path, rows.fieldnames or ())
    return [
        _facts(_Row(path, number, row), gpu_of, model_of) for (number, _), row in zip(numbered[1:], rows, strict=True)
    ]


def select(rows: Sequence[RunFacts], pattern: str) -> list[RunFacts]:
    """Rows whose name matches a shell pattern."""
    return [row for row in rows if fnmatchcase(row.name, pattern)]


def _check_columns(path: Path, found: Sequence[str]) -> None:
    unknown, missing = sorted(set(found) - COLUMNS), [one for one in _REQUIRED if one not in found]
    if missing:
        raise UserError(f"{path}: column {missing[0]} is missing; required are {', '.join(_REQUIRED)}")
    if unknown:
        raise UserError(f"{path}: column {unknown[0]!r} is not known; there are {', '.join(sorted(COLUMNS))}")


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    """One line of a table."""

    path: Path
    line: int
    cells: Mapping[str, str]

    def word(self, column: str) -> str:
        return (self.cells.get(column) or "").strip()

    def number(self, column: str) -> float | None:
        text = self.word(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if value <= 0:
            raise UserError(f"{self.path}:{self.line}: {column}: {text!r} is not a number above 0")
        return value

    def required(self, column: str) -> str:
        if not self.word(column):
            raise UserError(f"{self.path}:{self.line}: {column}: is empty; it is required")
        return self.word(column)


def _facts(row: _Row, gpu_of: GpuLookup, model_of: ModelLookup) -> RunFacts:
    gpu, model = gpu_of(row.required("gpu")), model_of(row.word("model"))
    gpus = int(row.number("gpus") or 0)
    sequence, batch, step_s = row.number("sequence_length"), row.number("global_batch"), row.number("step_s")
    tokens = int(sequence * batch) if sequence and batch else None
    rate = row.number("tokens_per_s_per_gpu") or (tokens / step_s / gpus if tokens and step_s else None)
    return RunFacts(
        name=row.required("name"),
        origin=Origin.published,
        source=row.required("source"),
        factors=dict(_factors(row, gpu)),
        gpu=gpu,
        model=model,
        gpus=gpus,
        seed=int(row.word("seed")) if row.word("seed").isdigit() else None,
        tokens_per_step=tokens,
        flops_per_token=flops_per_token(model, int(sequence)) if model and sequence else None,
        tokens_per_s_per_gpu=rate,
        step_s=step_s or (tokens / rate / gpus if tokens and rate else None),
        peak_memory_gib=row.number("peak_memory_gib"),
        memory_capacity_gib=gpu.memory_gib if gpu else None,
        price=_price(row),
        energy_j_per_token=row.number("energy_j_per_token"),
        energy_boundary=row.word("energy_boundary"),
        targets=_targets(row),
        notes=row.word("notes"),
    )


def _factors(row: _Row, gpu: GpuSpec | None) -> Iterator[tuple[str, Value]]:
    for column in _WORDS:
        if row.word(column):
            yield column, gpu.name if column == "gpu" and gpu else row.word(column)
    for column in (*_WHOLE, "power_limit_watts"):
        value = row.number(column)
        if value is not None:
            yield column, int(value)


def _price(row: _Row) -> Price | None:
    value = row.number("price_per_gpu_hour")
    if value is None:
        return None
    return Price(
        per_gpu_hour=value, currency=row.word("price_currency") or "USD", basis=row.word("price_basis") or "not stated"
    )


def _targets(row: _Row) -> tuple[Target, ...]:
    loss = row.number("target_loss")
    if loss is None:
        return ()
    steps, seconds = row.number("steps_to_target"), row.number("seconds_to_target")
    return (Target(loss=loss, steps=steps, tokens=row.number("tokens_to_target"), seconds=seconds),)
