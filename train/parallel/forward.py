"""Forward passes through the stages of a pipeline, for evaluation.

torch's schedules cannot do them where two neighbours lie on one rank ("can't steal_bwd_input"), and prepare all stages
anew at each change between training and evaluation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .axes import Axes
from .cutting import TensorSpec
from .stage import Stage

# Types of what crosses between stages, by the number that tells them to the next one.
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class ForwardPasses:
    """Of the stages `modules` of this rank, by their index. `holder` says which rank of the pipeline has each stage,
    `specs` what enters each of them, and last what the model returns."""

    def __init__(
        self, modules: Mapping[int, Stage], holder: Mapping[int, int], specs: Sequence[Sequence[TensorSpec]], axes: Axes
    ) -> None:
        self._modules, self._holder, self._specs, self._axes = modules, holder, specs, axes
        self._last = len(specs) - 2
        self._local: list[tuple[torch.Tensor, ...]] = []  # from one stage of this rank to the next one

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
        results, sent = [], []
        with torch.no_grad():
            for index, module in self._modules.items():
                inner = 0 < index < self._last
                back = inner and self._holder[index - 1] == self._holder[index + 1]
                late = []
                compute = functools.partial(module.under, autocast) if told else module
                for number, part in enumerate(parts):
                    output = compute(*(part if index == 0 else self._received(index, told)))
                    if index == self._last:
                        results.append(use(module.whole(output), number))
                        continue
                    tensors = output if isinstance(output, tuple) else (output,)
                    if back:  # NCCL moves what two ranks exchange in one order, and that rank still sends
                        late.append(tensors)
                    else:
                        sent += self._send(index, tensors, told)
                for tensors in late:
                    sent += self._send(index, tensors, told)
        for work in sent:
            work.wait()
        return results

    def _received(self, index: int, told: bool) -> tuple[torch.Tensor, ...]:
        """What stage `index` gets from the one before it, which tells the types or not."""
        source = self._holder[index - 1]
        if source == self._axes.pp_rank:
            return self._local.pop(0)
        specs = self._specs[index]
        types = [spec.dtype for spec in specs]
        if told:
            numbers = torch.empty(len(specs), dtype=torch.int64)
            dist.recv(numbers, group=self._axes.pp_group, group_src=source)
            types = [TYPES[number] for number in numbers.tolist()]
        device = self._axes.device
        tensors = tuple(torch.empty(s.shape, dtype=t, device=device) for s, t in zip(specs, types, strict=True))
        for tensor in tensors:
            dist.recv(tensor, group=self._axes.pp_group, group_src=source)
        return tensors

    def _send(self, index: int, tensors: tuple[torch.Tensor, ...], told: bool) -> list[dist.Work]:
        to = self._holder[index + 1]
        if to == self._axes.pp_rank:
            self._local.append(tensors)
            return []
        numbers = [torch.tensor([TYPES.index(tensor.dtype) for tensor in tensors])] if told else []
        messages = [*numbers, *(tensor.contiguous() for tensor in tensors)]
        works = [dist.isend(message, group=self._axes.pp_group, group_dst=to) for message in messages]
        return [work for work in works if work is not None]
