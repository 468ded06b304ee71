"""A partition that leaves nearly everything in one stage is told, with the reason."""

import dataclasses

import pytest
import torch
from torch import nn

from algorun_train.parallel.cut.any_module import cut
from algorun_train.parallel.partition.costs import SegmentProfile
from algorun_train.parallel.partition.imbalance import warning
from tests.train.parallel.shapes import chosen


class Body(nn.Module):
    """Looks at what comes in before the first layer."""

    def __init__(self, count):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))

    def forward(self, x):
        if x.isnan().any():
            raise ValueError("not a number")
        for layer in self.layers:
            x = layer(x).relu()
        return x


class Looking(nn.Module):
    def __init__(self):
        super().__init__()
        self.start, self.body, self.head = nn.Linear(4, 4), Body(3), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(self.start(x)))


def costs(cutting, seconds):
    """Segments that take a second per unit, or what `seconds` says."""
    return [
        SegmentProfile(s.name, s.units, *[seconds.get(s.name, len(s.units)) / 2] * 2, 1, 1, 1) for s in cutting.segments
    ]


def said(cutting, seconds, optimize="speed", stages=2):
    segments = costs(cutting, seconds)
    return warning(chosen(segments, stages, 1, 4, "1f1b", optimize), segments, cutting.refused, optimize)


def test_the_stage_its_share_and_what_stands_against_a_cut_are_named():
    cutting = cut(Looking(), torch.randn(2, 4), stages=2)
    assert [segment.units for segment in cutting.segments][-1] == ("head",)
    uncut = next(segment for segment in cutting.segments if "body.layers.2" in segment.units)
    text = said(cutting, {"head": 1.0, uncut.name: 18.0})
    assert text.startswith("warning: stage 0 of 2 (")
    assert "(start .. body.layers.2) has 95% of the planned time" in text
    assert (
        "; the model cannot be cut at body.layers.0 (nor at 2 more): in training, the forward looks at values" in text
    )


@pytest.mark.parametrize(("share", "told"), [(0.79, False), (0.81, True)])
def test_the_limit_is_four_fifths(share, told):
    cutting = cut(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(2, 4), stages=2)
    text = said(cutting, {"0": share, "1": 1 - share})
    assert (text is not None) is told
    assert text is None or text.endswith("0 is one unit, which cannot be cut")


def test_a_split_for_memory_says_what_it_went_by():
    cutting = cut(nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)]), torch.randn(2, 4), stages=2)
    segments = [dataclasses.replace(s, parameter_bytes=100 if s.name == "3" else 1) for s in costs(cutting, {"3": 0.1})]
    decision = chosen(segments, 2, 1, 4, "1f1b", "memory")
    assert decision.begins == (0, 3)
    assert "optimize speed goes by time" in warning(decision, segments, cutting.refused, "memory")
    assert warning(chosen(segments, 2, 1, 4, "1f1b"), segments, cutting.refused) is None


def test_one_stage_is_no_split():
    cutting = cut(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(2, 4), stages=1)
    assert said(cutting, {}, stages=1) is None
