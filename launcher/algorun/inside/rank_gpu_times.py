"""Runs in a process of a rank that uses a GPU: puts the GPU's seconds of each activity in the place of the CPU's.

rank_steps executes it at the first step after CUDA is in use. A script only queues its work: the CPU's seconds show where
it waited, not which work took long. So the current stream gets an event where an activity begins and one where it ends. The
time between both events is the stream's time for the activity, with its waits for other streams and for the CPU. Nobody waits
for an event: a later step asks whether the GPU has passed it. Until then the record holds the CPU's seconds.

An event costs some microseconds. If all events cost more than SHARE of a step, only some steps are measured; a measured step
stands for the time since the last measured one. Evaluations and saves are always measured.

As in rank_steps, no module that a file of the user could replace is imported.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False  # typing itself must not be imported here
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

    Mark = tuple[Any, Any]  # an event of torch, and the stream that it is in

SHARE = 0.002  # of a step's time, for events
MOST_BETWEEN = 1000  # steps from one that is measured to the next one
LONG_S = 0.05  # an activity of this length is no part of the usual step: it stands for itself only
MOST_PENDING = 4096  # activities that the GPU has not passed yet; what comes beyond them keeps the CPU's seconds
ASK_FROM = 256  # pending activities from which on events are asked between steps as well


class GpuStep:
    """A measured step. Its usual time stands for `weight` times as much; None until the step is over."""

    __slots__ = ("weight",)

    def __init__(self, weight: float | None) -> None:
        self.weight = weight


class GpuTimes:
    """`cuda` is the module torch.cuda, `has_context` says of a device's index whether this process uses it already.

    `seconds` are those of the activities in the rank's record, by index; `always`: the activities that no step is sampled
    for. `measured` is set to 1 once `seconds` holds a GPU's time.
    """

    def __init__(
        self,
        cuda: Any,  # it has no types here
        has_context: Callable[[int], bool],
        seconds: memoryview[float],
        measured: memoryview[int],
        always: Collection[int],
        now: float,
    ) -> None:
        self._cuda, self._has_context, self._always = cuda, has_context, always
        self._seconds, self._measured = seconds, measured
        self._begin: Mark | None = None  # of what runs now
        self._of: GpuStep | None = None  # the step in which it has begun: an optimizer's ends in the next one
        self._pending: list[tuple[GpuStep | None, int, Mark | None, Mark | None, float]] = []
        self._used: set[int] = set()  # devices that this process uses
        self._every = 1  # one of this many steps is measured
        self._step: GpuStep | None = GpuStep(1.0)  # None: this one is not measured
        self._since = 0  # steps since the last one that was measured
        self._usual_s = 0.0  # of those steps, without what is long
        self._step_at, self._long_s, self._cost_s = now, 0.0, 0.0  # of this step

    def switch(self, ended: int, spent: float, begun: int) -> bool:
        """An activity ends after `spent` seconds of the CPU and another one begins; -1: none.

        Tells whether the CPU's seconds count for now.
        """
        began = time.monotonic()
        if len(self._pending) >= ASK_FROM:
            self._ask()
        of, self._of = self._of, self._step
        wanted = (ended >= 0 and (of is not None or ended in self._always)) or (
            begun >= 0 and (self._step is not None or begun in self._always)
        )
        mark = self._mark() if wanted and len(self._pending) < MOST_PENDING else None
        begin, self._begin = self._begin, mark
        self._cost_s += time.monotonic() - began
        if ended < 0:
            return False
        is_long = ended in self._always or spent >= LONG_S
        if is_long:
            self._long_s += spent
        elif of is None:
            return False
        if begin is None or mark is None or begin[1] != mark[1]:  # another stream has a time of its own
            begin = mark = None
        if len(self._pending) < MOST_PENDING and (mark is not None or not is_long):
            self._pending.append((None if is_long else of, ended, begin, mark, spent))
        return True

    def stepped(self, now: float) -> None:
        """A step has ended at `now`."""
        began = time.monotonic()
        usual_s = max(0.0, now - self._step_at - self._long_s)
        self._usual_s += usual_s
        if self._step is not None:
            self._step.weight = self._usual_s / usual_s if usual_s else 1.0
            self._usual_s, self._since = 0.0, 0
        self._ask()
        cost_s, self._cost_s, self._long_s = self._cost_s + time.monotonic() - began, 0.0, 0.0
        if self._step is not None and now > self._step_at:
            self._every = min(MOST_BETWEEN, int(cost_s / (now - self._step_at) / SHARE) + 1)
        self._since += 1
        self._step = GpuStep(1.0 if self._every == 1 else None) if self._since >= self._every else None
        self._step_at = now

    def _mark(self) -> Mark | None:
        """An event in the current stream; None where there must be none."""
        cuda = self._cuda
        device = cuda.current_device()
        if device not in self._used:
            # On a GPU that this process does not use, an event would take hundreds of MiB.
            if not self._has_context(device):
                return None
            self._used.add(device)
        if cuda.is_current_stream_capturing():  # the event would become a part of the graph
            return None
        stream = cuda.current_stream()
        event = cuda.Event(enable_timing=True)
        event.record(stream)
        return event, stream

    def _ask(self) -> None:
        """Corrects the seconds of the activities that the GPU has passed."""
        if not self._pending or self._cuda.is_current_stream_capturing():  # a question would end the capture
            return
        passed = 0
        for step, index, begin, end, spent in self._pending:
            weight = 1.0 if step is None else step.weight
            if weight is None or (end is not None and not end[0].query()):
                break
            passed += 1
            taken = spent
            if begin is not None and end is not None:
                taken = max(0.0, begin[0].elapsed_time(end[0]) / 1000)
                self._measured[0] = 1
            self._seconds[index] += weight * taken - spent
        del self._pending[:passed]
