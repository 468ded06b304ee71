"""The parts of an optimizer's state, without ranks."""

from __future__ import annotations

import pytest
import torch

from algorun_smdistributed.signatures.optimizer_state import StatePart, merged, numbers_of, part_of
from algorun_train.common.errors import UserError


def part(numbers, copies=()):
    state = {number: {"step": float(number)} for number in numbers}
    return StatePart({"state": state, "param_groups": ["of all"]}, copies)


def test_parts_of_all_ranks_make_the_state_of_the_whole_model():
    whole = merged([part([0, 1]), part([2])], "build it right")
    assert whole == {"state": {0: {"step": 0.0}, 1: {"step": 1.0}, 2: {"step": 2.0}}, "param_groups": ["of all"]}


def test_a_copy_of_another_ranks_weight_counts_once():
    assert list(merged([part([0, 1]), part([0, 2], copies=[0])], "")["state"]) == [0, 1, 2]
    assert list(part([0, 2], copies=[0]).without_copies().state["state"]) == [2]


def test_two_ranks_with_the_same_parameter_are_refused():
    with pytest.raises(UserError, match=r"^optimizer: two ranks have state of parameter 1; .*; fix: build it right, "):
        merged([part([0, 1]), part([1])], "build it right")


class HalfOfIt:
    """A rank's part of a model of two weights."""

    def __init__(self, *parameters):
        self._parameters = parameters

    def named_parameters(self):
        return ((str(number), each) for number, each in enumerate(self._parameters))


def test_numbers_are_those_of_the_parameters_on_this_rank():
    first, second = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [first]}, {"params": [second]}], lr=0.1)
    assert numbers_of(optimizer, None) == {0, 1}
    assert numbers_of(optimizer, HalfOfIt(second)) == {1}
    assert not part_of(optimizer, {}, None).is_of_one_rank
    assert not part_of(optimizer, {}, HalfOfIt(second)).is_of_one_rank
    assert part_of(optimizer, {}, HalfOfIt(first, second)).is_of_one_rank
