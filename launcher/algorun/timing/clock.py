"""A host's wall time as a row of spans, each with one cause: the spans add up to the wall time by construction."""

from __future__ import annotations

from collections.abc import Sequence

from algorun.common.fast_dataclasses import dataclass

from .activities import NAMES

# What a second of a host went to, in the order of the closing table. docs/time.md explains each.
LAUNCHER = "launcher"
PREPARE, FETCH, INSTALL, UNPACK = "prepare", "fetch", "install", "unpack"
GATE, CHECK = "gate", "check"
PROGRAM = "program"  # ranks run, and nobody counts their steps
IMPORT, FIRST_STEP, TRAINING, AFTER_STEPS = "import", "first_step", "training", "after_steps"
LOST, RESTART = "lost_attempts", "restarts"
STOPPING, WAITING, LEAVING = "stopping", "waiting", "leaving"

CAUSES = (
    *(LAUNCHER, PREPARE, FETCH, INSTALL, UNPACK, GATE, CHECK, PROGRAM, IMPORT, FIRST_STEP, TRAINING, AFTER_STEPS),
    *(LOST, RESTART, STOPPING, WAITING, LEAVING),
)
OF_RANKS = frozenset({PROGRAM, IMPORT, FIRST_STEP, TRAINING, AFTER_STEPS})
BETWEEN_ATTEMPTS = frozenset({GATE, CHECK})  # after a failed attempt this is the price of the restart


@dataclass(frozen=True, slots=True)
class RankMoments:
    """What one rank's record says of an attempt. Moments are seconds of the host's monotonic clock, 0.0 unknown."""

    steps: int
    torch_at: float  # torch's optimizer module was imported
    first_step_at: float  # the end of the first optimizer step
    last_step_at: float  # the end of the last one
    activities: tuple[float, ...] = ()  # seconds by activity, see timing/activities.py
    work: tuple[float, float, float] = (0.0, 0.0, 0.0)  # its share of samples, tokens and operations; 0.0 not said
    beside: float = 0.0  # seconds of evaluations and saves between the first and the last step
    on_gpu: bool = False  # the seconds by activity are those of the rank's GPU


@dataclass(frozen=True, slots=True)
class Work:
    """What `ranks` ranks of a host have trained on: their shares of samples, tokens and operations; 0.0 not said."""

    ranks: int = 0
    samples: float = 0.0
    tokens: float = 0.0
    flops: float = 0.0


class Clock:
    """One host's time since `begin` (seconds, monotonic). Each `mark` ends the span before it."""

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.steps = 0  # of the last attempt: those of the rank that made most
        self.lost_steps = 0  # of the attempts that failed and were followed by another one
        self.attempts = 0  # that have started their ranks
        self.activities: dict[str, float] = {}  # of the last attempt, the mean over the ranks; {} if none are seen
        self.on_gpu = False  # all ranks' activities are times of their GPUs
        self.beside = 0.0  # of the last attempt's training: seconds of evaluations and saves that are seen
        self.work = Work()  # of the last attempt's training, so without the first step
        self._marks: list[tuple[float, str]] = [(begin, LAUNCHER)]
        self._restarting = False

    @property
    def cause(self) -> str:
        """What the time goes to now."""
        return self._marks[-1][1]

    def mark(self, now: float, cause: str) -> None:
        """From `now` on the time goes to `cause`."""
        if cause == PROGRAM:
            self._restarting = False
            self.attempts += 1
        elif self._restarting and cause in BETWEEN_ATTEMPTS:
            cause = RESTART
        if cause != self.cause or cause == PROGRAM:
            self._marks.append((max(now, self._marks[-1][0]), cause))

    def divide(self, now: float, cause: str, moments: Sequence[tuple[float, str]]) -> None:
        """Divides the last span of `cause`: from each (moment, other cause) on, its time goes to the other cause.

        A moment outside of the span is moved to its edge, so the spans still add up.
        """
        found = [index for index, mark in enumerate(self._marks) if mark[1] == cause]
        if not found:
            return
        at = found[-1]
        end = self._marks[at + 1][0] if at + 1 < len(self._marks) else now
        inside, last = [], self._marks[at][0]
        for moment, other in moments:
            last = min(max(moment, last), end)
            inside.append((last, other))
        self._marks[at + 1 : at + 1] = inside

    def ranks(self, now: float, records: Sequence[RankMoments]) -> None:
        """Divides the time of this attempt's ranks by the moments of their records, each the mean over the ranks.

        Where a rank has made no step, nothing is divided: what the program did is not known.
        """
        starts = [moment for moment, cause in self._marks if cause == PROGRAM]
        if not starts or not records or not all(each.steps and each.first_step_at for each in records):
            return
        self.steps = max(each.steps for each in records)

        def mean(moments: Sequence[float]) -> float:
            return sum(moments) / len(moments)

        spent = {name: mean(row) for name, *row in zip(NAMES, *(each.activities for each in records), strict=False)}
        self.activities = spent if any(spent.values()) else {}
        self.on_gpu = all(each.on_gpu for each in records)
        after_first = (self.steps - 1) / self.steps
        done = [sum(amounts) * after_first for amounts in zip(*(each.work for each in records), strict=True)]
        self.work = Work(len(records), *done)
        self.beside = mean([each.beside for each in records])

        torch_at = mean([each.torch_at for each in records]) if all(each.torch_at for each in records) else 0.0
        first, last = mean([each.first_step_at for each in records]), mean([each.last_step_at for each in records])
        rest = [(torch_at, FIRST_STEP)] if torch_at else []
        self.divide(
            now,
            PROGRAM,
            [(starts[-1], IMPORT if torch_at else FIRST_STEP), *rest, (first, TRAINING), (last, AFTER_STEPS)],
        )

    def attempt_failed(self, now: float, steps: int) -> None:
        """The attempt has failed after `steps` and another one follows: the time of its ranks is lost, up to now."""
        begun = max((at for at, (_, cause) in enumerate(self._marks) if cause == PROGRAM), default=len(self._marks))
        self._marks[begun:] = [(moment, LOST) for moment, _ in self._marks[begun:]]
        self._restarting = True
        self.lost_steps += steps
        self.mark(now, RESTART)

    def seconds(self, now: float) -> dict[str, float]:
        """Seconds by cause from the begin until `now`, in the order of CAUSES, without causes that took no time."""
        found = dict.fromkeys(CAUSES, 0.0)
        ends = [moment for moment, _ in self._marks[1:]] + [max(now, self._marks[-1][0])]
        for (moment, cause), end in zip(self._marks, ends, strict=True):
            found[cause] += end - moment
        return {cause: spent for cause, spent in found.items() if spent > 0}
