"""The random numbers of a step."""

import traceback

import pytest
import torch

from algorun_train.loop.stepper import seed_step
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.world import World


def test_a_step_draws_numbers_of_its_own_and_seeds_no_device_that_is_not_there(monkeypatch):
    """torch.manual_seed keeps a stack trace for each kind of device that may come later."""
    monkeypatch.setattr(traceback, "format_stack", lambda *_: pytest.fail("seeds other devices"))
    drawn = []
    for seed, number, rank in ((1, 5, 0), (1, 5, 1), (1, 6, 0), (2, 5, 0)):
        comm = Communicator(World(rank, 2, rank, 2, True), torch.device("cpu"))
        seed_step(seed, number, comm)
        drawn.append(torch.rand(4).tolist())
        torch.default_generator.manual_seed(((seed * 1_000_003 + number) * 65_537 + rank) % 2**63)
        assert torch.rand(4).tolist() == drawn[-1]  # as earlier versions: their jobs resume with the same bits
    assert len(set(map(tuple, drawn))) == 4
