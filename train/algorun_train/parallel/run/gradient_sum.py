"""Sums gradients over the replicas once per step, in buckets that leave as soon as they are complete.

DistributedDataParallel cannot be used around stages: its hooks see one backward pass per microbatch. With zero-bubble
schedules, which compute weight gradients apart, it returns wrong gradients without an error (pytorch#144530).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .shared_weights import SharedWeights

BUCKET_BYTES = 25 * 2**20  # DDP's own default: large enough for the bandwidth, small enough to overlap


class Bucket:
    """Parameters whose gradients travel together. It has the methods of torch.distributed.GradBucket, for hooks."""

    def __init__(self, parameters: list[nn.Parameter], number: int, last: bool) -> None:
        self._parameters, self._number, self._last = parameters, number, last
        self.unfinished = 0
        """gradients to which a pass of this step may still add"""
        self._flat: torch.Tensor | None = None
        self._wait: Callable[[], object] | None = None

    def index(self) -> int:
        """Its number in the order of the buckets."""
        return self._number

    def is_last(self) -> bool:
        """Whether no bucket follows."""
        return self._last

    def parameters(self) -> list[nn.Parameter]:
        """Its parameters, in the order of the buffer."""
        return self._parameters

    def buffer(self) -> torch.Tensor:
        """All gradients in one dimension."""
        assert self._flat is not None
        return self._flat

    def set_buffer(self, flat: torch.Tensor) -> None:
        """Replaces the buffer by one of the same length."""
        self._flat = flat

    def gradients(self) -> list[torch.Tensor]:
        """Views of the buffer, each in its parameter's shape."""
        pieces = torch.split(self.buffer(), [p.numel() for p in self._parameters])
        return [piece.view_as(p) for piece, p in zip(pieces, self._parameters, strict=True)]

    def launch(self, group: dist.ProcessGroup, hook: Hook | None) -> None:
        """Begins to sum over `group`, or calls the hook instead. The parameters have no gradients until `finish`."""
        self._flat = torch.cat([_gradient(p).detach().flatten() for p in self._parameters])
        if hook is None:
            self._wait = dist.all_reduce(self._flat, group=group, async_op=True).wait
        else:
            future = hook(self)
            self._wait = lambda: self._take(future.wait())
        for parameter in self._parameters:
            parameter.grad = None  # a later pass adds here, and not to the buffer that is on its way

    def _take(self, result: torch.Tensor | list[torch.Tensor]) -> None:
        self._flat = result[0] if isinstance(result, list) else result

    def finish(self, divisor: int) -> bool:
        """Gives the parameters their gradients, divided by `divisor`.

        Returns True if a pass after the launch has added to a gradient: the replicas' gradients then differ by that.
        """
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


Hook = Callable[[Bucket], torch.futures.Future[Any]]  # Any: a tensor, or a list with one, as torch's hooks return


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    """Zeros if this replica has no gradient: others may have one, and all must send the same number of bytes."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def buckets_of(parameters: Iterable[nn.Parameter], limit: int) -> list[list[nn.Parameter]]:
    """Parameters of equal type in runs of up to `limit` bytes, the last ones first: the order of a backward pass."""
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


class _PassCounter:
    """Counts the backward passes that have added to each gradient, and so finds out which buckets are complete."""

    def __init__(self, buckets: list[Bucket], uses: Mapping[nn.Parameter, int]) -> None:
        self._buckets, self._uses = buckets, uses
        self.bucket_of = {p: bucket for bucket in buckets for p in bucket.parameters()}
        self._seen: dict[nn.Parameter, int] = {}
        self.begin()

    def begin(self) -> None:
        """Before the first backward pass of a step."""
        self._seen = dict.fromkeys(self.bucket_of, 0)
        for bucket in self._buckets:
            bucket.unfinished = len(bucket.parameters())

    def is_final(self, parameter: nn.Parameter, passes: int) -> bool:
        """Counts a pass for this gradient. Returns True at the last one of `passes`."""
        self._seen[parameter] += 1
        if self._seen[parameter] != passes * self._uses.get(parameter, 1):
            return False
        self.bucket_of[parameter].unfinished -= 1
        return True


class GradientSum:
    """Sums gradients over a process group, or takes their mean: then those of several steps may add up."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        group: dist.ProcessGroup | None,
        passes: int | None,
        mean: bool = False,
        shared: SharedWeights | None = None,
    ) -> None:
        """Call it, and `finish`, on all ranks of `group` (None: there is one replica).

        `passes` are the backward passes per step, each of which adds to every gradient: buckets then leave during the
        last one. None, for schedules whose passes cannot be counted like that: all buckets leave in `finish`. Gradients
        of `shared` weights are summed over their stages after that.
        """
        self._group, self.passes, self._shared = group, passes, shared
        self._divisor = dist.get_world_size(group) if mean and group else 1
        runs = buckets_of(parameters, BUCKET_BYTES) if group else []
        self._buckets = [Bucket(run, number, number == len(runs) - 1) for number, run in enumerate(runs)]
        self.hook: Hook | None = None
        """reduces a bucket instead of the sum or mean, as DistributedDataParallel's communication hooks do"""
        self.replicas_of_mean: Callable[[], int] | None = None
        """how many replicas a mean is over, if some have nothing to add; None: all of the group"""
        self.counting = True
        """whether the passes that run now are those of `passes`; no bucket leaves during other passes"""
        self.due = False
        """whether a pass has added to this replica's gradients since they were reduced"""
        self._next = 0  # buckets leave in the same order on all replicas: else different gradients would be summed
        self._counter = _PassCounter(self._buckets, shared.uses if shared else {})
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._added) for parameter in self._counter.bucket_of
        ]

    def release(self) -> None:
        """Stops watching the parameters: another GradientSum takes over."""
        for hook in self._hooks:
            hook.remove()

    def begin(self) -> None:
        """Before the first backward pass of a step."""
        self._next = 0
        self._counter.begin()

    def _added(self, parameter: torch.Tensor) -> None:
        self.due = True
        if self.passes is None or not self.counting:
            return
        assert isinstance(parameter, nn.Parameter)
        if not self._counter.is_final(parameter, self.passes):
            return
        while self._next < len(self._buckets) and self._buckets[self._next].unfinished == 0:
            self._launch_next()

    def _launch_next(self) -> None:
        assert self._group is not None
        self._buckets[self._next].launch(self._group, self.hook)
        self._next += 1

    def finish(self) -> None:
        """Call it after the last backward pass of a step: every gradient is then the sum (or the mean) over the replicas,
        and for a shared weight over the stages that use it."""
        while self._next < len(self._buckets):
            self._launch_next()
        divisor = self.replicas_of_mean() if self.replicas_of_mean else self._divisor
        late = [bucket.finish(1 if self.hook else divisor) for bucket in self._buckets]
        self.due = any(late)
        if self._shared:
            self._shared.finish()
        self.begin()

    def parameters(self) -> list[nn.Parameter]:
        """The parameters whose gradients are reduced, in the order of the buckets: the same one on all replicas."""
        return list(self._counter.bucket_of)
