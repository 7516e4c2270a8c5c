"""Fixtures of all tests: the places a run can be submitted to."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import Site
from support.cluster import DevCluster, cluster_with_looks, running_cluster

SLURM_TESTS = Path(__file__).resolve().parent / "slurm"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all that needs the cluster, before `-m` chooses."""
    for item in items:
        if SLURM_TESTS in item.path.parents:
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def local_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """This machine through the local launcher."""
    site = Site(name="local", run_root=tmp_path_factory.mktemp("local") / "runs", overrides=("cluster=local",))
    yield site
    site.end_everything()


@pytest.fixture(scope="session")
def cluster() -> Iterator[DevCluster]:
    """The development cluster."""
    yield from running_cluster()


@pytest.fixture(scope="session")
def slurm_site(cluster: DevCluster) -> Iterator[Site]:
    """The development cluster through Slurm; its run root is a folder that every node sees."""
    root = Path(tempfile.mkdtemp(dir=cluster.state / "jobs"))
    environment = {"SLURM_CONF": cluster.env["SLURM_CONF"]}
    site = Site(name="slurm", run_root=root / "runs", overrides=("cluster=dev",), environment=environment)
    yield site
    site.end_everything()


@pytest.fixture(scope="session")
def look_cluster() -> Iterator[DevCluster]:
    """A second cluster, whose nodes look like GPU servers."""
    yield from cluster_with_looks()


@pytest.fixture(scope="session")
def look_site(look_cluster: DevCluster) -> Iterator[Site]:
    """The nodes with looks through Slurm."""
    root = Path(tempfile.mkdtemp(dir=look_cluster.state / "jobs"))
    environment = {"SLURM_CONF": look_cluster.env["SLURM_CONF"]}
    site = Site(name="looks", run_root=root / "runs", overrides=("cluster=slurm",), environment=environment)
    yield site
    site.end_everything()


@pytest.fixture
def shared_path(cluster: DevCluster) -> Path:
    """A fresh directory that every node sees; `tmp_path` is below /tmp, which private nodes don't share."""
    return Path(tempfile.mkdtemp(dir=cluster.state / "jobs"))
