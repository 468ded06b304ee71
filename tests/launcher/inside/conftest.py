"""Ranks without a launcher, for the tests of what happens inside them."""

from __future__ import annotations

import pytest

from .rank_processes import RankProcesses, write_light_torch


@pytest.fixture
def rank(tmp_path):
    processes = RankProcesses(tmp_path)
    yield processes
    processes.close()


@pytest.fixture
def light(rank):
    """Ranks whose torch is a file in their own folder."""
    write_light_torch(rank.code)
    return rank
