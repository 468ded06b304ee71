"""The last lines that a program has written, for the report of its end. Pure."""

from __future__ import annotations

from collections import deque

MOST_LINES = 40
DUMP = b"Fatal Python error: "  # faulthandler's first line; the stacks of all threads follow
BEFORE_DUMP = 12  # lines, which are the program's own last words
STACK = b"frame #"  # a line of a C++ stack, of which torch's watchdog prints three after its words
OF_DUMP = (b"  ", b"Thread ", b"Current thread ", b"Extension modules: ")


class Tail:
    """The newest lines. Stacks do not push out the lines before them, which say why they came: a C++ stack is left out."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=MOST_LINES)
        self._words: list[bytes] = []  # what came before the dump
        self._since = 0  # lines since then that are none of the dump's

    def add(self, text: bytes) -> None:
        """Whole lines, each ended by a newline."""
        if DUMP in text:
            before, _, dump = text.partition(DUMP)
            self._add(before)
            self._words, self._since = list(self._lines)[-BEFORE_DUMP:], 0
            self._lines.clear()
            text = DUMP + dump
        self._add(text)

    def _add(self, text: bytes) -> None:
        if not text:
            return
        if STACK in text:
            text = b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(STACK))
            if not text:
                return
        lines = text.removesuffix(b"\n").rsplit(b"\n", MOST_LINES)[-MOST_LINES:]
        self._lines.extend(lines)
        if self._words:
            self._since += sum(bool(line) and not line.startswith(OF_DUMP) for line in lines)
            if self._since > MOST_LINES:  # another process has ended, and this program goes on
                self._words = []

    @property
    def text(self) -> str:
        """The lines, oldest first."""
        return b"\n".join([*self._words, *self._lines]).decode("utf-8", "replace")
