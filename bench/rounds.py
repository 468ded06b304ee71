"""Launches that are measured in the same rounds, one after the other: a slow moment of the machine hits all of them.

The figures are medians over the rounds; a difference to a peer is the median of the differences within a round.
"""

from __future__ import annotations

import signal
import statistics
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

Run = Callable[[Path], tuple[float, float]]  # marks folder to (start, end) in Unix seconds


class Broken(Exception):
    """A launch that failed or did not end in its time: no figure, and no reason to lose those of the others."""


@dataclass
class Launch:
    """One way to start ranks: a name, the peer that it is held against, and how to run it once."""

    name: str
    peer: str
    run: Run
    ranks: int
    rounds: int | None = None
    """a fixed number, without an uncounted run before; None: as many as the others"""
    start_s: list[float] = field(default_factory=list)
    tail_s: list[float] = field(default_factory=list)
    broken: str = ""

    def once(self, scratch: Path) -> None:
        """Runs it, checks that every rank left its marks, keeps the two times. Raises Broken."""
        marks = scratch / f"marks-{uuid.uuid4().hex[:8]}"
        marks.mkdir()
        started, ended = self.run(marks)
        missing = [rank for rank in range(self.ranks) if not (marks / f"last-{rank}").exists()]
        if missing:
            raise Broken(f"ranks {missing} of {self.ranks} left no mark")
        first = [float((marks / f"first-{rank}").read_text()) for rank in range(self.ranks)]
        last = [float((marks / f"last-{rank}").read_text()) for rank in range(self.ranks)]
        self.start_s.append(max(first) - started)
        self.tail_s.append(ended - max(last))


def _once(launch: Launch, scratch: Path) -> None:
    if not launch.broken:
        try:
            launch.once(scratch)
        except Broken as error:
            launch.broken = str(error)
            print(f"{launch.name}: {error}", file=sys.stderr, flush=True)


def measure(launches: list[Launch], rounds: int, scratch: Path) -> None:
    """One uncounted run each, then the rounds. Nothing runs before a single round, whose figures mean nothing anyway."""
    for launch in launches if rounds > 1 else ():
        if launch.rounds is None:
            _once(launch, scratch)
            launch.start_s.clear()
            launch.tail_s.clear()
    for number in range(rounds):
        for launch in launches:
            if launch.rounds is None or number < launch.rounds:
                _once(launch, scratch)
        print(f"round {number + 1} of {rounds}", flush=True)


def report(launches: list[Launch]) -> list[dict[str, object]]:
    """Prints the table; returns its rows. A launch that broke has a row without figures."""
    by_name = {launch.name: launch for launch in launches}
    rows: list[dict[str, object]] = []
    width = max([40, *(len(launch.name) for launch in launches)])
    print(f"\n{'launch':{width}} {'start s':>8} {'over peer':>10} {'tail s':>8} {'over peer':>10}  rounds")
    for launch in launches:
        if launch.broken or not launch.start_s:
            rows.append({"launch": launch.name, "rounds": 0, "broken": launch.broken})
            print(f"{launch.name:{width}} {'broken' if launch.broken else 'no rounds'}")
            continue
        start, tail = statistics.median(launch.start_s), statistics.median(launch.tail_s)
        row: dict[str, object] = {
            "launch": launch.name,
            "start_s": start,
            "tail_s": tail,
            "rounds": len(launch.start_s),
        }
        over = ["", ""]
        peer = by_name.get(launch.peer)
        if peer is not None and peer.start_s and not peer.broken:
            more = [
                statistics.median(a - b for a, b in zip(mine, theirs, strict=False))
                for mine, theirs in ((launch.start_s, peer.start_s), (launch.tail_s, peer.tail_s))
            ]
            row |= {"peer": peer.name, "start_over_peer_s": more[0], "tail_over_peer_s": more[1]}
            over = [f"{value:+.3f}" for value in more]
        rows.append(row)
        print(f"{launch.name:{width}} {start:8.3f} {over[0]:>10} {tail:8.3f} {over[1]:>10}  {len(launch.start_s)}")
    return rows


def leave_by_signals() -> None:
    """SIGTERM, SIGINT and SIGHUP end the benchmark as an exception does, so that what it made is removed."""
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def leave(number: int, _frame: object) -> None:
        for one in signals:
            signal.signal(one, signal.SIG_IGN)  # the removal is not to be interrupted
        sys.exit(128 + number)

    for one in signals:
        signal.signal(one, leave)
