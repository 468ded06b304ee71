"""Weights that several stages use, such as a head tied to the embeddings: each has a copy, and the copies train as one.

The gradient of such a weight is the sum over the stages that use it. Stages on one rank hold the same parameter, in which
autograd adds up. Copies on several ranks begin equal, and get equal gradients once per step: with equal optimizers they
stay equal to the last bit, and where ranks round differently they are made so. If a
script changes one copy, the next step raises an error; on a GPU, the step after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn

from algorun_train.errors import UserError
from algorun_train.parallel.segments import Cutting
from algorun_train.ranks.device_copies import ReadBack
from algorun_train.ranks.join import COLLECTIVE_TIMEOUT

from .process_groups import Axes

ROUNDING = 64  # units of it in the largest element that copies may be apart: a few steps' worth
PRIME = 251  # fingerprints below it are exact in every floating-point type
WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


@dataclass(frozen=True, slots=True)
class Shared:
    """A weight that several stages use, by its first name. The first of the stages owns it: it counts and saves it."""

    name: str
    stages: tuple[int, ...]


def shared_weights(cutting: Cutting, begins: Sequence[int]) -> tuple[Shared, ...]:
    """The weights that several stages use, where these begin at the segments `begins`."""
    ends = [*begins[1:], len(cutting.segments)]
    users: dict[str, list[int]] = {}
    for index, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        for name in dict.fromkeys(name for segment in cutting.segments[begin:end] for name in segment.parameters):
            users.setdefault(name, []).append(index)
    return tuple(Shared(name, tuple(stages)) for name, stages in users.items() if len(stages) > 1)


class Ties:
    """The copies of this rank. `holder` says which rank of the pipeline has each stage, `weights` are this rank's.

    Made on all ranks of the job. Copies get the values of their owner.
    """

    def __init__(
        self, shared: Iterable[Shared], holder: Mapping[int, int], axes: Axes, weights: Mapping[str, nn.Parameter]
    ) -> None:
        sets: dict[tuple[int, ...], list[Shared]] = {}
        for each in shared:
            ranks = tuple(sorted({holder[stage] for stage in each.stages}))
            if len(ranks) > 1:
                sets.setdefault(ranks, []).append(each)
        self.across_ranks = bool(sets)
        """whether any weight has copies on several ranks of the pipeline"""
        self._tied: list[_Tied] = []
        self._foreign: set[nn.Parameter] = set()  # copies whose owner is another rank
        for ranks in sorted(sets):
            group = _group(ranks, axes)
            for each in sets[ranks] if axes.pp_rank in ranks else ():
                weight, owner = weights[each.name], holder[each.stages[0]]
                dist.broadcast(weight.detach(), group=group, group_src=ranks.index(owner))
                if owner != axes.pp_rank:
                    self._foreign.add(weight)
                tied = self._of(group, ranks.index(axes.pp_rank), len(ranks), weight.dtype)
                tied.weights.append((each.name, weight))
        self._open = False  # there are gradients that are not summed yet

    def begin(self) -> None:
        """Before the passes of a step. A sum that is still there, for this step to add to, stays with the owner alone:
        it would count as often as there are copies."""
        if not self._open:
            for weight in self._foreign:
                weight.grad = None
        self._open = True

    def finish(self) -> None:
        """After the passes of all steps that add up: gradients of the copies are summed. One collective for each set of
        ranks that hold the same weights. UserError on these where the weights are no longer the same, beyond rounding."""
        for tied in self._tied:
            tied.sum()
        self._open = False

    def counted(self, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """`parameters` without copies that another rank owns: those of all ranks together are each weight once."""
        return [parameter for parameter in parameters if parameter not in self._foreign]

    def _of(self, group: dist.ProcessGroup, rank: int, size: int, dtype: torch.dtype) -> _Tied:
        for tied in self._tied:
            if (tied.group, tied.dtype) == (group, dtype):
                return tied
        self._tied.append(_Tied(group, rank, size, dtype, []))
        return self._tied[-1]


@dataclass(slots=True)
class _Tied:
    """Weights of one type, by name, that the same `size` ranks hold; this one is number `rank` of them."""

    group: dist.ProcessGroup
    rank: int
    size: int
    dtype: torch.dtype
    weights: list[tuple[str, nn.Parameter]]
    _apart: ReadBack[list[tuple[str, nn.Parameter]]] = field(default_factory=ReadBack, init=False)

    def sum(self) -> None:
        """Gradients are then equal to the last bit on all of the ranks; None where they were on all.

        A GPU is waited for only where this rank has no gradient for a weight: the others have to say whether they do.
        """
        trained = [(name, weight) for name, weight in self.weights if weight.requires_grad]
        weights, count = [weight for _, weight in trained], len(trained)
        if not weights:
            return
        mine_there = [weight.grad is not None for weight in weights]
        there = torch.stack([weights[0].new_full((), float(each)) for each in mine_there])
        prints = torch.stack([_fingerprint(weight) for weight in weights])
        mine = torch.cat([*(_flat(weight) for weight in weights), there, -prints if self.rank else prints])
        if self.size == 2:  # a + b is b + a
            dist.all_reduce(mine, group=self.group)
            total, apart = mine, mine[-count:]
        else:
            rows = [torch.empty_like(mine) for _ in range(self.size)]
            dist.all_gather(rows, mine, group=self.group)
            apart = torch.stack([(row[-count:] + rows[0][-count:]).abs() for row in rows[1:]]).amax(0)
            total = rows[0]
            for row in rows[1:]:
                total += row
        *sums, users = total[:-count].split([*(weight.numel() for weight in weights), count])
        read = self._apart.turn(apart, trained)
        for different, (name, weight) in zip(*read, strict=True) if read else ():
            if different:
                self._make_equal(name, weight)
        used = mine_there if all(mine_there) else users.tolist()
        for weight, gradient, wanted in zip(weights, sums, used, strict=True):
            weight.grad = gradient.view_as(weight) if wanted else None

    def _make_equal(self, name: str, weight: nn.Parameter) -> None:
        """Rounding may differ between ranks (processors of two kinds, other numbers of threads): all get the first one's
        values. UserError on all where more differs."""
        first = weight.detach().clone()
        dist.broadcast(first, group=self.group, group_src=0)
        rounding = ROUNDING * torch.finfo(weight.dtype).eps * first.abs().max()
        more = (~((weight.detach() - first).abs().max() <= rounding)).float()  # NaN is more
        dist.all_reduce(more, dist.ReduceOp.MAX, group=self.group)
        if more:
            raise UserError(
                f"weight {name}, which several stages use, is no longer the same on the ranks that hold it; allowed: "
                "equal changes on all of them; fix: clip gradients over all stages (torch's own functions see one "
                "rank's), and change weights on all ranks alike"
            )
        with torch.no_grad():
            weight.copy_(first)


def _fingerprint(weight: torch.Tensor) -> torch.Tensor:
    """A number that another content has too once in PRIME times, whatever order the machine adds in."""
    words = weight.detach().flatten().view(WORDS.get(weight.element_size(), torch.uint8))
    return (words.sum(dtype=torch.int64) % PRIME).to(weight.dtype)


def _flat(weight: nn.Parameter) -> torch.Tensor:
    return (torch.zeros_like(weight) if weight.grad is None else weight.grad).detach().flatten()


def _group(ranks: tuple[int, ...], axes: Axes) -> dist.ProcessGroup:
    """The group of these ranks of this pipeline; another one's for a rank outside. Every rank makes every group."""
    grid = axes.grid
    if len(ranks) == grid.pp:
        assert axes.pp_group is not None
        return axes.pp_group
    made = [
        dist.new_group([pipeline[rank] for rank in ranks], timeout=COLLECTIVE_TIMEOUT) for pipeline in grid.pipelines
    ]
    return made[axes.dp_rank]
