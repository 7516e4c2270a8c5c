"""How much a Slurm cluster takes from one user: size of arrays, and how many jobs may wait at once."""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from launchers.slurm_commands import rows_of, text_of
from pipeline.types import Submission

DEFAULT_ARRAY_SIZE = 1001


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What may be submitted now."""

    array_size: int
    """Elements of one array; the largest index is one less."""
    room: int | None
    """Jobs that may still be submitted; None: as many as one likes."""
    named: str
    """The limit that `room` comes from, in the site's own words; empty without one."""


def read_limits(submission: Submission) -> Limits:
    """Asks the controller and, where there is one, the accounting database; what doesn't answer sets no limit."""
    config = dict(_configuration())
    array_size = int(config.get("MaxArraySize", DEFAULT_ARRAY_SIZE))
    found = list(_submit_limits(submission, config))
    if not found:
        return Limits(array_size=array_size, room=None, named="")
    queued = len(rows_of(["squeue", "--noheader", "--array", "--user", getpass.getuser(), "--format", "%i"]))
    name, limit = min(found, key=lambda item: item[1])
    return Limits(array_size=array_size, room=max(0, limit - queued), named=f"{name} {limit}, {queued} in the queue")


def _configuration() -> Iterator[tuple[str, str]]:
    for line in text_of(["scontrol", "show", "config"]).splitlines():
        key, _, value = line.partition("=")
        yield key.strip(), value.strip()


def _submit_limits(submission: Submission, config: dict[str, str]) -> Iterator[tuple[str, int]]:
    """(name, limit) of each limit on jobs that one user may have in the queue."""
    options = dict(submission.sbatch)
    if config.get("MaxJobCount", "").isdigit():
        yield "MaxJobCount", int(config["MaxJobCount"])
    user = getpass.getuser()
    where = ["where", f"user={user}", *([f"account={options['account']}"] if "account" in options else [])]
    fields = "Account,MaxSubmitJobs,GrpSubmitJobs,DefaultQOS"
    associations = rows_of(["sacctmgr", "--noheader", "--parsable2", "show", "assoc", *where, f"format={fields}"])
    for row in associations:
        yield from _numbers([f"MaxSubmitJobs of account {row[0]}", f"GrpSubmitJobs of account {row[0]}"], row[1:3])
    wanted = {options.get("qos") or next((row[3] for row in associations if row[3]), "normal")}
    wanted |= _partition_qos(options.get("partition"))
    fields = "Name,MaxSubmitJobsPerUser,MaxSubmitJobsPerAccount,GrpSubmitJobs"
    for row in rows_of(["sacctmgr", "--noheader", "--parsable2", "show", "qos", f"format={fields}"]):
        if row[0] in wanted:
            names = ("MaxSubmitJobsPerUser", "MaxSubmitJobsPerAccount", "GrpSubmitJobs")
            yield from _numbers([f"{name} of QOS {row[0]}" for name in names], row[1:4])


def _numbers(names: Sequence[str], values: Sequence[str]) -> Iterator[tuple[str, int]]:
    for name, value in zip(names, values, strict=True):
        if value.isdigit():
            yield name, int(value)


def _partition_qos(partition: str | None) -> set[str]:
    """QOS of the partition itself, of the default one where none is named."""
    text = text_of(["scontrol", "--oneliner", "show", "partition", *([partition] if partition else [])])
    lines = text.splitlines() if partition else [line for line in text.splitlines() if "Default=YES" in line]
    found = {match[1] for line in lines if (match := re.search(r"\bQoS=(\S+)", line))}
    return found - {"N/A"}
