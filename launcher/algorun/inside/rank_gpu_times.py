"""Runs in a process of a rank that uses a GPU: puts the GPU's seconds of each activity in the place of the CPU's.

rank_steps executes it at the first step after CUDA is in use. A script only queues its work: the CPU's seconds show where
it waited, not which work took long. So the current stream gets an event where an activity begins and one where it ends. The
time between both events is the stream's time for the activity, with its waits for other streams and for the CPU. Nobody waits
for an event: a later step asks whether the GPU has passed it. Until then the record holds the CPU's seconds.

An event costs some microseconds. If all events cost more than SHARE of a step, only some steps are measured. A measured step
stands for all steps since the last measured one, by the GPU's time from the end of that one to its own end: a CPU that runs ahead
needs as long for a step as for queueing it, which says nothing. Evaluations and saves are always measured.

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
MOST_AHEAD = (
    16  # and at most one in so many of those that are over: what comes after the last measured step is not told
)
LONG_S = 0.05  # an activity of this length is no part of the usual step: it stands for itself only
MOST_PENDING = 4096  # activities that the GPU has not passed yet; what comes beyond them keeps the CPU's seconds
ASK_FROM = 256  # pending activities from which on events are asked between steps as well


class Timed:
    """An activity that has ended: `spent` are the CPU's seconds. `usual`: the step's usual activities, else it stands for itself.
    `in_step`: it belongs to the measured step of its window."""

    __slots__ = ("begin", "end", "in_step", "index", "spent", "usual")

    def __init__(
        self, index: int, begin: Mark | None, end: Mark | None, spent: float, usual: bool, in_step: bool
    ) -> None:
        self.index, self.begin, self.end, self.spent = index, begin, end, spent
        self.usual, self.in_step = usual, in_step


class GpuWindow:
    """The steps since the last measured one, which ended at `before`, up to the measured one, from `begin` to `end`.

    `weight` is how many steps that are like it by the CPU's time; it counts where there are no events. `unmarked_s`: the CPU's
    seconds of what was long and has no events.
    """

    __slots__ = ("before", "begin", "end", "timed", "unmarked_s", "weight")

    def __init__(self, before: Mark | None) -> None:
        self.before, self.begin, self.end = before, before, before
        self.timed: list[Timed] = []
        self.unmarked_s, self.weight = 0.0, 1.0


class GpuTimes:
    """`cuda` is the module torch.cuda. `has_context` says of a device's index whether this process uses it already, `raw_stream`
    which address its current stream has (None: this torch does not tell): to make torch's object takes twice as long as an event.

    `seconds` are those of the activities in the rank's record, by index; `always`: the activities that no step is sampled
    for. `measured` is set to 1 once `seconds` holds a GPU's time.
    """

    def __init__(
        self,
        cuda: Any,  # it has no types here
        has_context: Callable[[int], bool],
        raw_stream: Callable[[int], int] | None,
        seconds: memoryview[float],
        measured: memoryview[int],
        always: Collection[int],
        now: float,
    ) -> None:
        self._cuda, self._has_context, self._raw_stream, self._always = cuda, has_context, raw_stream, always
        self._streams: dict[tuple[int, int], Any] = {}  # by device and address
        self._seconds, self._measured = seconds, measured
        self._begin: Mark | None = None  # of what runs now
        self._begun_in = True  # whether the step in which it has begun is measured: an optimizer's ends in the next one
        self._window = GpuWindow(None)  # the one that is open
        self._pending: list[GpuWindow] = []  # closed, and not passed yet by the GPU
        self._timed = 0  # activities in all of them
        self._used: set[int] = set()  # devices that this process uses
        self._every = 1  # one of this many steps is measured
        self._measured_now = True  # this step is
        self._since, self._steps = 0, 0  # steps since the last one that was measured, and all of them
        self._usual_s = 0.0  # of the former, without what is long
        self._step_at, self._long_s, self._cost_s = now, 0.0, 0.0  # of this step

    def switch(self, ended: int, spent: float, begun: int) -> bool:
        """An activity ends after `spent` seconds of the CPU and another one begins; -1: none.

        Tells whether the CPU's seconds count for now.
        """
        began = time.monotonic()
        if self._timed >= ASK_FROM:
            self._ask()
        in_step, self._begun_in = self._begun_in, self._measured_now
        wanted = (ended >= 0 and (in_step or ended in self._always)) or (
            begun >= 0 and (self._measured_now or begun in self._always)
        )
        has_room = self._timed < MOST_PENDING
        mark = self._mark() if wanted and has_room else None
        begin, self._begin = self._begin, mark
        self._cost_s += time.monotonic() - began
        if ended < 0:
            return False
        is_long = ended in self._always or spent >= LONG_S
        if is_long:
            self._long_s += spent
        elif not in_step:
            return False
        if begin is None or mark is None or begin[1] != mark[1]:  # another stream has a time of its own
            begin = mark = None
        if has_room and (mark is not None or not is_long):
            self._window.timed.append(Timed(ended, begin, mark, spent, not is_long, in_step))
            self._timed += 1
        elif is_long:
            self._window.unmarked_s += spent
        return True

    def stepped(self, now: float) -> None:
        """A step has ended at `now`."""
        began = time.monotonic()
        usual_s = max(0.0, now - self._step_at - self._long_s)
        self._usual_s += usual_s
        self._since, self._steps = self._since + 1, self._steps + 1
        was_measured = self._measured_now
        if was_measured:
            self._since = 0
        cost_s = self._cost_s
        if was_measured and now > self._step_at:
            cost_s += time.monotonic() - began
            wanted = int(cost_s / (now - self._step_at) / SHARE) + 1
            self._every = min(MOST_BETWEEN, wanted, self._steps // MOST_AHEAD + 1)
        self._measured_now = self._since + 1 >= self._every
        mark = self._mark() if was_measured or self._measured_now else None
        if was_measured:
            self._close(mark, self._usual_s / usual_s if usual_s else 1.0)
        if self._measured_now:
            self._window.begin = mark
        self._ask()
        self._long_s, self._step_at = 0.0, now
        self._cost_s = time.monotonic() - began

    def _close(self, mark: Mark | None, weight: float) -> None:
        """The measured step ends at `mark`, and with it its window."""
        window = self._window
        window.end, window.weight = mark, weight
        self._pending.append(window)
        self._window, self._usual_s = GpuWindow(mark), 0.0

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
        stream = self._stream(device)
        event = cuda.Event(enable_timing=True)
        event.record(stream)
        return event, stream

    def _stream(self, device: int) -> Any:  # as above
        """The current stream. torch keeps its streams, so an address stays one stream's."""
        if self._raw_stream is None:
            return self._cuda.current_stream()
        address = self._raw_stream(device)
        if (device, address) not in self._streams:
            self._streams[device, address] = self._cuda.current_stream()
        return self._streams[device, address]

    def _ask(self) -> None:
        """Corrects the seconds of the windows that the GPU has passed."""
        if not self._pending or self._cuda.is_current_stream_capturing():  # a question would end the capture
            return
        passed = 0
        for window in self._pending:
            if window.end is not None and not window.end[0].query():
                break
            passed += 1
            self._timed -= len(window.timed)
            self._tell(window)
        del self._pending[:passed]

    def _tell(self, window: GpuWindow) -> None:
        taken = [self._taken_s(each, window) for each in window.timed]
        weight = self._weight(window, taken)
        for each, seconds in zip(window.timed, taken, strict=True):
            self._seconds[each.index] += (weight if each.usual else 1.0) * seconds - each.spent

    def _taken_s(self, timed: Timed, window: GpuWindow) -> float:
        """The GPU's seconds of an activity, else the CPU's."""
        begin, end = timed.begin, timed.end
        if begin is None or end is None:
            return timed.spent
        in_order = window.end is not None and window.end[1] == end[1]
        if not in_order and not end[0].query():  # of another stream, which is behind
            return timed.spent
        self._measured[0] = 1
        return _seconds(begin, end)

    def _weight(self, window: GpuWindow, taken: list[float]) -> float:
        """For how many steps like itself the measured step stands."""
        before, begin, end = window.before, window.begin, window.end
        if before is None or begin is None or end is None or not before[1] == begin[1] == end[1]:
            return window.weight
        if before is begin:
            return 1.0
        apart = [(seconds, each.in_step) for each, seconds in zip(window.timed, taken, strict=True) if not each.usual]
        usual_s = _seconds(before, end) - window.unmarked_s - sum(seconds for seconds, _ in apart)
        own_s = _seconds(begin, end) - sum(seconds for seconds, in_step in apart if in_step)
        return max(1.0, usual_s / own_s) if own_s > 0 else 1.0


def _seconds(begin: Mark, end: Mark) -> float:
    return max(0.0, float(begin[0].elapsed_time(end[0])) / 1000)
