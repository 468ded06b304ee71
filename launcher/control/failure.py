"""A failure, and the choice of the one that began it all. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from . import symptoms
from .symptoms import Distance

SHOWN = 1024  # characters of output/failure that SageMaker shows as the job's FailureReason
LONGEST_TRACEBACK = 24 * 1024  # characters, so that a failure fits a control message

ABORTED = (128 + signal.SIGABRT, 128 + signal.SIGTERM)  # signals that a library or an engine uses for a peer's end

# What a program may still say behind its failure: Hydra's advice, torch's warnings at exit.
AFTERWORD = re.compile(r"set the environment variable hydra_full_error|(\[rank\d+\]:)?\s*\[W\d{4} ", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that went wrong. `age_s` is how long ago it was when its host reported it, by the host's own clock.

    kind: exception, exit, signal, hang, budget, lost, gate, configuration, mismatch, setup, preflight, engine or
    defect. `message` is one line, `traceback` the user's own (or the last lines of the log).
    """

    kind: str
    host: str
    code: int
    message: str
    rank: int | None = None
    traceback: str = ""
    hint: str = ""
    attempt: int = 0
    attempts: int = 1  # the most there may be
    step: int = 0  # optimizer steps that the rank had made, 0 where nobody counts
    age_s: float = 0.0

    @property
    def distance(self) -> Distance:
        """How far from the cause of it all this is. What ended by a fault of its own did not end by a peer's."""
        if self.kind == "signal" and self.code not in ABORTED:
            return Distance.CAUSE
        words = symptoms.own_words(self.kind, self.message, self.traceback)
        return max(symptoms.distance(words), Distance.WAITED if self.kind == "engine" else Distance.CAUSE)

    @property
    def secondary(self) -> bool:
        """True where the failure is only a consequence of another one."""
        return self.distance is not Distance.CAUSE

    @property
    def crash(self) -> bool:
        """True for a rank that a signal ended."""
        return self.kind == "signal" and not self.secondary

    @property
    def silent(self) -> bool:
        """True for a rank that left without a word, as MPI_Abort lets it."""
        return self.kind == "exit" and not self.traceback.strip()

    def spoils_a_stop(self, *, bundled: bool) -> bool:
        """True where a job that was told to stop has failed nevertheless: what was to be saved is not.

        Of a script of the user's only a write that failed counts, as many leave with an exception when they are told
        to stop. The `bundled` programs leave with 0 when all is well.
        """
        if self.kind != "exception" or self.secondary:
            return False
        return bundled or symptoms.failed_write(self.message, self.traceback)

    def headline(self) -> str:
        """The first line of output/failure."""
        who = f"rank {self.rank} on {self.host}" if self.rank is not None else self.host
        parts = [f"{self.kind}: {who}", how(self.code)]
        if self.rank is not None:
            most = f"/{self.attempts}" if self.attempts > 1 else ""
            parts.append(f"attempt {self.attempt + 1}{most}")
        if self.step:
            parts.append(f"step {self.step}")
        return f"{', '.join(parts)}: {self.message}" if self.message else ", ".join(parts)

    def text(self, most: int = SHOWN) -> str:
        """At most `most` characters: headline, the end of the traceback, hint. The same on every host."""
        head = self.headline()
        tail = f"\nhint: {self.hint}" if self.hint else ""
        if len(head) + len(tail) > most:
            return (head + tail)[:most]
        room = most - len(head) - len(tail) - 1
        trace = self.traceback.strip()
        if len(trace) > room:
            trace = trace[len(trace) - room :]
            trace = trace[trace.find("\n") + 1 :] if "\n" in trace else trace
        return f"{head}\n{trace}{tail}" if trace else f"{head}{tail}"


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception in a rank, sent when it reached the top. `at` is the host's monotonic clock."""

    rank: int
    pid: int
    at: float
    type: str
    message: str
    traceback: str


def last_words(tail: str) -> str:
    """The line to quote of a program that ended by itself: its last one, but for afterwords."""
    lines = [line for line in tail.splitlines() if line.strip()]
    told = next((line for line in reversed(lines) if not AFTERWORD.match(line)), None)
    return (told or (lines or [""])[-1]).strip()


def how(code: int) -> str:
    """`exit 7`, or `exit 137 (SIGKILL)`."""
    if 128 < code < 128 + signal.NSIG:
        try:
            return f"exit {code} ({signal.Signals(code - 128).name})"
        except ValueError:
            pass
    return f"exit {code}"


def root(reported: Iterable[tuple[float, Failure]]) -> Failure:
    """The failure to blame, of (onset, failure) pairs with onsets on one clock.

    What only names a vanished peer comes last, then the earliest onset wins. A lost host beats the exceptions of ranks
    that were connected to it, as those are secondary. A crash beats a silent exit: the rank that calls MPI_Abort over
    a crashed peer can be reported before the peer.
    """
    ordered = sorted(reported, key=lambda pair: (pair[1].distance, pair[0]))
    first = ordered[0][1]
    if first.silent:
        return next((failure for _, failure in ordered if failure.crash), first)
    return first
