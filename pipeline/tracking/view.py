"""What MLflow shows of a run besides its curves: parameters, tags and a note, from the files of the run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING

import hostlist

from pipeline.rundir import AttemptDir, RunDir, to_jsonable
from pipeline.tracking.annotations import NOTHING_SAID, Annotations, read_annotations
from pipeline.tracking.cursor import Cursor
from pipeline.tracking.feed import Facts, journal_sizes
from pipeline.tracking.points import Curves, metric_key
from pipeline.tracking.provenance import Provenance, read_provenance
from pipeline.tracking.telemetry.totals import TelemetrySummary, combine, throttle_text
from pipeline.types import End, Experiment, Plan, RunState

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MAX_PARAMS = 60
MAX_PARAM_LENGTH = 6000
MAX_TAG_LENGTH = 8000
JOULES_PER_KWH = 3.6e6
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}

# Where a run goes rather than what it is: the name is enough, or not even that.
_BY_NAME_ONLY = ("hardware", "cluster")
_NO_PARAMS = ("run_root", "tracking", "calibration")
# Groups of many options that are mostly left alone: only what differs from its default.
_ONLY_WHAT_DIFFERS = ("model", "techniques", "precision", "profile", "guard", "recipe", "data")
_OF_THE_RECIPE = ("micro_batch", "global_batch")
_ENVIRONMENT = ("python", "torch", "megatron_core", "transformer_engine", "cuda", "nccl", "driver", "device")
_STATUS = {
    RunState.finished: "FINISHED",
    RunState.failed: "FAILED",
    RunState.timeout: "FAILED",
    RunState.unknown: "FAILED",
    RunState.cancelled: "KILLED",
    RunState.preempted: "KILLED",
}


@dataclass(frozen=True, slots=True)
class Ending:
    """How the newest attempt stands."""

    attempt: int
    end: End | None
    """None while the attempt is not over."""
    started: bool
    """Whether anything of it is in a journal."""

    @property
    def status(self) -> str:
        """MLflow's word for it."""
        if self.end is not None and self.end.continues:
            return "SCHEDULED"
        if self.end is not None and self.end.state in _STATUS:
            return _STATUS[self.end.state]
        return "RUNNING" if self.started else "SCHEDULED"

    @property
    def mark(self) -> str:
        """Identifies the end that was uploaded; empty before there is one."""
        if self.end is None:
            return ""
        return f"{self.attempt} {self.end.state.value} {self.end.time}" + " continues" * self.end.continues


@dataclass(frozen=True, slots=True)
class View:
    """What the files of a run, read once, say about it; they don't change while it runs."""

    run_id: str
    experiment: Experiment
    plan: Plan | None
    provenance: Provenance | None

    def params(self) -> dict[str, str]:
        """Parameters by name, the plan's first; long values are whole (see `split_long`)."""
        return {key: _storable(value) for key, value in list(self._all_params().items())[:MAX_PARAMS]}

    def _all_params(self) -> dict[str, str]:
        planned = {} if self.plan is None else _plan_params(self.plan)
        asked = {metric_key(key): value for key, value in _flatten(self.experiment)}
        return planned | {key: value for key, value in asked.items() if key not in planned}

    def tags(
        self, attempt: AttemptDir, ending: Ending, facts: Facts, curves: Curves, said: Annotations = NOTHING_SAID
    ) -> dict[str, str]:
        """Tags by name, the description and what people said among them."""
        handle = attempt.read_handle()
        left_out = len(self._all_params()) - MAX_PARAMS
        found = {
            "himori.run_id": self.run_id,
            "himori.job_id": handle.job_id if handle else None,
            "himori.attempt": str(ending.attempt),
            "himori.nodes": hostlist.collect_hostlist(facts.nodes.get(ending.attempt, ())) or None,
            "himori.binding": _binding_tag(facts, ending.attempt),
            "himori.drift": _drift_tag(facts, ending.attempt),
            "himori.hardware": self.experiment.hardware.name,
            "himori.model": self.experiment.model.name,
            "himori.precision": self.experiment.precision.name,
            "himori.end": ending.end.state.value if ending.end else ending.status,
            "himori.end_message": ending.end.message if ending.end else "",
            "himori.cause": ending.end.cause.value if ending.end and ending.end.cause else None,
            "himori.params_left_out": str(left_out) if left_out > 0 else None,
            "mlflow.source.name": "himori",
            "mlflow.note.content": self.note(ending) + said.markdown,
            **_provenance_tags(self.provenance),
            **_environment_tags(facts.environment),
            **_quality_tags(facts, curves),
            **_telemetry_tags(facts, curves),
            **said.mlflow_tags,
        }
        return {key: _shortened(_storable(value)) for key, value in found.items() if value is not None}

    def note(self, ending: Ending) -> str:
        """The run's description, verdict first since MLflow folds all but the first lines."""
        state = ending.end.state.value if ending.end else ending.status
        message = f": {ending.end.message}" if ending.end and ending.end.message else ""
        rows = [("attempt", str(ending.attempt)), *_rows(self.experiment, self.plan)]
        table = "\n".join(f"| {name} | {_cell(value)} |" for name, value in rows)
        return f"**{state}**{_cell(message)}\n\n| | |\n|---|---|\n{table}\n"


def read_view(run: RunDir) -> View:
    """Reads the files of a run; raises RunDirError when one is damaged or there is no configuration."""
    plan = run.read_plan() if run.plan_file.exists() else None
    return View(run.run_id, run.read_experiment(), plan, read_provenance(run))


def is_complete(run: RunDir, cursor: Cursor) -> bool:
    """Whether the store has all of a run that is over, as far as the run directory knows."""
    attempt = run.last_attempt()
    end = None if attempt is None else attempt.read_end()
    if attempt is None or end is None or cursor.sending:
        return False
    if cursor.annotations != read_annotations(run).mark:
        return False
    return cursor.end == Ending(attempt.number, end, started=True).mark and cursor.offsets == journal_sizes(run)


def split_long(params: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Parameters as MLflow takes them, and the values too long for that by name of the file they go to."""
    short: dict[str, str] = {}
    files: dict[str, str] = {}
    for key, value in params.items():
        if len(value) <= MAX_PARAM_LENGTH:
            short[key] = value
            continue
        file = f"params/{key.replace('/', '_')}.txt"
        files[file] = value
        digest = hashlib.sha256(value.encode()).hexdigest()
        short[key] = f"{len(value)} characters, sha256 {digest}, in the artifact {file}"
    return short, files


def _flatten(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Leaves of the configuration by dotted key, plain keys and names of groups first."""
    groups = {group.name: getattr(experiment, group.name) for group in fields(experiment)}
    for group in _NO_PARAMS:
        groups.pop(group)
    for group, value in groups.items():
        if not is_dataclass(value):
            yield from _leaves("experiment" if group == "name" else group, value)
        elif hasattr(value, "name"):
            yield group, value.name
    # The shape of the model, which its name tells too, comes last: beyond the limit it is left out first.
    for group, value in sorted(groups.items(), key=lambda item: item[0] == "model"):
        if is_dataclass(value) and not isinstance(value, type) and group not in _BY_NAME_ONLY:
            yield from _options(group, value)


def _options(group: str, options: DataclassInstance) -> Iterator[tuple[str, str]]:
    for option in fields(options):
        value = getattr(options, option.name)
        default = option.default if option.default_factory is MISSING else option.default_factory()
        if option.name not in ("name", "description") and not (group in _ONLY_WHAT_DIFFERS and value == default):
            yield from _leaves(f"{group}.{option.name}", to_jsonable(value))


def _leaves(key: str, value: object) -> Iterator[tuple[str, str]]:
    match value:
        case None:
            return
        case Mapping():
            for name, item in value.items():
                yield from _leaves(f"{key}.{name}", item)
        case str():
            yield key, value
        case _:
            yield key, json.dumps(value)


def _plan_params(plan: Plan) -> dict[str, str]:
    layout = {key: value for key, value in to_jsonable(plan.layout).items() if key not in _OF_THE_RECIPE}
    values = {
        "nodes": layout.pop("nodes"),
        "ranks": plan.layout.ranks,
        "parameters": plan.parameters,
        "tokens_per_step": plan.tokens_per_step,
        "total_tokens": plan.total_tokens,
        **{f"layout.{key}": value for key, value in layout.items()},
    }
    return {key: json.dumps(value) for key, value in values.items()}


def _provenance_tags(provenance: Provenance | None) -> dict[str, str | None]:
    if provenance is None:
        return {}
    code = provenance.code
    versions = {f"himori.{name.replace('-', '_')}": version for name, version in provenance.versions.items()}
    git = {
        "mlflow.source.git.commit": code.commit if code else None,
        "mlflow.source.git.branch": code.branch if code else None,
        "mlflow.source.git.repoURL": code.remote if code else None,
        "himori.git.dirty": json.dumps(code.dirty) if code else None,
    }
    code_digest = {"himori.code": provenance.snapshot or None}
    user = {"mlflow.user": provenance.user or None}
    return {"himori.version": versions.pop("himori.himori", None), **versions, **git, **code_digest, **user}


def _environment_tags(environment: Mapping[str, object]) -> dict[str, str | None]:
    """What the workers saw; it stands before what the submitting machine has."""
    return {f"himori.{key}": str(environment[key]) for key in _ENVIRONMENT if environment.get(key) is not None}


def _binding_tag(facts: Facts, attempt: int) -> str | None:
    """RED as soon as one rank of one node is not where it was put; else all flags there are."""
    bindings = facts.bindings.get(attempt, {}).values()
    if any(binding.is_red for binding in bindings):
        return "RED"
    return ",".join(sorted(frozenset().union(*(binding.flags for binding in bindings)))) or None


def _drift_tag(facts: Facts, attempt: int) -> str | None:
    """Where nodes are not what the hardware profile expects, each difference with the nodes it is about."""
    nodes: dict[str, list[str]] = {}
    for node, binding in sorted(facts.bindings.get(attempt, {}).items()):
        for difference in binding.drift:
            nodes.setdefault(difference, []).append(node)
    return "; ".join(f"{what} ({hostlist.collect_hostlist(names)})" for what, names in nodes.items()) or None


def _quality_tags(facts: Facts, curves: Curves) -> dict[str, str | None]:
    first = curves.first_nonfinite_step
    quarantined = "; ".join(f"{key}: {why}" for key, why in sorted(curves.quarantined.items()))
    return {
        "train.first_nonfinite_step": None if first is None else str(first),
        "himori.repeats_differ": str(curves.repeats_differ) if curves.repeats_differ else None,
        "himori.damaged_lines": str(facts.damaged_lines) if facts.damaged_lines else None,
        "himori.quarantined": quarantined or None,
    }


def _telemetry_tags(facts: Facts, curves: Curves) -> dict[str, str | None]:
    """How hard the hardware was held down and what the run drew, over all attempts and nodes."""
    summaries = (totals.summary() for totals in facts.telemetry.values())
    total = combine(summary for summary in summaries if summary is not None)
    if total is None:
        return {}
    tokens = curves.last("train/consumed_tokens")
    energy_j = total.energy_j
    return {
        "himori.throttled": None if energy_j is None else throttle_text(total.throttled),
        "himori.energy_kwh": None if energy_j is None else f"{energy_j / JOULES_PER_KWH:.4g}",
        "himori.energy_j_per_token": f"{energy_j / tokens:.4g}" if energy_j is not None and tokens else None,
        "himori.gpu_faults": _faults(total),
    }


def _faults(total: TelemetrySummary) -> str | None:
    found = [
        f"XID {', '.join(map(str, sorted(set(total.xid))))}" if total.xid else "",
        f"{total.ecc_uncorrected} uncorrected memory errors" if total.ecc_uncorrected else "",
        f"{total.rdma_errors} RDMA errors" if total.rdma_errors else "",
    ]
    return "; ".join(filter(None, found)) or None


def _rows(experiment: Experiment, plan: Plan | None) -> Iterator[tuple[str, str]]:
    yield "model", experiment.model.name + (f", {plan.parameters:,} parameters" if plan else "")
    yield "hardware", f"{experiment.hardware.name} on {experiment.cluster.name}"
    yield "precision", experiment.precision.name
    if plan is None:
        return
    layout = plan.layout
    sizes = ("tp", "pp", "vp", "cp", "ep", "etp", "dp")
    yield "layout", f"{layout.nodes} nodes, " + ", ".join(f"{size} {getattr(layout, size)}" for size in sizes)
    yield "steps", f"{experiment.recipe.steps:,} of {plan.tokens_per_step:,} tokens"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _storable(value: str) -> str:
    """Text every database takes: what a process printed may hold NULs, and bytes that were no UTF-8."""
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def _shortened(value: str) -> str:
    """A tag MLflow stores whole; what is left out is said, and the run directory has all of it."""
    if len(value) <= MAX_TAG_LENGTH:
        return value
    note = f" ... ({len(value)} characters, the rest is in the run directory)"
    return value[: MAX_TAG_LENGTH - len(note)] + note
