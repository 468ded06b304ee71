"""What this host tells the hub of how busy it is while its ranks make steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from algorun.control.wire.messages import Load
from algorun.timing.host_figures import HostFigures
from algorun.timing.host_load import HostLoad, host_load
from algorun.timing.rank_times import RankTimes

from .step_counter import StepBoard

MOST_SAMPLES = 300  # in a window: ten minutes in which no rank has made a step


class LoadReports:
    """The reports of one attempt with this number of `ranks` on this host. A window begins and ends with a step of every rank, so
    nothing that follows the last step is judged."""

    def __init__(self, board: StepBoard, ranks: int, attempt: int, send: Callable[[Load], None]) -> None:
        self._board, self._ranks, self._attempt, self._send = board, ranks, attempt, send
        self._begin: tuple[RankTimes, ...] = ()
        self._end: tuple[RankTimes, ...] = ()
        self._samples: list[HostFigures] = []  # since the begin
        self._until_end = 0  # of them, up to the end
        self._fresh: list[HostFigures] = []  # since the last report
        self._told_at = -math.inf

    def look(self, now: float, every_s: float, samples: Sequence[HostFigures]) -> None:
        """Takes the newest samples, and reports every `every_s` seconds; called while all ranks run."""
        if every_s == math.inf:
            return
        self._fresh += samples
        self._samples = [*self._samples, *samples][:MOST_SAMPLES]
        self._watch(tuple(self._read(local_rank, now) for local_rank in range(self._ranks)))
        if now - self._told_at >= every_s:
            self._told_at = now
            if self._end:
                self._tell_window()
            elif self._fresh:
                self._tell(host_load(self._fresh))
            self._fresh.clear()

    def tell_last(self) -> None:
        """Reports the window that runs, up to the last step."""
        if self._end:
            self._tell_window()

    def _watch(self, found: tuple[RankTimes, ...]) -> None:
        if not self._begin:
            if all(each.steps for each in found):
                self._restart(found, [])
        elif all(new.steps > old.steps for new, old in zip(found, self._end or self._begin, strict=True)):
            self._end, self._until_end = found, len(self._samples)

    def _tell_window(self) -> None:
        self._tell(host_load(self._samples[: self._until_end], self._begin, self._end, self._workers()))
        self._restart(self._end, self._samples[self._until_end :])

    def _workers(self) -> int | None:
        found = [self._board.read(local_rank).workers for local_rank in range(self._ranks)]
        return min((each for each in found if each is not None), default=None)

    def _restart(self, begin: tuple[RankTimes, ...], samples: list[HostFigures]) -> None:
        self._begin, self._end, self._samples, self._until_end = begin, (), samples, 0

    def _tell(self, load: HostLoad) -> None:
        self._send(Load(self._attempt, load))

    def _read(self, local_rank: int, now: float) -> RankTimes:
        found = self._board.read(local_rank)
        return RankTimes(local_rank, found.group, found.count, now, found.activities)
