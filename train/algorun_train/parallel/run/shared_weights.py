"""Weights that several stages use, such as a head tied to the embedding: equal on all ranks that have them.

The gradient of such a weight is the sum over the stages that use it. Stages on one rank have the same parameter object, and
autograd adds up. On several ranks each has a parameter of its own: they begin equal and get equal gradients once per step,
so equal optimizers keep them equal to the last bit. Of a weight that is sharded each has the same share. If ranks round
differently, they are made equal again. If a script changes the weight on one rank only, the next step raises an error; on a
GPU, the step after the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.parallel.model.model_stages import ModelStages
from algorun_train.parallel.shard.sharded_model import laid_out, local
from algorun_train.ranks.device_copies import ReadBack
from algorun_train.ranks.join import COLLECTIVE_TIMEOUT

from .process_groups import Axes

# Ranks may differ by this many roundings of the largest element: several steps' worth.
ROUNDING = 64
PRIME = 251  # fingerprints below it are exact in every floating-point type
WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


@dataclass(frozen=True, slots=True)
class SharedWeight:
    """A weight that several stages use, by its first name. The first of the stages owns it: it counts and saves it."""

    name: str
    stages: tuple[int, ...]


def shared_weights(model: ModelStages) -> tuple[SharedWeight, ...]:
    """The weights that several stages of the model use. Pure."""
    users: dict[str, list[int]] = {}
    for index, segments in enumerate(model.segments()):
        for name in dict.fromkeys(name for segment in segments for name in segment.parameters):
            users.setdefault(name, []).append(index)
    return tuple(SharedWeight(name, tuple(stages)) for name, stages in users.items() if len(stages) > 1)


class SharedWeights:
    """The shared weights of one pipeline, as this rank has them."""

    def __init__(
        self,
        shared: Sequence[SharedWeight],
        rank_of_stage: Sequence[int],
        axes: Axes,
        weights: Mapping[str, nn.Parameter],
    ) -> None:
        """Call it on all ranks of the job: it makes process groups, and sends each owner's values to the other ranks.

        `weights` are this rank's parameters by name.
        """
        self.uses: dict[nn.Parameter, int] = {}
        """how often one backward pass adds to a weight, if more than once: several stages of this rank use it"""
        by_ranks: dict[tuple[int, ...], list[SharedWeight]] = {}
        for each in shared:
            ranks = tuple(sorted({rank_of_stage[stage] for stage in each.stages}))
            if len(ranks) > 1:
                by_ranks.setdefault(ranks, []).append(each)
            here = sum(rank_of_stage[stage] == axes.pp_rank for stage in each.stages)
            if here > 1 and axes.grid.pp > 1:
                self.uses[weights[each.name]] = here
        self.across_ranks = bool(by_ranks)
        """whether several ranks of the pipeline have the same weight"""
        self._sets: list[_WeightsOfRanks] = []
        self._not_owned: set[nn.Parameter] = set()  # another rank of the pipeline owns them
        for ranks in sorted(by_ranks):
            group = _group(ranks, axes)
            for each in by_ranks[ranks] if axes.pp_rank in ranks else ():
                weight, owner = weights[each.name], rank_of_stage[each.stages[0]]
                dist.broadcast(local(weight).detach(), group=group, group_src=ranks.index(owner))
                if owner != axes.pp_rank:
                    self._not_owned.add(weight)
                self._set(group, ranks.index(axes.pp_rank), len(ranks), weight.dtype).weights.append(
                    (each.name, weight)
                )
        self._unsummed = False  # there are gradients that are not summed yet

    def begin(self) -> None:
        """Call it before the passes of a step. Gradients that were summed before stay with the owner alone: this step
        adds to them, and on every rank they would count again."""
        if not self._unsummed:
            for weight in self._not_owned:
                weight.grad = None
        self._unsummed = True

    def finish(self) -> None:
        """Sums the gradients, after the passes of all steps that add up. Call it on all ranks of the pipeline.

        One collective for each set of ranks that have the same weights. Raises UserError on these ranks if their weights
        differ by more than rounding.
        """
        for each in self._sets:
            each.sum()
        self._unsummed = False

    def owned(self, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """`parameters` without the weights that another rank owns. Over all ranks of the pipeline each weight is in it
        once."""
        return [parameter for parameter in parameters if parameter not in self._not_owned]

    def _set(self, group: dist.ProcessGroup, rank: int, size: int, dtype: torch.dtype) -> _WeightsOfRanks:
        for each in self._sets:
            if (each.group, each.dtype) == (group, dtype):
                return each
        self._sets.append(_WeightsOfRanks(group, rank, size, dtype, []))
        return self._sets[-1]


@dataclass(slots=True)
class _WeightsOfRanks:
    """Shared weights of one type, by name, that the same `size` ranks have; this rank is number `rank` of them."""

    group: dist.ProcessGroup
    rank: int
    size: int
    dtype: torch.dtype
    weights: list[tuple[str, nn.Parameter]]
    _difference: ReadBack[list[tuple[str, nn.Parameter]]] = field(default_factory=ReadBack, init=False)

    def sum(self) -> None:
        """Sums the gradients: they are then equal to the last bit on all of the ranks, and None if all had none.

        It waits for a GPU only if this rank has no gradient for a weight: it has to read whether the others have one.
        """
        trained = [(name, weight) for name, weight in self.weights if weight.requires_grad]
        weights, count = [weight for _, weight in trained], len(trained)
        if not weights:
            return
        has_gradient = [weight.grad is not None for weight in weights]
        held = [local(weight) for weight in weights]
        flags = torch.stack([held[0].new_full((), float(each)) for each in has_gradient])
        prints = torch.stack([_fingerprint(weight) for weight in held])
        mine = torch.cat([*(_flat(weight) for weight in weights), flags, -prints if self.rank else prints])
        if self.size == 2:  # a + b is b + a
            dist.all_reduce(mine, group=self.group)
            total, difference = mine, mine[-count:]
        else:
            rows = [torch.empty_like(mine) for _ in range(self.size)]
            dist.all_gather(rows, mine, group=self.group)
            difference = torch.stack([(row[-count:] + rows[0][-count:]).abs() for row in rows[1:]]).amax(0)
            total = rows[0]
            for row in rows[1:]:
                total += row
        *sums, users = torch.split(total[:-count], [*(weight.numel() for weight in held), count])
        read = self._difference.turn(difference, trained)
        for different, (name, weight) in zip(*read, strict=True) if read else ():
            if different:
                self._make_equal(name, weight)
        used = has_gradient if all(has_gradient) else users.tolist()
        for weight, share, gradient, wanted in zip(weights, held, sums, used, strict=True):
            weight.grad = laid_out(gradient.view_as(share), weight) if wanted else None

    def _make_equal(self, name: str, weight: nn.Parameter) -> None:
        """All ranks get the first one's values. Raises UserError on all if they differ by more than rounding, which may
        differ between ranks (processors of two kinds, other numbers of threads)."""
        share = local(weight).detach()
        first = share.clone()
        dist.broadcast(first, group=self.group, group_src=0)
        rounding = ROUNDING * torch.finfo(weight.dtype).eps * first.abs().max()
        more = (~((share - first).abs().max() <= rounding)).float()  # NaN is more
        dist.all_reduce(more, dist.ReduceOp.MAX, group=self.group)
        if more:
            raise UserError(
                f"weight {name}, which several stages use, is no longer the same on the ranks that hold it; allowed: "
                "equal changes on all of them; fix: clip gradients over all stages (torch's own functions see one "
                "rank's), and change weights on all ranks alike"
            )
        with torch.no_grad():
            share.copy_(first)


def _fingerprint(weight: torch.Tensor) -> torch.Tensor:
    """A number below PRIME; other values have the same number once in PRIME times. It does not depend on the order of sums."""
    words = weight.detach().flatten().view(WORDS.get(weight.element_size(), torch.uint8))
    return (words.sum(dtype=torch.int64) % PRIME).to(weight.dtype)


def _flat(weight: nn.Parameter) -> torch.Tensor:
    return local(torch.zeros_like(weight) if weight.grad is None else weight.grad).detach().flatten()


def _group(ranks: tuple[int, ...], axes: Axes) -> dist.ProcessGroup:
    """The group of these ranks of this pipeline. Every rank of the job makes the groups of all pipelines."""
    grid = axes.grid
    if len(ranks) == grid.pp:
        assert axes.pp_group is not None
        return axes.pp_group
    made: list[dist.ProcessGroup] = [
        dist.new_group([pipeline[rank] for rank in ranks], timeout=COLLECTIVE_TIMEOUT) for pipeline in grid.pipelines
    ]
    return made[axes.pipeline]
