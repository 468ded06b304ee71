"""Gloo's ranks connect one by one, and torch has no barrier after that: nobody may leave before all are connected."""

from __future__ import annotations

import datetime
from pathlib import Path

import torch

from algorun_train.ranks import communicator
from algorun_train.ranks.world import World
from tests.train.training_runs import Ranks

PROGRAM = Path(__file__).parents[1] / "programs" / "late_connections.py"


def test_ranks_leave_when_the_last_one_is_connected(tmp_path):
    """Which of two ranks opens their connection goes by their ports: without a meeting this fails three times in four."""
    with Ranks(tmp_path, 1, 4, [], str(PROGRAM)) as run:
        codes = run.codes()
        said = [run.text(rank) for rank in range(4)]
    assert (codes, said) == ([0] * 4, ["left\n"] * 4), "\n".join(said)


def test_ranks_leave_a_group_with_a_limit_of_its_own_when_all_are_in_it(monkeypatch):
    """An object goes down a tree of ranks: with eight, some have it before the last one has joined the group."""
    calls = []

    class Torch:
        def __getattr__(self, name):
            return lambda *_, **__: calls.append(name)

    class Channel:
        def __init__(self, *_):
            pass

        def share(self, mine, *_):
            calls.append("share")
            return mine

    monkeypatch.setattr(communicator, "dist", Torch())
    monkeypatch.setattr(communicator, "ObjectChannel", Channel)
    monkeypatch.setattr(Torch, "new_group", lambda *_, **__: calls.append("new_group") or "the group", raising=False)
    comm = communicator.Communicator(World(0, 8, 0, 8, True), torch.device("cpu"))
    assert comm.from_leader(lambda: 5, datetime.timedelta(seconds=1)) == 5
    assert calls == ["all_gather", "new_group", "share", "all_gather", "destroy_process_group"]
