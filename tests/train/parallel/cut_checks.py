"""Helpers of the tests of cuts: a model cut and run beside the uncut one."""

from torch import nn

from algorun_train.parallel.cut.any_module import Cut, cut
from algorun_train.parallel.cut.found_cut import packed, unpacked
from tests.train import split_runs


def names(cutting):
    return [segment.name for segment in cutting.segments]


def elsewhere(cutting, model, example):
    """The cut as a rank has it that did not search."""
    told = Cut(model, example, unpacked(packed(cutting.found), model, example))
    assert (told.segments, told.output, told.refused) == (cutting.segments, cutting.output, cutting.refused)
    return told


def check(model, example, begins=None, **options):
    """Cuts, runs one stage per segment (or stages at `begins`), compares with the whole; returns the cutting."""
    cutting = elsewhere(cut(model, example, **{"stages": 2, **options}), model, example)
    begins = begins or list(range(len(cutting.segments)))
    stages = split_runs.cut_at(cutting, begins)
    split_runs.assert_equal(split_runs.whole(model, example), split_runs.split(stages, model, cutting.example))
    return cutting


class Sums(nn.Module):
    """Made of parts by name; `order` is its forward."""

    def __init__(self, order, **parts) -> None:
        super().__init__()
        self.order = order
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.order(self, x)


def linears(*names):
    return {name: nn.Linear(4, 4) for name in names}
