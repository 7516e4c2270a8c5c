"""What becomes of a plan: submission, handle, end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from pipeline.types.cluster import LauncherKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """The exact thing that will run: what `plan` prints and `submit` executes."""

    launcher: LauncherKind
    job_name: str
    comment: str
    """Ties a job in the queue to its run: `himori:<run-id>`."""
    run_dir: str
    attempt: int
    nodes: int
    ranks_per_node: int
    python: str
    time_limit_min: int
    setup: tuple[str, ...]
    sbatch: tuple[tuple[str, str], ...]
    """sbatch options by long name, sorted; an empty value is a bare flag."""
    srun: tuple[str, ...]
    """Further arguments of srun."""
    task_python: str = ""
    """The tasks' interpreter where it is another one, as inside an image."""
    code_dir: str = ""
    """The snapshot of himori's own code that the job runs; empty: what is installed there."""
    batch_dir: str = ""
    """Folder of the sweep's batch whose job array the run is part of; empty: the run is a job of its own."""
    index: int | None = None
    """The run's place in that array."""
    teardown: tuple[str, ...] = ()
    """Shell lines after srun, on the first node."""
    steps: int | None = None
    """Steps to train to, where they were changed when the run was resumed; None: those of its recipe."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """A submitted attempt, by the name its launcher knows it by."""

    run_id: str
    attempt: int
    launcher: LauncherKind
    job_id: str
    """Slurm job id, or the session id of a local run."""
    submitted_at: float
    """Seconds since the epoch."""
    boot_id: str = ""
    """Local runs: the boot in which `job_id` means this run."""
    start_ticks: int = 0
    """Local runs: start time of the session's first process in clock ticks since boot."""
    waits: bool = False
    """Local points of a sweep: `job_id` is the session that will start the run in its turn."""
    restarts: int = 0
    """How many attempts the same job had before this one."""


class WorkerCode(IntEnum):
    """Exit codes by which a worker says of what kind its end is; those of other errors are in `pipeline.errors`."""

    user_error = 2
    failed = 5
    refused = 7
    interrupted = 75
    """It was told to end early and saved first (a temporary failure in sysexits.h's words)."""
    numerics = 76
    hardware = 77
    """The same step gave something else when it was run again."""
    network = 78
    """Ranks did not find each other."""


class RunState(Enum):
    """What a person would call the state of a run."""

    prepared = "PREPARED"
    """Files are written, nothing was submitted."""
    held = "HELD"
    """In the queue, but the submission was not completed."""
    queued = "QUEUED"
    running = "RUNNING"
    finished = "FINISHED"
    failed = "FAILED"
    cancelled = "CANCELLED"
    timeout = "TIMEOUT"
    preempted = "PREEMPTED"
    """Ended before its time to make room; it can be gone on from."""
    unknown = "UNKNOWN"
    """Gone without a word from it or from the scheduler."""

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to the run by itself."""
        return self in _FINAL


_FINAL = frozenset(
    {
        RunState.finished,
        RunState.failed,
        RunState.cancelled,
        RunState.timeout,
        RunState.preempted,
        RunState.unknown,
    }
)


class Cause(Enum):
    """Of what kind the early end of an attempt was; `launchers.policy` says what is done about each."""

    user_error = "user_error"
    cuda_oom = "cuda_oom"
    host_oom = "host_oom"
    numerics = "numerics"
    network = "network"
    gpu_fault = "gpu_fault"
    hang = "hang"
    preempted = "preempted"
    timeout = "timeout"
    node_failure = "node_failure"
    cancelled = "cancelled"
    unknown = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankExit:
    """How one rank's worker ended."""

    rank: int
    node: str
    exit_code: int | None
    """None when a signal ended it or when nobody saw the end."""
    signal: int | None
    stopped: bool
    """True when its supervisor had told it to stop."""
    tail: tuple[str, ...]
    """The last lines it printed."""
    time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """How an attempt ended and why."""

    state: RunState
    message: str
    """One line for people: which rank, what, where."""
    first: RankExit | None
    """The exit that brought the attempt down; None when none did."""
    time: float
    slurm_state: str = ""
    """The scheduler's own word for it, where it was asked."""
    cause: Cause | None = None
    """Of what kind the end was; None: all ranks finished."""
    step: int | None = None
    """Step of the newest whole checkpoint at the end; None: there is none."""
    suspects: tuple[str, ...] = ()
    """Nodes that the cause points to: the next attempt keeps away from them."""
    continues: bool = False
    """Whether another attempt was asked for."""
    decided_by_scheduler: bool = False
    """A signal ended it that may mean the end of the run or another attempt: only the scheduler knows."""
