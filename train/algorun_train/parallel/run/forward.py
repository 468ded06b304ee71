"""Forward passes through the stages of a pipeline, for evaluation.

torch's schedules cannot do them where two neighbours lie on one rank ("can't steal_bwd_input"), and prepare all stages
anew at each change between training and evaluation.

Time goes in slots, and all ranks know which stage computes which microbatch in which slot. After each slot a rank sends
what it has just computed and receives what its neighbours have, in one batch. The batches of a slot fit each other, so
the messages of all ranks end slot after slot, even where a rank's messages pass through one queue: NCCL has one queue
for each rank where a script gave `device_id` to init_process_group. In one queue an unbatched send
holds up every later message until its receiver comes, and three ranks with two stages each would deadlock.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from algorun_train.parallel.segments import TensorSpec
from algorun_train.parallel.stage import Stage

from .process_groups import Axes

# Types of what crosses between stages, by the number that tells them to the next one.
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True, slots=True)
class Passage:
    """What one stage gets of one microbatch from the stage before it."""

    stage: int
    number: int
    peer: int
    """the rank of the pipeline at the other end"""


@dataclass(slots=True)
class _Arrival:
    """Tensors on their way to a stage of this rank, and what to wait for before they are there."""

    tensors: tuple[torch.Tensor, ...]
    works: Sequence[dist.Work] = ()


def first_slots(holder: Mapping[int, int], microbatches: int) -> list[int]:
    """For each stage the slot in which it computes its first microbatch; the others follow slot after slot.

    `holder` says which rank has each stage. A rank does all microbatches of a stage before its next stage. Pure.
    """
    free: dict[int, int] = {}
    slots: list[int] = []
    for stage in range(len(holder)):
        slots.append(max(free.get(holder[stage], 0), slots[-1] + 1 if slots else 0))
        free[holder[stage]] = slots[-1] + microbatches
    return slots


class ForwardPasses:
    """Of the stages `modules` of this rank, by their index. `holder` says which rank of the pipeline has each stage,
    `specs` what enters each of them, and last what the model returns."""

    def __init__(
        self, modules: Mapping[int, Stage], holder: Mapping[int, int], specs: Sequence[Sequence[TensorSpec]], axes: Axes
    ) -> None:
        self._modules, self._holder, self._specs, self._axes = modules, holder, specs, axes
        self._last = len(specs) - 2
        self._arrived: dict[tuple[int, int], _Arrival] = {}  # by stage and microbatch
        self._sent: list[dist.Work] = []

    def run(
        self,
        parts: Sequence[Sequence[torch.Tensor]],
        use: Callable[[Any, int], Any],
        autocast: torch.dtype | None,
        told: bool,
    ) -> list[Any]:
        """use(output, i) of each microbatch, on the rank with the last stage; elsewhere nothing.

        `parts[i]` holds the tensors that the first stage gets; their number is the same on all ranks. With `told` the
        stages compute under `autocast` instead of the one that they are made for, and each tells the next the types of
        what crosses.
        """
        results: list[Any] = []
        begins = first_slots(self._holder, len(parts))
        with torch.no_grad():
            for slot in range(begins[-1] + len(parts)):
                sends: dict[Passage, tuple[torch.Tensor, ...]] = {}
                for index, module in self._modules.items():
                    number = slot - begins[index]
                    if not 0 <= number < len(parts):
                        continue
                    compute = functools.partial(module.under, autocast) if told else module
                    output = compute(*(parts[number] if index == 0 else self._received(index, number)))
                    if index == self._last:
                        results.append(use(module.whole(output), number))
                        continue
                    tensors = output if isinstance(output, tuple) else (output,)
                    peer = self._holder[index + 1]
                    if peer == self._axes.pp_rank:
                        self._arrived[index + 1, number] = _Arrival(tensors)
                    else:
                        sends[Passage(index + 1, number, peer)] = tensors
                self._cross(sends, self._expected(slot, begins, len(parts)), told)
        for work in self._sent:
            work.wait()
        self._sent.clear()
        return results

    def _expected(self, slot: int, begins: Sequence[int], microbatches: int) -> list[Passage]:
        """What other ranks compute in this slot for stages of this one."""
        return [
            Passage(index, slot - begins[index - 1], self._holder[index - 1])
            for index in self._modules
            if index and self._holder[index - 1] != self._axes.pp_rank and 0 <= slot - begins[index - 1] < microbatches
        ]

    def _received(self, index: int, number: int) -> tuple[torch.Tensor, ...]:
        """What stage `index` gets of a microbatch from the one before it."""
        arrival = self._arrived.pop((index, number))
        for work in arrival.works:
            work.wait()
        return arrival.tensors

    def _cross(
        self, sends: Mapping[Passage, tuple[torch.Tensor, ...]], expected: Sequence[Passage], told: bool
    ) -> None:
        """Begins to send and to receive what crosses after one slot."""
        types = {passage: [spec.dtype for spec in self._specs[passage.stage]] for passage in expected}
        if told:
            types = self._types(sends, expected)
        arriving = {
            passage: tuple(
                torch.empty(spec.shape, dtype=dtype, device=self._axes.device)
                for spec, dtype in zip(self._specs[passage.stage], types[passage], strict=True)
            )
            for passage in expected
        }
        works = self._batch(sends, arriving)
        for passage, tensors in arriving.items():
            self._arrived[passage.stage, passage.number] = _Arrival(tensors, works)

    def _types(
        self, sends: Mapping[Passage, tuple[torch.Tensor, ...]], expected: Sequence[Passage]
    ) -> dict[Passage, list[torch.dtype]]:
        """The types of what is received, as the senders tell them. Numbers on the CPU: shapes and types are needed here."""
        told = {passage: (torch.tensor([TYPES.index(t.dtype) for t in tensors]),) for passage, tensors in sends.items()}
        numbers = {p: (torch.empty(len(self._specs[p.stage]), dtype=torch.int64),) for p in expected}
        for work in self._batch(told, numbers):
            work.wait()
        return {passage: [TYPES[n] for n in tensor.tolist()] for passage, (tensor,) in numbers.items()}

    def _batch(
        self, sends: Mapping[Passage, tuple[torch.Tensor, ...]], arriving: Mapping[Passage, tuple[torch.Tensor, ...]]
    ) -> Sequence[dist.Work]:
        """Begins one batch of messages; returns what to wait for before those that arrive are there."""
        group = self._axes.pp_group
        out = [(dist.isend, tensor.contiguous(), p.peer) for p, tensors in sends.items() for tensor in tensors]
        into = [(dist.irecv, tensor, p.peer) for p, tensors in arriving.items() for tensor in tensors]
        if not out and not into:
            return ()
        works = dist.batch_isend_irecv(
            [dist.P2POp(what, tensor, group=group, group_peer=peer) for what, tensor, peer in (*out, *into)]
        )
        # Gloo has a work for each message, and its works can be waited for once. A rank does not wait for a send before it
        # goes on: the neighbour may be slower. NCCL has one work for the batch.
        alone = len(works) == len(out) + len(into)
        sent, received = (works[: len(out)], works[len(out) :]) if alone else ((), works) if into else (works, ())
        self._sent += sent
        return received
