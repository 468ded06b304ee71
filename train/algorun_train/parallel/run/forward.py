"""Forward passes through the stages of a pipeline, for evaluation.

torch's schedules cannot do them if two neighbouring stages are on one rank ("can't steal_bwd_input"), and prepare all
stages again at each change between training and evaluation.

Time goes in slots. All ranks know which stage computes which microbatch in which slot. After each slot a rank sends its
results and receives those of its neighbours, in one batch of messages. The batches of one slot match each other, so the
messages of all ranks end slot after slot. That holds even if all messages of a rank go through one queue, as with NCCL
after a script gave `device_id` to init_process_group: in one queue an unbatched send blocks every later message until its
receiver comes, and three ranks with two stages each would deadlock.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from algorun_train.parallel.model.segments import TensorSpec

from .process_groups import Axes
from .stage import Stage

T = TypeVar("T")

# Types of tensors that cross between stages; a message names a type by its number here.
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True, slots=True)
class Passage:
    """The tensors of one microbatch on their way from one stage to the next."""

    stage: int
    """the receiving one"""
    microbatch: int
    peer: int
    """the rank of the pipeline at the other end"""


@dataclass(slots=True)
class _Arrival:
    """Tensors on their way to a stage of this rank, and the works to wait for before using them."""

    tensors: tuple[torch.Tensor, ...]
    works: Sequence[dist.Work] = ()


def first_slots(rank_of_stage: Sequence[int], microbatches: int) -> list[int]:
    """For each stage the slot in which it computes its first microbatch; the others follow slot after slot. Pure.

    A rank computes all microbatches of a stage before its next stage.
    """
    free: dict[int, int] = {}
    slots: list[int] = []
    for rank in rank_of_stage:
        slots.append(max(free.get(rank, 0), slots[-1] + 1 if slots else 0))
        free[rank] = slots[-1] + microbatches
    return slots


class ForwardPasses:
    """Forward passes of all ranks of one pipeline."""

    def __init__(
        self,
        stages: Mapping[int, Stage],
        rank_of_stage: Sequence[int],
        boundaries: Sequence[Sequence[TensorSpec]],
        axes: Axes,
    ) -> None:
        """`stages` are this rank's, by number. `boundaries` are what enters each stage, and last the model's output."""
        self._stages, self._rank_of_stage, self._boundaries, self._axes = stages, rank_of_stage, boundaries, axes
        self.last = len(boundaries) - 2
        """number of the last stage"""
        self._arrived: dict[tuple[int, int], _Arrival] = {}  # by stage and microbatch
        self._sent: list[dist.Work] = []

    def run(
        self,
        microbatches: Sequence[Sequence[torch.Tensor]],
        use: Callable[[Any, int], T],  # Any: the model's output, of the user's own type
        autocast: torch.dtype | None,
        other_types: bool,
    ) -> list[T]:
        """use(output, i) of each microbatch, on the rank with the last stage; an empty list elsewhere.

        `microbatches[i]` are the tensors that the first stage gets; the number of microbatches is the same on all ranks.
        With `other_types` the stages compute under `autocast` instead of their own, and each stage sends the types of the
        tensors to the next one first.
        """
        results: list[T] = []
        begins = first_slots(self._rank_of_stage, len(microbatches))
        with torch.no_grad():
            for slot in range(begins[-1] + len(microbatches)):
                sends: dict[Passage, tuple[torch.Tensor, ...]] = {}
                for index, stage in self._stages.items():
                    number = slot - begins[index]
                    if not 0 <= number < len(microbatches):
                        continue
                    compute = functools.partial(stage.forward_under, autocast) if other_types else stage
                    output = compute(*(microbatches[number] if index == 0 else self._received(index, number)))
                    if index == self.last:
                        results.append(use(stage.as_returned(output), number))
                        continue
                    tensors = output if isinstance(output, tuple) else (output,)
                    peer = self._rank_of_stage[index + 1]
                    if peer == self._axes.pp_rank:
                        self._arrived[index + 1, number] = _Arrival(tensors)
                    else:
                        sends[Passage(index + 1, number, peer)] = tensors
                self._cross(sends, self._expected(slot, begins, len(microbatches)), other_types)
        for work in self._sent:
            work.wait()
        self._sent.clear()
        return results

    def _expected(self, slot: int, begins: Sequence[int], microbatches: int) -> list[Passage]:
        """The passages from other ranks' computations of this slot to stages of this rank."""
        return [
            Passage(index, slot - begins[index - 1], self._rank_of_stage[index - 1])
            for index in self._stages
            if index
            and self._rank_of_stage[index - 1] != self._axes.pp_rank
            and 0 <= slot - begins[index - 1] < microbatches
        ]

    def _received(self, index: int, number: int) -> tuple[torch.Tensor, ...]:
        """The tensors that stage `index` gets of a microbatch from the stage before it."""
        arrival = self._arrived.pop((index, number))
        for work in arrival.works:
            work.wait()
        return arrival.tensors

    def _cross(
        self, sends: Mapping[Passage, tuple[torch.Tensor, ...]], expected: Sequence[Passage], other_types: bool
    ) -> None:
        """Begins to send and to receive the tensors that cross after one slot."""
        types = {passage: [spec.dtype for spec in self._boundaries[passage.stage]] for passage in expected}
        if other_types:
            types = self._types(sends, expected)
        arriving = {
            passage: tuple(
                torch.empty(spec.shape, dtype=dtype, device=self._axes.device)
                for spec, dtype in zip(self._boundaries[passage.stage], types[passage], strict=True)
            )
            for passage in expected
        }
        works = self._batch(sends, arriving)
        for passage, tensors in arriving.items():
            self._arrived[passage.stage, passage.microbatch] = _Arrival(tensors, works)

    def _types(
        self, sends: Mapping[Passage, tuple[torch.Tensor, ...]], expected: Sequence[Passage]
    ) -> dict[Passage, list[torch.dtype]]:
        """The types of the tensors to receive, sent ahead by their senders as numbers on the CPU: this rank has to read them
        before it can allocate."""
        sent = {passage: (torch.tensor([TYPES.index(t.dtype) for t in tensors]),) for passage, tensors in sends.items()}
        numbers = {p: (torch.empty(len(self._boundaries[p.stage]), dtype=torch.int64),) for p in expected}
        for work in self._batch(sent, numbers):
            work.wait()
        return {passage: [TYPES[n] for n in tensor.tolist()] for passage, (tensor,) in numbers.items()}

    def _batch(
        self, sends: Mapping[Passage, tuple[torch.Tensor, ...]], arriving: Mapping[Passage, tuple[torch.Tensor, ...]]
    ) -> Sequence[dist.Work]:
        """Begins one batch of messages; returns the works to wait for before using the tensors that arrive."""
        group = self._axes.pp_group
        out = [(dist.isend, tensor.contiguous(), p.peer) for p, tensors in sends.items() for tensor in tensors]
        into = [(dist.irecv, tensor, p.peer) for p, tensors in arriving.items() for tensor in tensors]
        if not out and not into:
            return ()
        works = dist.batch_isend_irecv(
            [dist.P2POp(what, tensor, group=group, group_peer=peer) for what, tensor, peer in (*out, *into)]
        )
        # Gloo has a work for each message, which can be waited for only once. A rank does not wait for a send before its
        # next slot: the neighbour may be slower. NCCL has one work for the batch.
        alone = len(works) == len(out) + len(into)
        sent, received = (works[: len(out)], works[len(out) :]) if alone else ((), works) if into else (works, ())
        self._sent += sent
        return received
