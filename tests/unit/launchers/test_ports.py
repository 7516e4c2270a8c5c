"""Where the supervisors of a job find each other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launchers.ports import candidate_ports, job_token, listen, node_socket_path
from pipeline.errors import ClusterError


def test_all_tasks_of_a_job_derive_the_same_ports_and_other_jobs_do_not() -> None:
    assert job_token("run", 1, "7") == job_token("run", 1, "7")
    assert len({job_token(run, attempt, job) for run in "ab" for attempt in (1, 2) for job in "78"}) == 8


def test_ports_are_distinct_and_below_those_linux_hands_out() -> None:
    for number in range(50):
        ports = candidate_ports(job_token("run", 1, str(number)))
        assert len(set(ports)) == len(ports)
        assert all(20000 <= port < 32768 for port in ports)


def test_a_taken_port_is_passed_over() -> None:
    ports = candidate_ports(job_token("run", os.getpid(), "ports"))
    first, taken = listen(ports, loopback=True)
    second, free = listen(ports, loopback=True)
    assert taken != free
    with pytest.raises(ClusterError, match=str(taken)):
        listen([taken, free], loopback=True)
    first.close()
    second.close()


def test_the_node_socket_is_ours_alone_and_short_enough() -> None:
    path = node_socket_path(job_token("run", os.getpid(), "socket"), "n1")
    try:
        assert path.parent.stat().st_mode & 0o077 == 0
        assert len(os.fsencode(path)) < 108
        other = node_socket_path(job_token("run", os.getpid(), "socket"), "n2")
        assert other != path, "nodes may share their temporary folder"
        other.parent.rmdir()
        Path(path.parent).chmod(0o755)
        with pytest.raises(ClusterError, match="open to others"):
            node_socket_path(job_token("run", os.getpid(), "socket"), "n1")
    finally:
        path.parent.rmdir()
