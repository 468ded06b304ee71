"""A failure: what went wrong, and its text in output/failure. Pure.

Which of several failures is the root cause is decided in root_cause.py.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence

from algorun.common.errors import ExitCode, UserError
from algorun.common.fast_dataclasses import dataclass, replace

from . import peer_errors
from .peer_errors import Distance

SHOWN = 1024  # characters of output/failure that SageMaker shows as the job's FailureReason
LONGEST_TRACEBACK = 24 * 1024  # characters, so that a failure fits a control message
ALSO, THEN = "also: ", "then: "  # before a failure of its own, and before a consequence
MOST_OTHERS = 8  # failures beside the root cause that are named
LONGEST_OTHER = 200  # characters of each
SHOWN_HOSTS = 16  # named in a message
LEAST_MESSAGE = 200  # characters of a long message that stay in the first line

# Exit codes of the signals that libraries and engines send when a peer has ended.
ABORTED = (128 + signal.SIGABRT, 128 + signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that went wrong. `age_s` is how long ago it was when its host reported it, by the host's own clock.

    kind: exception, exit, signal, left, hang, budget, lost, gate, configuration, mismatch, setup, preflight, engine, node,
    nonfinite or defect. `message` is one line, `traceback` the user's own (or the last lines of the log).
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
    note: str = ""  # why no attempt follows where restarts are left
    others: str = ""  # what else failed, a line each; the hub adds it to the root cause
    # How a rank left with 0 too early. Code, message and traceback are then those of a rank that still needed it.
    how_left: str = ""
    user_text: str = ""  # what the user's own script wrote to output/failure
    place: str = ""  # the user's own line of an exception, as `train.py:6`
    explains_itself: bool = False  # the message says what to do, as a UserError of ours does
    only_stdout: bool = False  # the traceback is the end of stdout: stderr had nothing

    @classmethod
    def of(cls, error: UserError, host: str) -> Failure:
        """The failure of a host that cannot run the job, or was given something wrong."""
        return cls("preflight" if error.code == ExitCode.PREFLIGHT else "configuration", host, error.code, str(error))

    @property
    def distance(self) -> Distance:
        """How far this failure is from the cause of the job's end.

        A crash is a cause, whatever the rank has printed, but for SIGABRT and SIGTERM: libraries and engines send these
        when a peer has ended.
        """
        if self.kind == "signal" and self.code not in ABORTED:
            return Distance.CAUSE
        return max(peer_errors.nearest(self.own_words), Distance.WAITED if self.kind == "engine" else Distance.CAUSE)

    @property
    def own_words(self) -> list[str]:
        """The exceptions, or last lines, that it is judged by."""
        return peer_errors.own_words(self.kind, self.message, self.traceback)

    @property
    def secondary(self) -> bool:
        """True where the failure is only a consequence of another one."""
        return self.distance is not Distance.CAUSE

    @property
    def of_gpu(self) -> bool:
        """True where memory of the rank's GPU has failed."""
        return any(peer_errors.says(peer_errors.FAILED_GPU, words) for words in self.own_words)

    @property
    def of_nccl(self) -> bool:
        """True where the words are NCCL's, which carries what is on GPUs."""
        return any(peer_errors.says(peer_errors.NCCL, words) for words in self.own_words)

    @property
    def crash(self) -> bool:
        """True for a rank that a signal ended."""
        return self.kind == "signal" and not self.secondary

    @property
    def silent(self) -> bool:
        """True for a rank that left without a word of an error, as MPI_Abort lets it."""
        return self.kind == "exit" and (self.only_stdout or not self.traceback.strip())

    def makes_stop_fail(self, *, bundled: bool) -> bool:
        """True where a stop has failed because of this: a checkpoint is not saved.

        In a user's script only a failed write counts, as many scripts leave with an exception when they are told to
        stop. The `bundled` programs leave with 0 when all is well.
        """
        if self.kind != "exception" or self.secondary:
            return False
        return bundled or peer_errors.failed_write(self.message, self.traceback)

    def headline(self) -> str:
        """The first line of output/failure."""
        who = f"rank {self.rank} on {self.host}" if self.rank is not None else self.host
        parts = [f"{self.kind}: {who} {self.how_left}"] if self.how_left else [f"{self.kind}: {who}", how(self.code)]
        if self.rank is not None:
            most = f"/{self.attempts}" if self.attempts > 1 else ""
            parts.append(f"attempt {self.attempt + 1}{most}")
        if self.step and not self.how_left:
            parts.append(f"step {self.step}")
        at = f" (at {self.place})" if self.place else ""
        return f"{', '.join(parts)}: {self.message}{at}" if self.message else f"{', '.join(parts)}{at}"

    def _cut(self, most: int) -> Failure:
        """The failure with at most `most` characters of its message; where it happened stands behind it."""
        return replace(self, message=f"{self.message[: most - 3]} .." if len(self.message) > most else self.message)

    def text(self, most: int = SHOWN) -> str:
        """At most `most` characters: what the user's script said, headline, the end of the traceback, hint. The same
        on every host."""
        if self.user_text:
            return f"{self.user_text}\n{replace(self, user_text='').text(max(0, most - len(self.user_text) - 1))}".rstrip()[
                :most
            ]
        head = self.headline()
        note = f"\n{self.note}" if self.note else ""
        hint = f"\nhint: {self.hint}" if self.hint else ""
        if len(head) + len(note) + len(hint) > most:
            short = self._cut(max(LEAST_MESSAGE, len(self.message) - (len(head) + len(note) + len(hint) - most)))
            return (short.headline() + note + hint)[:most]
        from . import tracebacks  # imported late: only a failure uses it

        room = most - len(head) - len(note) - len(hint) - 1
        trace = tracebacks.shortened(self.traceback.strip(), max(0, room))
        trace = f"\n{trace}" if trace else ""
        also = ""
        for line in self.others.splitlines():
            if len(trace) + len(also) + 1 + len(line) > room or not line.startswith(ALSO):
                break
            also += f"\n{line}"
        return f"{head}{trace}{note}{also}{hint}"


@dataclass(frozen=True, slots=True)
class RankLeft:
    """A rank that has left with 0: no failure, unless other ranks needed it. `step` counts its optimizer steps."""

    host: str
    rank: int
    step: int = 0
    attempt: int = 0

    @property
    def how(self) -> str:
        return f"left with 0 after step {self.step}" if self.step else "left with 0"


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception in a rank or in a process below it, sent when it reached the top.

    `at` is the host's monotonic clock. `parents` are the processes above this one, up to the rank, each with its command.
    `ended` are processes of which this exception says that they have failed, with their exit status (-n for signal n); the pid
    is 0 where only the `command` is known. `explains_itself`: the message says what to do.
    """

    rank: int
    pid: int
    at: float
    type: str
    message: str
    traceback: str
    parents: tuple[tuple[int, str], ...] = ()
    ended: tuple[tuple[int, int], ...] = ()
    command: str = ""
    explains_itself: bool = False


def with_others(first: Failure, reported: Iterable[tuple[float, Failure]]) -> Failure:
    """The root cause with what else was reported, a short line each: first what may be a cause, then consequences.

    `user_text` is that of the root cause's host, else of the first host that has one.
    """
    ordered = sorted(reported, key=lambda pair: (pair[1].distance, pair[0]))
    rest = [each for _, each in ordered if (each.host, each.rank) != (first.host, first.rank)]
    same = (first.kind, first.code, first.message)
    ranks = first.rank is not None
    equal = [each for each in rest if ranks == (each.rank is not None) and (each.kind, each.code, each.message) == same]
    named = [each for each in rest if each not in equal]
    lines = []
    if equal:
        alike = ", ".join(str(each.rank) if ranks else each.host for each in equal[:MOST_OTHERS])
        more = ", .." if len(equal) > MOST_OTHERS else ""
        lines.append(f"{ALSO}the same on {len(equal)} more: {'rank ' if ranks else ''}{alike}{more}")
    for each in named[:MOST_OTHERS]:
        line = (THEN if each.secondary else ALSO) + replace(each, attempts=first.attempts).headline()
        lines.append(line[:LONGEST_OTHER])
    if len(named) > MOST_OTHERS:
        lines.append(f"{THEN}{len(named) - MOST_OTHERS} more")
    near = sorted((first, *rest), key=lambda each: each.host != first.host)
    user_text = next((each.user_text for each in near if each.user_text), "")
    return replace(first, others="\n".join(lines), user_text=user_text)


def how(code: int) -> str:
    """`exit 7`, or `exit 137 (SIGKILL)`."""
    if 128 < code < 128 + signal.NSIG:
        try:
            return f"exit {code} ({signal.Signals(code - 128).name})"
        except ValueError:
            pass
    return f"exit {code}"


def listed(hosts: Sequence[str]) -> str:
    """Host names for a message; of many the first ones."""
    more = len(hosts) - SHOWN_HOSTS
    return ", ".join(hosts[:SHOWN_HOSTS]) + (f" and {more} more" if more > 0 else "")
