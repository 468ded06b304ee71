"""The trace of a window of steps on this host: finds what the ranks have noted, asks for the leader's clock, writes the part.

The ranks note their moments in files of the run folder (inside/rank_trace.py); timing/step_trace.py says what they mean.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence

from algorun.control.wire.messages import MOST_PACES, ClockAsked, ClockTold
from algorun.job.config import JobConfig
from algorun.job.paths import write_aside
from algorun.timing import step_trace
from algorun.timing.host_clock import HostClock
from algorun.timing.step_trace import Moments, TracePart

FIRST_QUESTIONS = 3  # when ranks have started: the window may be over, and the job too, before there is time for more
IN_A_ROW = 16  # after the window, each with the answer to the one before: the shortest round trip counts
LAST_QUESTIONS = 8  # at once, when the ranks have ended: then the hub's time may be short


class StepTrace:
    """Of one host, for all attempts of a job whose steps `window[0]` to `window[1]` are traced."""

    def __init__(
        self,
        config: JobConfig,
        window: tuple[int, int],
        run_dir: str,
        ask: Callable[[ClockAsked], None],
        say: Callable[[str], None],
    ) -> None:
        self._window, self._run_dir, self._ask_hub, self._say = window, run_dir, ask, say
        hosts, self._host = config.resources.hosts, config.resources.current_host
        self._number, self._paths = hosts.index(self._host), config.paths
        self._clock = HostClock(leads=self._host == hosts[0])
        self._attempt, self._ranks, self._questions = 0, list[int](), 0
        self._waits = False  # for the end of the window, or of the attempt
        self._answers_due = False  # the window is over, and the last questions are on their way
        self._to_ask = 0  # of them
        self._found_any = False

    def begin(self, attempt: int, ranks: Sequence[int]) -> None:
        """An attempt (from 1) is about to start these ranks of this host, by local rank."""
        self._attempt, self._ranks, self._questions = attempt, list(ranks), 0
        self._waits, self._answers_due = len(ranks) <= MOST_PACES, False
        self._to_ask = 0
        if self._waits:
            for local_rank in range(len(ranks)):
                with contextlib.suppress(OSError):
                    os.unlink(self._path(local_rank))

    def look(self) -> None:
        """Looks how far the window is; called every second or so while the ranks run."""
        if not self._waits:
            return
        heads = [self._read(local_rank, step_trace.HEAD.size) for local_rank in range(len(self._ranks))]
        if self._answers_due:
            self.keep()
        elif all(step_trace.is_closed(head) for head in heads):
            self._answers_due, self._to_ask = True, IN_A_ROW - 1
            self._ask(1)
        elif any(heads) or self._questions < FIRST_QUESTIONS:
            self._ask(1)

    def ask_last(self) -> None:
        """The ranks have ended: asks for the clock while the hub still answers."""
        if self._waits and not self._answers_due and any(self._read(at, 1) for at in range(len(self._ranks))):
            self._ask(LAST_QUESTIONS)

    def answered(self, told: ClockTold, now: float) -> None:
        """The hub's answer to a question."""
        self._clock.answered(told.asked_at, told.at, now)
        if self._to_ask:
            self._to_ask -= 1
            self._ask(1)

    def keep(self, *, final: bool = False) -> None:
        """Writes what there is of this attempt. `final`: of the job; the leader then says if no window was reached."""
        if not self._waits:
            return
        self._waits = False
        ranks = {rank: found for at, rank in enumerate(self._ranks) if (found := self._moments(at)) is not None}
        if any(found.steps for found in ranks.values()):
            self._found_any = True
            self._write(ranks)
        elif final and not self._found_any and self._clock.leads:
            first, last = self._window
            self._say(f"warning: ALGORUN_TRACE_STEPS={first}-{last}: no rank here has made step {first}; no trace")

    def _ask(self, count: int) -> None:
        if not self._clock.leads:
            self._questions += count
            for _ in range(count):
                self._ask_hub(ClockAsked(time.monotonic()))

    def _write(self, ranks: dict[int, Moments]) -> None:
        moments = [moment for each in ranks.values() for moment, _ in each.moments]
        clock = self._clock.offset(min(moments, default=0.0), max(moments, default=0.0))
        part = TracePart(self._host, self._number, self._attempt, ranks, clock, time.time() - time.monotonic())
        path = self._paths.step_trace(self._host, str(self._attempt))
        try:
            write_aside(path, json.dumps(step_trace.to_json(part), separators=(",", ":")) + "\n", flush=False)
        except OSError as error:
            self._say(f"warning: {path}: {error.strerror}; this host's part of the trace is lost")

    def _path(self, local_rank: int) -> str:
        return os.path.join(self._run_dir, f"trace-{local_rank}")

    def _read(self, local_rank: int, size: int = -1) -> bytes:
        try:
            with open(self._path(local_rank), "rb") as file:
                return file.read(size)
        except OSError:
            return b""

    def _moments(self, local_rank: int) -> Moments | None:
        try:
            return step_trace.read_moments(self._read(local_rank))
        except ValueError:
            return None
