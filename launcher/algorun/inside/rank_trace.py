"""Runs in a rank whose steps are traced (ALGORUN_TRACE_STEPS): notes when each activity of a window of steps begins and ends.

rank_steps executes it, if the variable is set, in a process that uses torch. The moments go into a file of the run folder
that is mapped: to note one is three stores into memory, no call of the system. The supervisor reads the file
(host/measuring/step_trace.py), also if this process is killed. As there, no module that a file of the user could replace is imported.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing itself must not be imported here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class Activities(Protocol):
        """Of rank_steps."""

        note: Callable[[float, int], None] | None

        @property
        def open(self) -> list[int]: ...


# The file: eight words of 8 bytes, then two for each moment, a float and a number. timing/step_trace.py reads it.
FORMAT, COUNT, LEFT_OUT, CLOSED, FIRST, LAST = range(6)
HEAD, MOMENT = 8, 2  # words
MOST_MOMENTS = 16384  # of a rank: 256 KiB
MOST_OF_HOST = 131072  # of all ranks of a host: the supervisor writes them in a second, and answers nobody meanwhile
END, STEP = 0, 255  # what a moment is; between them: the begin of an activity, from 1


class Trace:
    """`mmap` is the module, `path` the file to be made. `first` and `last` are steps, counted from 1 in each attempt.

    `ranks` of this host share its room for moments. The ends of all steps always have room.
    """

    # Any: see rank_steps
    def __init__(self, mmap: Any, path: str, steps: str, ranks: int, activities: Activities) -> None:
        first, _, last = steps.partition("-")
        self._first, self._last = int(first), int(last)
        self._most = max(min(MOST_MOMENTS, MOST_OF_HOST // ranks), self._last - self._first + 2)
        self._mmap, self._path, self._activities = mmap, path, activities
        self._note: Callable[[float, int], None] | None = None

    def stepped(self, count: int, now: float) -> None:
        """The step `count` ended at `now`."""
        if self._note is not None:
            self._note(now, STEP)
            if count >= self._last:
                self._close(now)
        elif count == self._first - 1:
            self._begin(now)

    def _begin(self, now: float) -> None:
        size = 8 * (HEAD + MOMENT * self._most)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(file, bytes(size), 0)  # a full disk is an error here; in a mapped page it would be SIGBUS
            whole = memoryview(self._mmap.mmap(file, size))
        finally:
            os.close(file)
        numbers, times = whole.cast("Q"), whole.cast("d")
        numbers[FIRST], numbers[LAST] = self._first, self._last
        at, end = HEAD, HEAD + MOMENT * self._most
        full = end - MOMENT * (self._last - self._first + 2)  # the ends of steps always have room

        def note(now: float, what: int) -> None:
            nonlocal at
            if at >= (end if what == STEP else full):
                numbers[LEFT_OUT] += 1
                return
            times[at], numbers[at + 1] = now, what
            at += MOMENT
            numbers[COUNT] += 1  # last: a reader sees whole moments

        self._numbers = numbers
        self._note = self._activities.note = note
        note(now, STEP)
        for index in self._activities.open:
            note(now, index + 1)
        numbers[FORMAT] = 1

    def _close(self, now: float) -> None:
        assert self._note is not None
        for _ in self._activities.open:
            self._note(now, END)
        self._numbers[CLOSED] = 1
        self._note = self._activities.note = None


def begin(mmap: Any, folder: str, local_rank: int, activities: Activities) -> Trace:  # Any: see rank_steps
    """The trace of this process; nothing is noted before its window."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return Trace(mmap, f"{folder}/trace-{local_rank}", os.environ["ALGORUN_TRACE_STEPS"], ranks, activities)
