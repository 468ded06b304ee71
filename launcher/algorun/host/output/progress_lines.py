"""Which lines of ranks count as progress: those in which the expression of ALGORUN_PROGRESS is found."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

LONGEST = 1000  # characters of a line that are searched
BUDGET_S = 1.0  # of computing, for what a rank prints at once: a usual expression takes milliseconds


class _TooSlow(Exception):
    """The expression has used up its budget."""


class ProgressLines:
    """For all ranks of a host. An expression that takes too long is switched off, with one warning: a match that never ends would
    hold up this host's signs of life.

    Only for the main thread: a timer of its computing time ends a match.
    """

    def __init__(self, regex: str, warn: Callable[[str], None]) -> None:
        self._pattern, self._warn = re.compile(regex), warn
        self._armed = self.off = False
        signal.signal(signal.SIGVTALRM, self._late)

    def found_in(self, lines: bytes) -> bool:
        """True if one of these whole lines matches."""
        if self.off:
            return False
        search = self._pattern.search
        try:
            self._arm(BUDGET_S)
            try:
                return any(search(line[:LONGEST]) for line in lines.decode("utf-8", "replace").split("\n") if line)
            finally:
                self._arm(0.0)
        except _TooSlow:
            self.off = True
            self._warn(
                f"ALGORUN_PROGRESS takes more than {BUDGET_S:g} s on a few lines, so it is switched off: every line counts as "
                "progress; fix: an expression without repetitions inside repetitions, such as step [0-9]+"
            )
            return False

    def _arm(self, seconds: float) -> None:
        self._armed = seconds > 0
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)

    def _late(self, number: int, frame: object) -> None:
        if self._armed:
            self._armed = False
            raise _TooSlow
