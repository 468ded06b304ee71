"""What a terminal is shown of a job's failure: the cause first, and once; then which ranks failed with it.

A traceback waits for the job's end, by the rules of `algorun simulate`. Each host prints the cause and a closing line: those of
the first host are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from algorun.control.failures.held_tracebacks import (
    CLOSING,
    HELD_S,
    HeldTracebacks,
    Traceback,
    count_text,
    split_by_cause,
)

from .line_text import marked
from .log_reader import LogLine
from .outcome import HEADLINE

SAID = "algorun: "  # before the first line of a failure in the log of a host
MORE = "| "  # before its other lines
WORDS = ("Traceback (most", SAID, "failed nnodes=")  # a line without any of them begins nothing that is looked at here
FAILED = re.compile(r"[a-z]+: rank (\d+) on ([A-Za-z0-9.-]+)")


@dataclass(frozen=True, slots=True)
class FailureEnd:
    """What is left to show at the end. `count` says how many ranks failed with the cause, "" for none."""

    count: str = ""
    lines: Sequence[LogLine] = ()  # tracebacks that tell something else
    is_told: bool = False  # the cause is on the screen


class FailureLines:
    """Chooses the lines that a terminal shows. `late_s`: how long lines may be on their way, in seconds; `command`: what shows all
    lines."""

    def __init__(self, late_s: float, command: str) -> None:
        self.command = command
        self._held = HeldTracebacks(HELD_S + late_s)
        self._cause = ""  # the first line of the failure, once a host has told it
        self._again: set[str] = set()  # hosts that tell it once more, at this moment
        self._hosts = 0
        self._closed: set[str] = set()  # hosts whose closing line has come
        self._has_expired = False

    def take(self, lines: Sequence[LogLine], now: float) -> list[LogLine]:
        """Those of the new lines that are shown now, behind the tracebacks that have waited long enough."""
        expired = self._expired(now)
        is_quiet = self._held.is_empty and not self._cause
        if is_quiet and not any(word in line.text for line in lines for word in WORDS):
            return [*expired, *lines]
        return [*expired, *(shown for line in lines if (shown := self._shown(line, now)) is not None)]

    def _shown(self, line: LogLine, now: float) -> LogLine | None:
        mark, text = marked(line.host, line.text)
        if mark != f"[{line.host}]":
            return None if self._held.holds(f"{mark} {text}\n".encode("utf-8", "replace"), now) else line
        if text.startswith(SAID) and HEADLINE.match(cause := text.removeprefix(SAID)):
            if cause == self._cause:
                self._again.add(line.host)
                return None
            self._cause = self._cause or cause
            return line
        if line.host in self._again and text.startswith(MORE):
            return None
        self._again.discard(line.host)
        return self._closing(line, text)

    def _closing(self, line: LogLine, text: str) -> LogLine | None:
        """Of a closing line what the cause does not tell yet; None if another host has said the same."""
        found = CLOSING.match(text)
        if found is None or not self._cause or text[found.end() :].strip() != self._cause:
            return line
        is_first = not self._closed
        self._closed.add(line.host)
        self._hosts = int(found["hosts"])
        return line._replace(text=found[0]) if is_first else None

    def _expired(self, now: float) -> list[LogLine]:
        shown: list[LogLine] = []
        for each in self._held.expired(now):
            self._has_expired = True
            if each.lost_its_peer:
                words = f"lost its peer; {len(each.lines)} lines of its traceback: {self.command}"
                shown.append(LogLine(each.host, "", 0, f"[{each.rank} {each.host}] {words}"))
            else:
                shown += _lines([each])
        return shown

    def end(self, failure: str) -> FailureEnd:
        """Gives back what is held. `failure`: the text of the root cause, "" if the job has not failed."""
        held = self._held.rest()
        if not failure:
            return FailureEnd(lines=_lines(held))
        found = FAILED.match(self._cause or failure)
        failed = (found[2], int(found[1])) if found else None
        told, others = split_by_cause(held, failed, failure)
        is_complete = not self._has_expired and 0 < self._hosts == len(self._closed)
        ranks = {(each.host, each.rank) for each in told}
        count = count_text(ranks, other=failed is not None, complete=is_complete) if ranks else ""
        is_told = bool(self._cause) and failure.startswith(self._cause)
        return FailureEnd(count, _lines(others), is_told)


def _lines(tracebacks: Iterable[Traceback]) -> list[LogLine]:
    texts = [(each.host, line.decode("utf-8", "replace")) for each in tracebacks for line in each.lines]
    return [LogLine(host, "", 0, text.rstrip("\n")) for host, text in texts]
