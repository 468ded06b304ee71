"""What this host tells of its ranks' time, from their records: to the hub, and to a file of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from algorun.common.fast_dataclasses import dataclass
from algorun.control.wire.messages import MOST_PACES, Pace
from algorun.timing.rank_times import RankTimes

from .step_counter import StepBoard
from .times_file import TimesFile

# A host reports at heartbeats of the hub, and these are not exactly a second apart. If an early one did not count, this host's
# report would cover more steps than the reports of other hosts.
EARLY_S = 0.2


def queued_s(pid: int) -> float:
    """Seconds in which the main thread of a process was ready to run and no core was free; 0.0 where the kernel does not say.

    https://docs.kernel.org/scheduler/sched-stats.html: the second number of /proc/PID/schedstat, in nanoseconds.
    """
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read(100).split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


@dataclass(frozen=True, slots=True)
class ReportTo:
    """Where reports go."""

    hub: Callable[[Pace], None]
    file: TimesFile


class RankReports:
    """The reports of one attempt; `ranks` are the global ranks of this host, by local rank.

    A host with too many ranks reports nothing, and no host reports before each of its ranks has made a step.
    """

    def __init__(self, board: StepBoard, ranks: Sequence[int], attempt: int, to: ReportTo) -> None:
        self._board, self._ranks, self._attempt, self._to = board, ranks, attempt, to
        self._seen: tuple[RankTimes, ...] = ()  # when all ranks had last gone on
        self._told: tuple[RankTimes, ...] = ()
        self._told_at = -math.inf

    def look(self, now: float, every_s: float) -> None:
        """Reads the records, and reports them every `every_s` seconds; called while all ranks run."""
        if len(self._ranks) > MOST_PACES or every_s == math.inf:
            return
        found = tuple(self._read(local_rank, rank, now) for local_rank, rank in enumerate(self._ranks))
        if not all(each.steps for each in found):
            return
        if not self._seen or all(new.steps > old.steps for new, old in zip(found, self._seen, strict=True)):
            self._seen = found
        if now - self._told_at >= every_s - EARLY_S:
            self._told_at = now
            self._tell(found)

    def tell_last(self) -> None:
        """Reports what was seen last while all ranks made steps: what a rank does after its last one makes nobody wait."""
        if self._has_more:
            self._tell(self._seen, last=True)

    def keep_last(self) -> None:
        """As `tell_last`, for this host's file alone: the attempt has failed, and nobody judges its times."""
        if self._has_more:
            self._told = self._seen
            self._to.file.report(self._seen, last=True)

    @property
    def _has_more(self) -> bool:
        return bool(self._seen and self._told) and self._seen[0].at > self._told[0].at

    def _read(self, local_rank: int, rank: int, now: float) -> RankTimes:
        found = self._board.read(local_rank)
        spent = tuple(round(each, 4) for each in found.activities)
        return RankTimes(rank, found.group, found.count, round(now, 4), spent, round(queued_s(found.pid), 4))

    def _tell(self, times: tuple[RankTimes, ...], *, last: bool = False) -> None:
        self._told = times
        self._to.hub(Pace(self._attempt, times))
        self._to.file.report(times, last=last)
