"""Tracebacks of ranks, held back until it is known which of them tells the cause. Only a terminal is shown less than
everything: the log files of the ranks have every line. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from algorun.common.fast_dataclasses import dataclass, field

from .failure import ALSO

MOST_NAMED = 8  # hosts, and ranks of each
HELD_S = 5.0  # from a traceback's first line: a job that has failed has ended by then, and one that goes on shows it
MARK = re.compile(rb"\[(\d+) ([^\]\n]{1,80})\] ")  # before each line of a rank: `[3 algo-2] `
CLOSING = re.compile(
    r"failed nnodes=(?P<hosts>\d+) (?:world_size=\d+ )?code=\d+"
)  # of a closing line, without the cause
BEGIN = re.compile(rb"(?:\[rank\d+\]: ?)?(?:  \+ Exception Group )?Traceback \(most recent call last\):")


@dataclass(slots=True)
class Traceback:
    """What a rank has printed on stderr since its traceback began. Its stdout, which Python writes when it leaves, is not held."""

    rank: int
    host: str
    begun: float  # seconds of the monotonic clock
    lines: list[bytes] = field(default_factory=list)  # with the rank's mark

    @property
    def text(self) -> str:
        """The lines without the mark."""
        return b"".join(MARK.sub(b"", line, count=1) for line in self.lines).decode("utf-8", "replace")

    @property
    def words(self) -> list[str]:
        """The exceptions that it tells, each as `Type: message`."""
        from . import peer_errors  # imported late: only a failure uses it

        return peer_errors.own_words("exit", "", self.text)

    @property
    def lost_its_peer(self) -> bool:
        """True where it only says that another process has gone: by the rule that finds the root cause."""
        from . import peer_errors

        return peer_errors.nearest(self.words) is peer_errors.Distance.PEER


class HeldTracebacks:
    """The tracebacks that are not shown yet. `held_s`: how long each of them waits for the job's end."""

    def __init__(self, held_s: float = HELD_S) -> None:
        self._held_s = held_s
        self._held: dict[bytes, Traceback] = {}  # by the rank's mark

    @property
    def is_empty(self) -> bool:
        """True while no rank is in a traceback."""
        return not self._held

    def take(self, stream: int, lines: bytes, now: float) -> bytes:
        """Takes whole lines of stdout (1) or stderr (2). Returns those that are shown now."""
        if stream == 1 or (not self._held and b"Traceback (most" not in lines):
            return lines
        return b"".join(line for line in lines.splitlines(keepends=True) if not self.holds(line, now))

    def holds(self, line: bytes, now: float) -> bool:
        """Takes one line of stderr. False if it is shown now."""
        found = MARK.match(line)
        if found is None:
            return False
        held = self._held.get(found[0])
        if held is None:
            if BEGIN.match(line, found.end()) is None:
                return False
            held = self._held[found[0]] = Traceback(int(found[1]), found[2].decode("utf-8", "replace"), now)
        held.lines.append(line)
        return True

    def expired(self, now: float) -> list[Traceback]:
        """Those that have been held for `held_s`: they are not held any longer."""
        marks = [mark for mark, held in self._held.items() if now - held.begun >= self._held_s]
        return [self._held.pop(mark) for mark in marks]

    def rest(self) -> list[Traceback]:
        """All that are held: the job has ended."""
        held, self._held = list(self._held.values()), {}
        return held


def split_by_cause(
    held: Sequence[Traceback], failed: tuple[str, int] | None, failure: str
) -> tuple[list[Traceback], list[Traceback]]:
    """The tracebacks that need not be shown beside the root cause, and those that tell something else.

    `failed`: host and rank of the root cause, whose traceback is in the text `failure`. Others need not be shown if they lost
    their peer, or end with the same exception.
    """
    others = [each for each in held if (each.host, each.rank) != failed]
    cause = failure.partition(f"\n{ALSO}")[0]  # what follows names other failures, but has no traceback of them
    told = [each for each in others if each.lost_its_peer or each.words[-1] in cause]
    return told, [each for each in others if each not in told]


def count_text(failed: Collection[tuple[str, int]], *, other: bool, complete: bool) -> str:
    """`3 other ranks failed with it (algo-1: 0, 1; algo-2: 3)`, or `at least 3 ..` where the list may not be complete.

    `failed`: host and rank of each. `other`: the root cause is a rank's too.
    """
    hosts = sorted({host for host, _ in failed}, key=lambda host: (len(host), host))
    named = [_named(host, sorted(rank for at, rank in failed if at == host)) for host in hosts[:MOST_NAMED]]
    more = "; .." if len(hosts) > MOST_NAMED else ""
    least, kind = "" if complete else "at least ", "other " if other else ""
    return f"{least}{len(failed)} {kind}rank{'s'[: len(failed) != 1]} failed with it ({'; '.join(named)}{more})"


def _named(host: str, ranks: Sequence[int]) -> str:
    """`algo-1: 0, 1`."""
    return f"{host}: {', '.join(map(str, ranks[:MOST_NAMED]))}{', ..' if len(ranks) > MOST_NAMED else ''}"
