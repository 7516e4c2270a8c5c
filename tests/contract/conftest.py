"""Every launcher as a place for the contract."""

from __future__ import annotations

import pytest
from support.cli import Site


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.slurm)])
def site(request: pytest.FixtureRequest) -> Site:
    """Local first, then the development cluster."""
    found: Site = request.getfixturevalue(f"{request.param}_site")
    return found
