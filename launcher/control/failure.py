"""A failure, and the choice of the one that began it all. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

SHOWN = 1024  # characters of output/failure that SageMaker shows as the job's FailureReason
LONGEST_TRACEBACK = 24 * 1024  # characters, so that a failure fits a control message

SEARCHED = 2000  # characters of message and of traceback that are looked at: `.*` takes quadratic time

# What a rank sees when another one has died: never the root where anything else is on offer. Collected from torch
# 2.10 to 2.15 (gloo, nccl, TCPStore) and Open MPI 4.1.
SECONDARY = re.compile(
    r"connection closed by (remote )?peer|connection reset by peer|broken pipe|connection refused"
    r"|socket timeout|recvvalue failed|sendbytes failed|remote process exited|ncclremoteerror"
    r"|client socket has failed to connect|dist(network|store|backend)error.*(peer|connect|closed|reset)"
    r"|timed out (after )?waiting .* for (recv|send)|mpi_abort was invoked",
    re.IGNORECASE,
)

# What a program may still say behind its failure: Hydra's advice, torch's warnings at exit.
AFTERWORD = re.compile(r"set the environment variable hydra_full_error|(\[rank\d+\]:)?\s*\[W\d{4} ", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that went wrong. `age_s` is how long ago it was when its host reported it, by the host's own clock.

    kind: exception, exit, signal, lost, gate, configuration, mismatch, engine or defect. `message` is one line,
    `traceback` the user's own (or the last lines of the log).
    """

    kind: str
    host: str
    code: int
    message: str
    rank: int | None = None
    traceback: str = ""
    hint: str = ""
    attempt: int = 0
    age_s: float = 0.0

    @property
    def secondary(self) -> bool:
        """True where the failure only says that another process has gone."""
        return SECONDARY.search(f"{self.message[:SEARCHED]}\n{self.traceback[-SEARCHED:]}") is not None

    def headline(self) -> str:
        """The first line of output/failure."""
        who = f"rank {self.rank} on {self.host}" if self.rank is not None else self.host
        parts = [f"{self.kind}: {who}", how(self.code)]
        if self.rank is not None:
            parts.append(f"attempt {self.attempt + 1}")
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
    that were connected to it, as those are secondary.
    """
    return min(reported, key=lambda pair: (pair[1].secondary, pair[0]))[1]
