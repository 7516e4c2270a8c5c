"""Slurm's own commands: called with a time limit, read as rows."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from pipeline.errors import ClusterError

COMMAND_TIMEOUT_S = 30.0


def rows_of(command: Sequence[str]) -> list[list[str]]:
    """Rows of a query that may fail; it has none then."""
    try:
        return split_rows(run_command(command))
    except ClusterError:
        return []


def text_of(command: Sequence[str]) -> str:
    """What a query that may fail prints; nothing then."""
    try:
        return run_command(command)
    except ClusterError:
        return ""


def split_rows(text: str) -> list[list[str]]:
    """Fields of each line that is not empty."""
    return [line.split("|") for line in text.splitlines() if line]


def run_command(command: Sequence[str]) -> str:
    """What a command prints; raises ClusterError with its own words, or when it doesn't answer in time."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise ClusterError(f"{command[0]} is not on PATH; load Slurm's commands or use cluster=local") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{command[0]} did not answer within {COMMAND_TIMEOUT_S:g} s; try again") from error
    if done.returncode:
        raise ClusterError(f"{' '.join(command[:2])} failed: {last_line(done.stderr or done.stdout)}")
    return done.stdout


def last_line(text: str) -> str:
    """The line of a command's output that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if "error:" in line]
    return (said or lines or ["no reason given"])[-1]
