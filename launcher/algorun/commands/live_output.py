"""`simulate` on a terminal: the lines of hosts scroll, each host in its colour; below them stand rows that are drawn anew."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from algorun.common import terminal
from algorun.common.durations import duration
from algorun.common.standard_streams import StandardStream
from algorun.control.failures.held_tracebacks import (
    CLOSING,
    MARK,
    HeldTracebacks,
    Traceback,
    count_text,
    split_by_cause,
)
from algorun.job import metric_definitions
from algorun.job.paths import Paths

from .simulated_end import SimulatedEnd

DRAW_S = 0.5  # between two drawings of the rows
NEWEST = 64 * 1024  # bytes of the newest lines that are searched for metrics, each time the rows are drawn
BOLD, DIM = "1", "2"
COLOURS = dict(zip(("red", "green", "yellow", "blue", "magenta", "cyan"), range(31, 37), strict=True))
GOOD, BAD = f"{BOLD};{COLOURS['green']}", f"{BOLD};{COLOURS['red']}"
LINE_STARTS = re.compile(b"^" + MARK.pattern, re.MULTILINE)


class LiveDisplay:
    """Lines with colours, rows below them, and no traceback of a rank that only lost its peer."""

    look_s = DRAW_S

    def __init__(self, about: str, trees: Mapping[str, Path], environ: Mapping[str, str]) -> None:
        self._about, self._trees = about, trees
        self._can_move, self._has_colours = terminal.can_move(environ), terminal.has_colours(environ)
        self._streams = {1: StandardStream(1), 2: StandardStream(2)}
        self._both = os.isatty(2)  # else stderr goes into a file, which gets everything
        self._held, self._metrics = HeldTracebacks(), _Metrics()
        self._begun = self._drawn_at = time.monotonic()
        self._stopped_s: float | None = None
        self._rows = 0  # that the terminal shows below the lines

    def write(self, stream: int, lines: bytes) -> None:
        if stream == 2 and not self._both:
            self._streams[2].write(lines)
        elif lines:
            self._metrics.add(lines)
            self._show(self._held.take(stream, lines, time.monotonic()), stream)

    def look(self, stopped_s: float | None) -> None:
        self._stopped_s, now = stopped_s, time.monotonic()
        expired = self._held.expired(now)
        if expired or now - self._drawn_at >= DRAW_S:
            self._metrics.read()
            self._drawn_at = now
            self._show(b"".join(map(self._shortened, expired)))

    def end(self, end: SimulatedEnd) -> None:
        """The cause first, and once; then what else failed, where the time went, and where the rest is."""
        held = self._held.rest()
        told, others = split_by_cause(held, end.failed, end.failure) if end.failure else ([], held)
        self._put(1, self._erased())
        if end.failure:
            first, *rest = end.failure_lines
            self._put(2, "\n".join([self._styled(first, BAD) if self._both else first, *rest, ""]).encode())
        if end.failure and self._both:
            self._put(1, self._because(end, told, others))
        self._put(1, self._coloured(b"".join(line for each in others for line in each.lines)))
        about = "".join(f"{line}\n" for line in end.about_lines)
        self._put(1, f"{about}{self._styled(self._closing(end), BAD if end.code else GOOD)}\n".encode())

    def _closing(self, end: SimulatedEnd) -> str:
        """The closing line, without the cause if that stands above it."""
        found = CLOSING.match(end.line) if end.failure and self._both else None
        return found[0] if found else end.line

    def _because(self, end: SimulatedEnd, told: Sequence[Traceback], others: Sequence[Traceback]) -> bytes:
        """Which ranks failed with the cause, because of it or as it did, and where their lines are.

        A traceback that waited too long is not among them, but its rank is among those that its host has reported.
        """
        apart = {end.failed, *((each.host, each.rank) for each in others)}
        failed = {*((each.host, each.rank) for each in told), *end.failed_ranks} - apart
        if not failed:
            return b""
        host, rank = min(failed)
        tree, log = self._trees[host], self._log(host, rank)
        is_one_host = len({host for host, _ in failed}) == 1
        where = os.path.relpath((tree if is_one_host else tree.parent / "*") / log.parent.relative_to(tree))
        count = count_text(failed, other=end.failed is not None, complete=end.is_complete)
        lines = (count, f"{'its' if len(failed) == 1 else 'their'} lines: {where}")
        return "".join(f"algorun: {line}\n" for line in lines).encode()

    def _log(self, host: str, rank: int) -> Path:
        return Paths(self._trees[host]).output_data / "logs" / f"rank-{rank:05d}.log"

    def _show(self, lines: bytes, stream: int = 1) -> None:
        """Lines above the rows, which are drawn anew."""
        self._put(stream, self._erased() + self._coloured(lines) + self._drawn())

    def _shortened(self, traceback: Traceback) -> bytes:
        """A traceback while the job goes on: whole, unless its rank only lost its peer."""
        if traceback.host not in self._trees or not traceback.lost_its_peer:
            return b"".join(traceback.lines)
        mark = MARK.match(traceback.lines[0])
        assert mark is not None
        where = os.path.relpath(self._log(traceback.host, traceback.rank))
        return mark[0] + f"lost its peer; {len(traceback.lines)} lines of its traceback: {where}\n".encode()

    def _put(self, stream: int, data: bytes) -> None:
        if data:
            self._streams[stream].write(data)

    def _coloured(self, lines: bytes) -> bytes:
        """Each line's mark in its host's colour."""
        if not self._has_colours:
            return lines
        return LINE_STARTS.sub(_mark_in_colour, lines)

    def _styled(self, text: str, style: str) -> str:
        if not self._has_colours:
            style = ";".join(part for part in style.split(";") if int(part) < 30)
        return f"\x1b[{style}m{text}\x1b[0m" if style and self._can_move else text

    def _erased(self) -> bytes:
        """Takes the rows away, wherever the terminal is."""
        rows, self._rows = self._rows, 0
        up = f"\x1b[{rows - 1}A" if rows > 1 else ""
        return f"\r{up}\x1b[J".encode() if rows else b""

    def _drawn(self) -> bytes:
        if not self._can_move:
            return b""
        try:
            width = os.get_terminal_size(1).columns or 80
        except OSError:  # it has gone
            return b""
        rows = [(f"{self._about}  {duration(time.monotonic() - self._begun)}", BOLD)]
        if self._metrics.values:
            rows.append((self._metrics.text(width - 1), str(COLOURS["cyan"])))
        stop = "Ctrl-C asks the job to stop"
        rows.append((stop if self._stopped_s is None else f"asked to stop {duration(self._stopped_s)} ago", DIM))
        self._rows = len(rows)
        # A row that is as wide as the terminal could move the cursor to the next one.
        return "\n".join(self._styled(_ascii(text)[: width - 1], style) for text, style in rows).encode()


class _Metrics:
    """The newest values of the metrics that bundled entrypoints print."""

    def __init__(self) -> None:
        self._newest = b""
        self.values: dict[str, str] = {}

    def add(self, lines: bytes) -> None:
        self._newest = (self._newest + lines)[-NEWEST:]

    def read(self) -> None:
        """Takes the values of the lines that came since the last call."""
        text, self._newest = self._newest.decode("utf-8", "replace"), b""
        for each in metric_definitions.PRINTED if ": " in text else ():
            if found := re.findall(each["Regex"], text):
                self.values[each["Name"]] = found[-1]

    def text(self, width: int) -> str:
        """As many of the values as fit into `width` columns."""
        shown = ""
        for name, value in self.values.items():
            pair = f"{'  ' if shown else ''}{name} {value}"
            shown += pair if len(shown) + len(pair) <= width else ""
        return shown


def _mark_in_colour(found: re.Match[bytes]) -> bytes:
    colour = COLOURS[terminal.host_colour(found[2].decode("utf-8", "replace"))]
    return b"\x1b[%dm%s\x1b[0m " % (colour, found[0][:-1])


def _ascii(text: str) -> str:
    """A text whose every character takes one column."""
    return text.encode("ascii", "replace").decode()
