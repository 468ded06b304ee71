"""Feeds experiment trackers: `python -m algorun.inside.trackers SETUP`, SETUP a JSON object (host/measuring/tracking.py).

The first host's launcher runs it beside the ranks, in the job's own environment, where the trackers' packages are. It ends once its
stdin does. What a tracker cannot take is lost for that tracker alone, with one warning; the job goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import select
import sys
import threading
import time

from .tracker_kinds import KINDS, Run
from .tracker_rows import Feed, Row, Setup, result

EVERY_S = 1.0  # between two looks at the files
KEEP_S = 30.0  # between two notes of how far the run is
MOST_WAITING = 10_000  # rows for a tracker that does not answer
SECRET = re.compile(r"(?i)key|token|secret|passw|credential|signature")  # in names of variables
LONGEST = 300  # characters of a warning


class JobEnd:
    """What comes after the last row."""

    def __init__(self, code: int, line: str) -> None:
        self.code, self.line = code, line


class Fed:
    """A tracker with a thread of its own: one that does not answer holds up nobody."""

    def __init__(self, name: str, setup: Setup, run: Run, warnings: Warnings) -> None:
        self._name, self._setup, self._run, self._warnings = name, setup, run, warnings
        self._rows: queue.Queue[Row | JobEnd] = queue.Queue(MOST_WAITING)
        self._lost = 0
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def put(self, row: Row) -> None:
        """A row. It is lost if too many wait."""
        try:
            self._rows.put_nowait(row)
        except queue.Full:
            self._lost += 1

    def end(self, ended: JobEnd) -> None:
        """The last of all, in place of a row if too many wait."""
        while True:
            try:
                return self._rows.put_nowait(ended)
            except queue.Full:
                self._lost += 1
                with contextlib.suppress(queue.Empty):
                    self._rows.get_nowait()

    def join(self, limit_s: float) -> None:
        """Waits until the tracker has all, and says how much it has not."""
        self._thread.join(limit_s)
        if self._thread.is_alive():
            lost = (
                self._lost + self._rows.qsize()
            )  # the row that it has now counts in place of the end, which waits too
            self._warnings.say(self._name, f"it has not answered in time, {lost} rows are lost")
        elif self._lost:
            self._warnings.say(self._name, f"it was too slow, {self._lost} rows are lost")

    def _work(self) -> None:
        try:
            tracker = KINDS[self._name](self._setup, self._run)
            if tracker.notice:
                self._warnings.say_kept(self._name, tracker.notice)
            while True:
                row = self._rows.get()
                if isinstance(row, JobEnd):
                    return tracker.end(row.code, row.line)
                if row[0]:
                    tracker.take(*row)
        except BaseException as error:  # a library may even leave
            self._warnings.say(self._name, f"{type(error).__name__}: {error}")


class Warnings:
    """Lines in the job's log, without what the environment keeps secret: at most one of each kind for a tracker."""

    def __init__(self, stream: int) -> None:
        self._stream, self._said = stream, set[str]()
        self._secrets = [value for name, value in os.environ.items() if SECRET.search(name) and len(value) > 5]

    def say(self, name: str, why: str) -> None:
        """A tracker gets no more, or not all."""
        if name in self._said:
            return
        self._said.add(name)
        self._write(f"tracker {name} gets no more of this job, which goes on: {self._shown(why)}")

    def say_kept(self, name: str, why: str) -> None:
        """A tracker's server cannot be used, and nothing is lost so far. Said once, when the tracker begins."""
        self._write(f"tracker {name} keeps this job in files, as its server cannot be used: {self._shown(why)}")

    def _shown(self, why: str) -> str:
        for secret in self._secrets:
            why = why.replace(secret, "***")
        return re.sub(r"(?<=://)[^\s/@]+(?=@)", "***", " ".join(why.split()))[:LONGEST]

    def _write(self, text: str) -> None:
        os.write(self._stream, f"algorun: warning: {text}\n".encode())


def main() -> None:
    """Feeds until stdin ends."""
    setup: Setup = json.loads(sys.argv[1])
    warnings = Warnings(os.dup(1))
    log = os.open(os.path.join(setup["data"], "logs", "trackers.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):  # what the trackers print themselves
        os.dup2(log, stream)
    run = Run(setup["state"])
    feed, kept_at = Feed(setup, run.progress), time.monotonic()
    fed = [Fed(name, setup, run, warnings) for name in setup["trackers"]]
    over = False
    while not over or feed.has_more:
        over = over or (bool(select.select([0], [], [], 0 if feed.has_more else EVERY_S)[0]) and not os.read(0, 64))
        for row in feed.read():
            for each in fed:
                each.put(row)
        if over or time.monotonic() > kept_at + KEEP_S:
            run.keep(feed.progress)
            kept_at = time.monotonic()
    deadline = time.monotonic() + setup["flush_s"]
    for each in fed:
        each.end(JobEnd(*result(setup["data"])))
    for each in fed:
        each.join(max(0.0, deadline - time.monotonic()))
    os._exit(0)  # a library may leave threads


if __name__ == "__main__":
    main()
