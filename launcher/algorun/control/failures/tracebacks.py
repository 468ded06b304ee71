"""Tracebacks of Python as text: their exceptions, the user's own line, and a shorter text. Pure.

The text is that of inside/rank_report.py, or what a program has printed: the tracebacks of a chain, the oldest first, and
after that of an ExceptionGroup those of its members, with `member 1 of 2: ` before their header.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from algorun.common.fast_dataclasses import dataclass

# Patterns are text, compiled at the first failure: no start waits for that.
HEADER = "Traceback (most recent call last):"
# The line that Python prints between two tracebacks of one chain.
LINK = r"^(The above exception was the direct cause|During handling of the above exception|Then, in process \d+: )"
MEMBER = r"member [\d.]+ of \d+(, then)?: "
GROUP = r"\(\d+ sub-exceptions?\)"  # ends the message of a group
FRAME = r'  File "(.*?)", line (\d+)'
RANK = r"\[rank\d+\]:( |$)"  # torch writes it before each line of a traceback
# Files of packages and of Python itself, and the commands that packages install.
LIBRARY = r"/bin/[^/.]+$|/(site|dist)-packages/|/lib/python3(\.\d+)?/|<frozen |/algorun/inside/"
# Python's own form of a group has a margin: the header, a line, a border with the number of a member, another border.
MARGIN = r" *\+ (Exception Group Traceback .*)$| *\| ?(.*)$"
NUMBERED = r" *\+[+-]*-+ (\d+|\.\.\.) -+$"
CLOSED = r" *\+-+$"
GAP = "  .."  # stands for frames that are left out
MOST_TOLD = 3  # members of a group in the first line of a failure
LONGEST_LINE = 2000  # characters that are looked at


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame and the source below it: lines `begin` to `end` of the text."""

    begin: int
    end: int
    file: str
    line: int

    @property
    def of_library(self) -> bool:
        return re.search(LIBRARY, self.file) is not None


@dataclass(frozen=True, slots=True)
class TracebackBlock:
    """The traceback of one exception, from its header on: its frames, and the lines from `words` to `end` with its words."""

    begin: int
    frames: tuple[Frame, ...]
    words: int
    end: int
    member: bool  # of a group
    oldest: bool  # of its chain, in a group

    def text(self, lines: Sequence[str]) -> str:
        """The exception as `Type: message`, with its notes, on one line."""
        return " ".join(line for line in lines[self.words : self.end] if line)

    def first(self, lines: Sequence[str]) -> str:
        """The first line of the exception."""
        return next((line for line in lines[self.words : self.end] if line), "")


def lines_of(text: str) -> list[str]:
    """The lines of a text. Those of a group lose the margin that Python draws, those of torch's ranks their mark."""
    lines = _without_rank(text.split("\n"))
    return list(_without_margin(lines)) if "Exception Group Traceback" in text else lines


def _without_rank(lines: Iterable[str]) -> list[str]:
    return [re.sub(RANK, "", line, count=1) if line.startswith("[rank") else line for line in lines]


def blocks(lines: Sequence[str]) -> list[TracebackBlock]:
    """The tracebacks in a text, in its order."""
    begins = [at for at, line in enumerate(lines) if line.endswith(HEADER)]
    return [_block(lines, begin, end) for begin, end in pairwise([*begins, len(lines)])]


def _block(lines: Sequence[str], begin: int, end: int) -> TracebackBlock:
    words = begin + 1
    frames: list[Frame] = []
    while words < end and (not lines[words] or lines[words].startswith("  ") or _frame(lines[words])):
        if found := _frame(lines[words]):
            frames.append(Frame(words, words + 1, found[1], int(found[2][:9])))
        elif frames:
            frames[-1] = Frame(frames[-1].begin, words + 1, frames[-1].file, frames[-1].line)
        words += 1
    last = next((at for at in range(words, end) if re.match(LINK, lines[at])), end)
    member = re.match(MEMBER, lines[begin])
    return TracebackBlock(begin, tuple(frames), words, last, member is not None, member is not None and not member[1])


def _frame(line: str) -> re.Match[str] | None:
    return re.match(FRAME, line[:LONGEST_LINE]) if "File" in line else None


def _without_margin(lines: Iterable[str]) -> Iterator[str]:
    number = ""
    inside = False
    for line in lines:
        if found := re.match(NUMBERED, line):
            number = found[1]
        elif inside and re.match(CLOSED, line):
            continue
        elif found := re.match(MARGIN, line):
            inside = True
            text = found[1] or found[2] or ""
            if number.isdigit():
                mark, number = f"member {number} of {number}: ", ""
                yield mark + HEADER  # a member that was never raised has no traceback
                if text.endswith(HEADER):
                    continue
            yield text
        else:
            inside = False
            yield line


def outermost(found: Sequence[TracebackBlock]) -> TracebackBlock | None:
    """The exception that a process ended with, None where there is no traceback. Of a group that is the group itself.

    A message that holds another traceback, as torch's DataLoader writes it, counts as a chain: the innermost is the last.
    """
    return next((each for each in reversed(found) if not each.member), found[-1] if found else None)


def leaves(lines: Sequence[str], found: Sequence[TracebackBlock]) -> list[TracebackBlock]:
    """The members of the group that a process ended with, each by its newest exception; [] where it was no group."""
    last = outermost(found)
    after = [each for each in found if last is not None and each.begin > last.begin]
    newest: list[TracebackBlock] = []
    for each in after:
        if each.oldest or not newest:
            newest.append(each)
        else:
            newest[-1] = each
    return [each for each in newest if not re.search(rf"{GROUP}$", each.first(lines))]


def told(traceback: str) -> str:
    """The members of a group as one line, "" where the process did not end with a group."""
    lines = lines_of(traceback)
    found = blocks(lines)
    members = [each.first(lines) for each in leaves(lines, found)]
    if not members:
        return ""
    unlike = list(dict.fromkeys(members))[:MOST_TOLD]
    more = len(members) - len(unlike)
    return "; ".join(unlike) + (f" (and {more} more)" if more else "")


def ends_with(text: str, words: str) -> bool:
    """True where the last exception of a text has these words as its first line."""
    lines = lines_of(text)
    last = outermost(blocks(lines)) if HEADER in text else None
    return last is not None and last.first(lines).strip() == words


def place(traceback: str, code: str) -> str:
    """The user's own line of an exception, as `train.py:6`: that of the innermost frame in the folder `code`, else of the
    innermost one that is not of a library; "" without one."""
    lines = lines_of(traceback)
    near = _nearest(lines, blocks(lines))
    for of_file in (True, False):  # code without a file, such as `<string>`, if nothing else is there
        for each in near:
            own = [frame for frame in each.frames if not frame.of_library and frame.file.startswith("<") is not of_file]
            inside = [frame for frame in own if below(frame.file, code) != frame.file or not frame.file.startswith("/")]
            if own:
                frame = (inside or own)[-1]
                return f"{below(frame.file, code)}:{frame.line}"
    return ""


def _nearest(lines: Sequence[str], found: Sequence[TracebackBlock]) -> list[TracebackBlock]:
    """The tracebacks in the order in which they say where the failure was."""
    last = outermost(found)
    if last is None:
        return []
    # A pool of processes raises the worker's exception again, below the worker's own traceback.
    equal = [each for each in found if each is not last and each.text(lines) == last.text(lines)]
    return [*leaves(lines, found)[:1], *equal, last]


def below(file: str, code: str) -> str:
    folder = code.rstrip("/") + "/"
    return file.removeprefix(folder) if len(folder) > 1 else file


def shortened(text: str, room: int) -> str:
    """At most `room` characters of a text. Its tracebacks keep the exceptions and the user's own frames, from the innermost
    on; the rest of the room has what comes last."""
    if len(text) <= room:
        return text
    lines = text.split("\n")
    bare = _without_rank(lines)
    found = blocks(bare)
    kept = _Kept(lines, room)
    near = _nearest(bare, found)
    for each in near:
        kept.add(each.words, each.words + 1)
    own = {each.begin: [frame for frame in reversed(each.frames) if not frame.of_library] for each in found}
    for each in [*near, *reversed(found)]:
        for frame in own[each.begin][:1]:
            kept.add(frame.begin, frame.end)
    for each in reversed(found):
        kept.add(each.words, each.words + 1)
    for each in [*near, *reversed(found)]:
        for frame in own[each.begin]:
            kept.add(frame.begin, frame.end)
    kept.fill([each.frames for each in found])
    return kept.text() or text[max(0, len(text) - room) :]


class _Kept:
    """The lines of a text that are kept, within `room` characters."""

    def __init__(self, lines: Sequence[str], room: int) -> None:
        self._lines, self._room = lines, room + 1  # the first line has no newline before it
        self._kept: set[int] = set()

    def add(self, begin: int, end: int, gap: int = len(GAP) + 1) -> bool:
        """Keeps lines `begin` to `end` if there is room for them, and for the `gap` before them."""
        new = [at for at in range(begin, min(end, len(self._lines))) if at not in self._kept]
        size = sum(len(self._lines[at]) + 1 for at in new) + (gap if new else 0)
        if size > self._room:
            return False
        self._room -= size
        self._kept.update(new)
        return True

    def fill(self, frames: Sequence[Sequence[Frame]]) -> None:
        """Keeps lines from the end on while there is room; a frame is kept whole."""
        begins = {at: frame.begin for each in frames for frame in each for at in range(frame.begin, frame.end)}
        at = len(self._lines)
        self._room -= len(GAP) + 1 if begins else 0
        while at > 0:
            begin = begins.get(at - 1, at - 1)
            if not self.add(begin, at, gap=0):
                return
            at = begin

    def text(self) -> str:
        parts: list[str] = []
        before = -1
        for at in sorted(self._kept):
            if before >= 0 and at > before + 1 and self._lines[at].startswith("  "):
                parts.append(GAP)
            parts.append(self._lines[at])
            before = at
        return "\n".join(parts)
