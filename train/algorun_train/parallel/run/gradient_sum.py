"""Sums gradients across data parallel replicas once per step, in buckets that leave as soon as they are complete.

DistributedDataParallel around the stages is not an option: its hooks see one backward pass per microbatch, and with
zero-bubble schedules, which compute weight gradients apart, it yields wrong ones without an error (pytorch#144530).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .shared_weights import Ties

BUCKET_BYTES = 25 * 2**20  # DDP's own default: large enough for the bandwidth, small enough to overlap


class Bucket:
    """Parameters whose gradients travel together. `left` counts the gradients that are not final yet.

    Hooks see it with the methods of torch.distributed.GradBucket.
    """

    def __init__(self, parameters: list[nn.Parameter], number: int, last: bool) -> None:
        self._parameters, self._number, self._last = parameters, number, last
        self.left = 0
        self._flat: torch.Tensor | None = None
        self._wait: Callable[[], object] | None = None

    def index(self) -> int:
        return self._number

    def is_last(self) -> bool:
        return self._last

    def parameters(self) -> list[nn.Parameter]:
        return self._parameters

    def buffer(self) -> torch.Tensor:
        """All gradients in one dimension."""
        assert self._flat is not None
        return self._flat

    def set_buffer(self, flat: torch.Tensor) -> None:
        self._flat = flat

    def gradients(self) -> list[torch.Tensor]:
        """Views of the buffer, each in its parameter's shape."""
        parts = self.buffer().split([p.numel() for p in self._parameters])
        return [part.view_as(p) for part, p in zip(parts, self._parameters, strict=True)]

    def launch(self, group: dist.ProcessGroup, hook: Hook | None) -> None:
        self._flat = torch.cat([_gradient(p).detach().flatten() for p in self._parameters])
        if hook is None:
            self._wait = dist.all_reduce(self._flat, group=group, async_op=True).wait
        else:
            future = hook(self)
            self._wait = lambda: self._take(future.wait())
        for parameter in self._parameters:
            parameter.grad = None  # what a later pass adds is not in the buffer, and has to be told from what is

    def _take(self, result: torch.Tensor | list[torch.Tensor]) -> None:
        self._flat = result[0] if isinstance(result, list) else result

    def finish(self, divisor: int) -> bool:
        """True where a pass after the launch has added to a gradient: that part is still this replica's own."""
        assert self._wait is not None
        self._wait()
        if divisor > 1:
            self.buffer().div_(divisor)
        late = False
        for parameter, gradient in zip(self._parameters, self.gradients(), strict=True):
            if parameter.grad is not None:
                gradient.add_(parameter.grad.detach())
                late = True
            parameter.grad = gradient
        self._flat = self._wait = None
        return late


Hook = Callable[[Bucket], torch.futures.Future[Any]]


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    """Zeros where this replica has none: the others may have one, and all must send the same number of bytes."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def buckets_of(parameters: Iterable[nn.Parameter], limit: int) -> list[list[nn.Parameter]]:
    """Parameters of equal dtype in runs of up to `limit` bytes, last ones first: the order of a backward pass."""
    found: list[list[nn.Parameter]] = []
    size, dtype = 0, None
    for parameter in reversed([p for p in parameters if p.requires_grad]):
        bytes_ = parameter.numel() * parameter.element_size()
        if dtype != parameter.dtype or size + bytes_ > limit:
            found.append([])
            size, dtype = 0, parameter.dtype
        found[-1].append(parameter)
        size += bytes_
    return found


class GradientSum:
    """Sums over `group`, or takes the mean: then gradients of several steps may add up.

    With `passes` (backward passes per step, each of which adds to every gradient) buckets leave during the last one;
    with None, for schedules whose passes cannot be counted that way, all leave in `finish`. A pass may add several times
    to those gradients that `times` says so of. `ties` are summed after that.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        group: dist.ProcessGroup | None,
        passes: int | None,
        bucket_bytes: int = BUCKET_BYTES,
        mean: bool = False,
        times: Mapping[nn.Parameter, int] | None = None,
        ties: Ties | None = None,
    ) -> None:
        self._group, self.passes, self._times, self._ties = group, passes, times or {}, ties
        self._divisor = dist.get_world_size(group) if mean and group else 1
        runs = buckets_of(parameters, bucket_bytes) if group else []
        self._buckets = [Bucket(run, number, number == len(runs) - 1) for number, run in enumerate(runs)]
        self.hook: Hook | None = None
        """reduces a bucket in the place of the sum or mean, as DistributedDataParallel's communication hooks do"""
        self.among: Callable[[], int] | None = None
        """how many replicas a mean is over, where some have nothing to add; None: all of the group"""
        self.counting = True
        """whether the passes that run now are those that `passes` speaks of; nothing leaves during others"""
        self.due = False
        """whether a pass has added to this replica's gradients since they were reduced"""
        self._next = 0  # buckets leave in one order on all replicas, or their sums would be of different things
        self._seen: dict[nn.Parameter, int] = {}
        self._of = {p: bucket for bucket in self._buckets for p in bucket.parameters()}
        self._hooks = [parameter.register_post_accumulate_grad_hook(self._added) for parameter in self._of]
        self.begin()

    def release(self) -> None:
        """Nothing is reduced by this any more: another one takes the parameters over."""
        for hook in self._hooks:
            hook.remove()

    def begin(self) -> None:
        """Before the first backward pass of a step."""
        self._next, self._seen = 0, dict.fromkeys(self._of, 0)
        for bucket in self._buckets:
            bucket.left = len(bucket.parameters())

    def _added(self, parameter: torch.Tensor) -> None:
        self.due = True
        if self.passes is None or not self.counting:
            return
        assert isinstance(parameter, nn.Parameter)
        self._seen[parameter] += 1
        if self._seen[parameter] != self.passes * self._times.get(parameter, 1):
            return
        self._of[parameter].left -= 1
        while self._next < len(self._buckets) and self._buckets[self._next].left == 0:
            self._launch_next()

    def _launch_next(self) -> None:
        assert self._group is not None
        self._buckets[self._next].launch(self._group, self.hook)
        self._next += 1

    def finish(self) -> None:
        """After the last backward pass: every gradient is the sum (or the mean) over the replicas, and over the stages
        that use its weight."""
        while self._next < len(self._buckets):
            self._launch_next()
        divisor = self.among() if self.among else self._divisor
        late = [bucket.finish(1 if self.hook else divisor) for bucket in self._buckets]
        self.due = any(late)
        if self._ties:
            self._ties.finish()
        self.begin()

    def parameters(self) -> list[nn.Parameter]:
        """Those whose gradients are reduced, in the order of the buckets: the same one on all replicas."""
        return list(self._of)
