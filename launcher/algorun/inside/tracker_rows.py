"""What a job writes anyway, as rows for trackers: metrics, the steps of the ranks, figures of a host, and lines of rank 0."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

METRICS, LOG = "metrics.jsonl", os.path.join("logs", "rank-00000.log")
MOST_BYTES = 4 * 1024 * 1024  # of a file, at a time
NOT_VALUES = ("step", "steps", "epochs")
STEP = "step"  # a group of an expression
RATES = ("network_in", "network_out", "disk_read", "disk_write")  # bytes per second

Setup = Mapping[str, Any]  # Any: values of JSON, as host/measuring/tracking.py makes them
Fields = Mapping[str, Any]  # Any: the same, of a line of a file
Values = dict[str, float]
Row = tuple[Values, int, float]  # values, the step, seconds since 1970


class NewLines:
    """The whole lines that a file gets after its first `at` bytes.

    `thinned`: the file may be replaced by one that has lost lines. Those that are left are not read twice.
    """

    def __init__(self, *path: str, at: int = 0, thinned: bool = False) -> None:
        self._path, self._at, self._rest, self._file = os.path.join(*path), at, b"", 0
        self._read = set(map(hash, self._before(at))) if thinned else None
        self.has_more = False  # than the last call has read

    def _before(self, size: int) -> list[bytes]:
        try:
            with open(self._path, "rb") as file:
                return file.read(size).split(b"\n")
        except OSError:
            return []

    def read(self) -> list[str]:
        """Those since the last call; none of a file that is not there yet."""
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                if self._file not in (0, status.st_ino) or status.st_size < self._at:
                    self._at, self._rest = 0, b""
                self._file = status.st_ino
                file.seek(self._at)
                data = file.read(MOST_BYTES)
        except OSError:
            return []
        self._at += len(data)
        self.has_more = len(data) == MOST_BYTES
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._read is not None:
            lines = [line for line in lines if hash(line) not in self._read]
            self._read |= set(map(hash, lines))
        return [line.decode("utf-8", "replace") for line in lines]

    def rows(self) -> Iterator[Fields]:
        """The same as objects of JSON, without lines that a full disk has cut off."""
        for line in self.read():
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict):
                    yield row


class Feed:
    """Rows of values from the files of a host. `before`: what `progress` was at the end of the run's job before this one."""

    def __init__(self, setup: Setup, before: Fields) -> None:
        data, host, sizes = setup["data"], setup["host"], setup["sizes"]
        times, figures = f"rank_times-{host}.jsonl", f"host_figures-{host}.jsonl"
        self._host = host
        self._metrics = NewLines(data, METRICS, at=sizes.get(METRICS, 0), thinned=True)
        self._times = NewLines(data, times, at=sizes.get(times, 0), thinned=True)
        self._figures = NewLines(data, figures, at=sizes.get(figures, 0))
        self._log = NewLines(data, LOG, at=sizes.get(LOG, 0))
        self._searched = {name: re.compile(regex) for name, regex in setup["metrics"].items()}
        found = before.get("printed")
        printed = found if isinstance(found, dict) else {}
        self._printed = {name: int(_number(str(printed.get(name))) or 0) for name in self._searched}  # how often
        self._step = self._base = int(_number(str(before.get("step"))) or 0)  # of the run: now, and before this attempt
        self._is_told = False  # the program itself says its steps in this attempt
        self._made: tuple[int, float] | None = None  # steps of this attempt, and when

    @property
    def progress(self) -> Fields:
        """What the next job of the run has to know."""
        return {"step": self._step, "printed": dict(self._printed)}

    def read(self) -> Iterator[Row]:
        """What is new."""
        for row in self._times.rows():
            yield from self._of_times(row)
        for row in self._metrics.rows():
            if STEP in row:
                self._step, self._is_told = int(row[STEP]), True
            found = {name: each for name, each in _numbers(row).items() if name not in NOT_VALUES}
            yield found, self._step, time.time()
        for line in self._log.read() if self._searched else ():
            yield from self._of_line(line)
        for row in self._figures.rows():
            yield self._of_host(row), self._step, row.get("time", time.time())

    @property
    def has_more(self) -> bool:
        """Whether the last call has left something of a file for the next one."""
        return any(each.has_more for each in (self._times, self._metrics, self._log, self._figures))

    def _of_times(self, row: Fields) -> Iterator[Row]:
        """A launcher counts the steps of an attempt, whatever checkpoint that began with: they go on from those before."""
        at = row.get("time", time.time())
        if "attempt" in row:
            self._made, self._base, self._is_told = None, self._step, False
            yield {"job/attempt": row["attempt"]}, self._step, at
        if row.get("steps"):
            made = min(row["steps"])
            values: Values = {}
            if self._made is not None and at > self._made[1]:
                values["job/steps_per_s"] = (made - self._made[0]) / (at - self._made[1])
            self._made = made, at
            if not self._is_told:
                self._step = self._base + made
            yield {"job/step": self._step, **values}, self._step, at

    def _of_line(self, line: str) -> Iterator[Row]:
        """At the step that the line says; without one the numbers of a metric are counted, over the whole run."""
        for name, regex in self._searched.items():
            match = regex.search(line)
            if match is None:
                continue
            value = _number(match[next(group for group in (1, 2) if group != regex.groupindex.get(STEP))])
            if value is None:
                continue
            self._printed[name] += 1
            said = _number(match[STEP]) if STEP in regex.groupindex else None
            if said is not None and self._made is None:  # nobody else counts steps
                self._step, self._is_told = int(said), True
            yield {name: value}, self._printed[name] if said is None else int(said), time.time()

    def _of_host(self, row: Fields) -> Values:
        values = {f"{self._host}/{name}": row[name] for name in ("cpu", *RATES) if name in row}
        if row.get("memory_limit_bytes"):
            values[f"{self._host}/memory"] = row["memory_bytes"] / row["memory_limit_bytes"]
        for number, gpu in enumerate(row.get("gpus", ())):
            values |= {f"{self._host}/gpu{number}/{name}": value for name, value in _numbers(gpu).items()}
        return values


def _numbers(row: Fields) -> Values:
    return {
        name: value for name, value in row.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def result(data: str) -> tuple[int, str]:
    """How the job has ended: its exit code and closing line."""
    try:
        with open(os.path.join(data, "result.json"), encoding="utf-8") as file:
            found = json.load(file)
        return int(found["code"]), str(found["line"])
    except (OSError, ValueError, TypeError, KeyError):
        return 1, "the launcher was killed"
