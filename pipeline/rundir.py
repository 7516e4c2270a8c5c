"""Names of all files of a run, and the only code that writes or reads them whole.

A file is written to a temporary name and then renamed, so a reader sees the old or the new one, never half of
it. Every JSON file carries the schema version; another version is refused by name rather than guessed at.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from pipeline.errors import RunDirError, RunNotFound, UserError
from pipeline.types import End, Experiment, Handle, Plan, Submission

if TYPE_CHECKING:
    import cattrs

SCHEMA_VERSION = 1

T = TypeVar("T")

# libyaml's, several times as fast, where PyYAML was built with it.
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_RUN_ID = re.compile(r"\d{8}-\d{6}-[A-Za-z0-9._-]+-[0-9a-f]{6}")


@dataclass(frozen=True, slots=True)
class AttemptDir:
    """One attempt of a run: everything a job writes."""

    path: Path

    @property
    def number(self) -> int:
        """1 for the first attempt."""
        return int(self.path.name)

    @property
    def job_script(self) -> Path:
        """The script as rendered from the submission, equal to what the launcher wrote."""
        return self.path / "job.sh"

    @property
    def handle_file(self) -> Path:
        """The launcher's name for the attempt; written before the job may start."""
        return self.path / "handle.json"

    @property
    def end_file(self) -> Path:
        """How the attempt ended; absent while it runs."""
        return self.path / "end.json"

    @property
    def cancel_file(self) -> Path:
        """Present once somebody asked for the end of the attempt through himori."""
        return self.path / "cancel.json"

    @property
    def journal_dir(self) -> Path:
        """One journal a node."""
        return self.path / "journal"

    @property
    def telemetry_dir(self) -> Path:
        """One journal a node of what its hardware did."""
        return self.path / "telemetry"

    @property
    def logs_dir(self) -> Path:
        """One log a node, the launcher's own files beside it."""
        return self.path / "logs"

    @property
    def binding_dir(self) -> Path:
        """One binding certificate a node."""
        return self.path / "binding"

    @property
    def profile_dir(self) -> Path:
        """What was measured of some steps, one file a rank."""
        return self.path / "profile"

    def stacks(self, rank: int) -> Path:
        """Where a rank's worker writes the stacks of its threads when it is asked to."""
        return self.path / "stacks" / f"rank-{rank}.txt"

    def journal(self, node: str) -> Path:
        """Journal of one node."""
        return self.journal_dir / f"{node}.jsonl"

    def telemetry(self, node: str) -> Path:
        """What the hardware of one node did, sampled beside the workers."""
        return self.telemetry_dir / f"{node}.jsonl"

    def log(self, node: str) -> Path:
        """What the ranks of one node printed, each line with its rank."""
        return self.logs_dir / f"{node}.log"

    def binding(self, node: str) -> Path:
        """Where the ranks of one node were put, as planned and as found."""
        return self.binding_dir / f"{node}.json"

    def bindings(self) -> list[Path]:
        """The binding certificates there are, nodes by name."""
        return sorted(self.binding_dir.glob("*.json"))

    def read_handle(self) -> Handle | None:
        """The handle, or None before submission was complete."""
        return read_optional(self.handle_file, Handle)

    def read_end(self) -> End | None:
        """The end, or None while it is not known."""
        return read_optional(self.end_file, End)


@dataclass(frozen=True, slots=True)
class RunDir:
    """One run: `runs/<run-id>`."""

    path: Path

    @property
    def run_id(self) -> str:
        """The directory's name."""
        return self.path.name

    @property
    def config_file(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def plan_file(self) -> Path:
        """The plan."""
        return self.path / "plan.json"

    @property
    def plan_text_file(self) -> Path:
        """The plan as it was printed."""
        return self.path / "plan.txt"

    @property
    def submission_file(self) -> Path:
        """The request that was submitted."""
        return self.path / "submission.json"

    @property
    def provenance_file(self) -> Path:
        """Code, versions and machine the run was submitted from."""
        return self.path / "provenance.json"

    @property
    def point_file(self) -> Path:
        """Which point of which sweep the run is; absent for a run of its own."""
        return self.path / "point.json"

    @property
    def record_file(self) -> Path:
        """What came of the run; made again from the other files when it is stale."""
        return self.path / "record.json"

    @property
    def reports_dir(self) -> Path:
        """Reports somebody kept with the run; they are uploaded with it."""
        return self.path / "reports"

    @property
    def notes_file(self) -> Path:
        """What people wrote about the run, a line each; only ever added to."""
        return self.path / "notes.jsonl"

    @property
    def tags_file(self) -> Path:
        """Tags people gave the run."""
        return self.path / "tags.json"

    @property
    def sync_file(self) -> Path:
        """How far tracking has come; owned by `pipeline.tracking`."""
        return self.path / "sync.json"

    def attempt(self, number: int) -> AttemptDir:
        """The directory of one attempt; not created."""
        return AttemptDir(self.path / "attempts" / str(number))

    def attempts(self) -> list[AttemptDir]:
        """Attempts there are, in order."""
        folder = self.path / "attempts"
        names = (entry.name for entry in folder.iterdir()) if folder.is_dir() else iter(())
        return [self.attempt(number) for number in sorted(int(name) for name in names if name.isdigit())]

    def last_attempt(self) -> AttemptDir | None:
        """The newest attempt, or None before one was prepared."""
        attempts = self.attempts()
        return attempts[-1] if attempts else None

    def read_experiment(self) -> Experiment:
        """The resolved configuration, typed."""
        return read_yaml(self.config_file, Experiment)

    def read_resumed_experiment(self) -> Experiment:
        """The configuration with the steps that the run was resumed with, where that was done."""
        experiment = self.read_experiment()
        steps = self.read_submission().steps if self.submission_file.exists() else None
        if steps is None:
            return experiment
        return replace(experiment, recipe=replace(experiment.recipe, steps=steps))

    def read_plan(self) -> Plan:
        """The plan."""
        return read_json(self.plan_file, Plan)

    def read_submission(self) -> Submission:
        """The submission."""
        return read_json(self.submission_file, Submission)


def new_run_id(name: str, now: datetime.datetime) -> str:
    """A run id that sorts by time and that two runs of one second don't share: `20260131-120000-demo-a1b2c3`."""
    return f"{now:%Y%m%d-%H%M%S}-{slug(name)}-{secrets.token_hex(3)}"


def slug(name: str) -> str:
    """`name` with everything but letters, digits, dot, underscore and dash replaced, at most 40 characters."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:40] or "run"


def create_run_dir(run_root: Path, name: str) -> RunDir:
    """Makes a new run directory; a name already taken is never reused.

    Raises UserError when the run root can't be written.
    """
    try:
        run_root.mkdir(parents=True, exist_ok=True)
        while True:
            path = run_root / new_run_id(name, datetime.datetime.now())
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return RunDir(path.resolve())
    except OSError as error:
        raise UserError(
            f"run_root: {run_root} can't be written ({error.strerror}); name another folder with run_root=DIR"
        ) from error


def list_runs(run_root: Path) -> Iterator[RunDir]:
    """Run directories of a run root, oldest first."""
    return (RunDir((run_root / name).resolve()) for name in run_names(run_root))


def run_names(run_root: Path) -> list[str]:
    """Ids of the runs of a run root, oldest first."""
    names = sorted(entry.name for entry in run_root.iterdir()) if run_root.is_dir() else []
    return [name for name in names if _RUN_ID.fullmatch(name)]


def find_run(run_root: Path, wanted: str) -> RunDir:
    """The run with this id, path, unique beginning or unique ending of an id; `last` is the newest.

    Raises RunNotFound naming what there is.
    """
    as_path = Path(wanted)
    if as_path.is_dir() and (as_path / "config.yaml").exists():
        return RunDir(as_path.resolve())
    runs = list(list_runs(run_root))
    if wanted == "last" and runs:
        return runs[-1]
    found = [run for run in runs if run.run_id == wanted] or [
        run for run in runs if run.run_id.startswith(wanted) or run.run_id.endswith(wanted)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise RunNotFound(f"run {wanted!r} is not unique: {_some(found)}; give more of the id")
    raise RunNotFound(f"no run {wanted!r} in {run_root}; there are: {_some(runs[::-1])}; see `himori status`")


def _some(runs: list[RunDir]) -> str:
    shown = ", ".join(run.run_id for run in runs[:5]) or "none"
    return shown + (f" and {len(runs) - 5} more" if len(runs) > 5 else "")


# --------------------------------------------------------------------------- whole files


@cache
def _converter() -> cattrs.Converter:
    import cattrs  # only where something is read or written: plan has to answer at once

    return cattrs.Converter(forbid_extra_keys=True)


def to_jsonable(value: Any) -> Any:
    """A dataclass as plain lists, dicts, strings and numbers (enums by value)."""
    return _converter().unstructure(value)


def from_jsonable(data: Any, kind: type[T]) -> T:
    """The inverse of `to_jsonable`; unknown and missing keys raise cattrs' errors."""
    return _converter().structure(data, kind)


def write_text(path: Path, text: str, *, mode: int = 0o644, durable: bool = True) -> None:
    """Writes a whole file under a temporary name, makes it durable, then renames it into place.

    Not `durable`: whoever writes thousands makes them so at once, with `make_durable`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def make_durable(folder: Path) -> None:
    """Returns once all that was written to the file system of `folder` would survive a crash of this machine."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            raise OSError(ctypes.get_errno(), f"syncfs {folder}")
    finally:
        os.close(descriptor)


def json_text(value: Any) -> str:
    """A dataclass (or plain data) with the schema version, as files hold it."""
    return json.dumps({"schema": SCHEMA_VERSION, "data": to_jsonable(value)}, indent=1) + "\n"


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Writes a dataclass (or plain data) with the schema version."""
    write_text(path, json_text(value), durable=durable)


def read_json(path: Path, kind: type[T]) -> T:
    """Reads what `write_json` wrote; raises RunDirError naming the file when it can't."""
    return _structure(path, _parse(path, json.loads), kind)


def yaml_text(value: Any) -> str:
    """A dataclass as YAML with the schema version first."""
    document = {"schema": SCHEMA_VERSION, **to_jsonable(value)}
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def write_yaml(path: Path, value: Any) -> None:
    """Writes a dataclass as YAML with the schema version first."""
    write_text(path, yaml_text(value))


def read_yaml(path: Path, kind: type[T]) -> T:
    """Reads what `write_yaml` wrote; raises RunDirError naming the file when it can't."""
    document = _parse(path, lambda text: yaml.load(text, _Loader))
    if not isinstance(document, dict):
        raise RunDirError(f"{path}: not a mapping")
    return _structure(path, {"schema": document.pop("schema", None), "data": document}, kind)


def read_optional(path: Path, kind: type[T]) -> T | None:
    """Reads what `write_json` wrote, or None where there is no such file."""
    try:
        return read_json(path, kind)
    except FileNotFoundError:
        return None


def _parse(path: Path, parse: Any) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise RunDirError(f"{path}: can't be read: {error}") from error


def _structure(path: Path, document: Any, kind: type[T]) -> T:
    version = document.get("schema") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise RunDirError(f"{path}: schema version {version}, this himori reads {SCHEMA_VERSION}")
    try:
        return from_jsonable(document["data"], kind)
    except Exception as error:
        import cattrs

        detail = "; ".join(cattrs.transform_error(error))
        raise RunDirError(f"{path}: does not hold a {kind.__name__}: {detail}") from error
