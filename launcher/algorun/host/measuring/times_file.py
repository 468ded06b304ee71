"""What this host's ranks did over time, in a file for pictures: rank_times-HOST.jsonl in output/data (docs/time.md).

One JSON object on each line. Its first key tells what it is: `format` the head, `attempt` the start of the ranks, `steps`
a report, `slow` a verdict. Of a long job every second report is removed, and again, so the file stays small.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from algorun.job.paths import write_aside
from algorun.timing.activities import NAMES
from algorun.timing.rank_times import RankTimes

FORMAT = 1
MOST_REPORTS = 2000  # of 8 ranks 1.2 MB; a picture shows fewer
MOST_VERDICTS = 1000
REPORT = '{"steps":'  # how the line of a report begins


class TimesFile:
    """Of one host, for all attempts of the job. Where it cannot be written, `warn` says so once, and no more is kept."""

    def __init__(self, folder: Path, host: str, warn: Callable[[str], None]) -> None:
        self._path, self._host, self._warn = folder / f"rank_times-{host}.jsonl", host, warn
        self._wall = time.time() - time.monotonic()  # so that a clock that is set back disturbs no order
        self._begun, self._broken = False, False
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)  # of an earlier job
        self._reports = self._verdicts = 0
        self._every, self._skipped = 1, 0  # of how many reports one is kept, and how many were left out since

    def attempt(self, number: int, ranks: Sequence[int]) -> None:
        """The ranks of an attempt start; its number counts from 1."""
        self._skipped = self._every  # its first report is kept
        self._write({"attempt": number, "time": self._time(time.monotonic()), "ranks": list(ranks)})

    def report(self, times: Sequence[RankTimes], *, last: bool = False) -> None:
        """What all ranks have done so far in this attempt. The `last` report of an attempt is always kept."""
        self._skipped += 1
        if self._skipped < self._every and not last:
            return
        self._skipped = 0
        seconds = [[round(each, 3) for each in rank.activities] for rank in times]
        self._write(
            {"steps": [rank.steps for rank in times], "time": self._time(times[0].at), "seconds": seconds},
        )
        self._reports += 1
        if self._reports >= MOST_REPORTS:
            self._thin()

    def slow(self, line: str) -> None:
        """A verdict about slow ranks."""
        self._verdicts += 1
        if self._verdicts <= MOST_VERDICTS:
            self._write({"slow": line, "time": self._time(time.monotonic())})

    def _time(self, moment: float) -> float:
        """Seconds since 1970 of a moment of the monotonic clock."""
        return round(self._wall + moment, 3)

    def _write(self, *lines: dict[str, object]) -> None:
        if self._broken:
            return
        head = [] if self._begun else [{"format": FORMAT, "host": self._host, "activities": list(NAMES)}]
        text = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in (*head, *lines))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(text)
            self._begun = True
        except OSError as error:
            self._fail(error)

    def _thin(self) -> None:
        """Removes every second report: the times in a report are sums since the start, so the others stay right."""
        self._every *= 2
        kept, seen = [], 0
        try:
            with open(self._path, encoding="utf-8", errors="backslashreplace") as file:
                for line in file:
                    seen += line.startswith(REPORT)
                    if not line.startswith(REPORT) or seen % 2:
                        kept.append(line)
            write_aside(self._path, "".join(kept), flush=False)
        except OSError as error:
            self._fail(error)
        self._reports = (seen + 1) // 2
        self._skipped = 0 if seen % 2 else self._every // 2  # the newest one was removed, too

    def _fail(self, error: OSError) -> None:
        self._broken = True
        self._warn(f"{self._path}: {error.strerror}; the times of ranks are not kept any longer")
