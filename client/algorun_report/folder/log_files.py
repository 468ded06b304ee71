"""Finds the log files of a job's folder, and reads them line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from algorun.common.errors import UserError

STREAM = re.compile(r"(.+)-(\d+)")  # algo-1-1699999999: host and second of its start
RANK_LOG = re.compile(r"rank-(\d+)\.log")
LONGEST_LINE = 256 * 1024  # characters; CloudWatch's limit for one event is near it
PIECES = re.compile(r"(\d+)")
TERMINAL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")  # colours and movements of the cursor


@dataclass(frozen=True, slots=True)
class LogFile:
    """Lines of one host (all its ranks, and the launcher) or of one rank."""

    path: Path
    host: str
    start: int = 0  # second since 1970 in the name of the stream; 0 if it has none
    rank: int | None = None  # for the log of a single rank

    @property
    def times(self) -> Path:
        """One line for each line of the log: milliseconds since 1970. It need not exist."""
        return self.path.with_suffix(".times")


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts algo-2 before algo-10."""
    return tuple((0, int(each), "") if each.isdecimal() else (1, 0, each) for each in PIECES.split(text) if each)


def find_logs(folder: Path) -> list[LogFile]:
    """The logs of a job's folder, sorted by host and start. A fetched job's own logs are preferred to those of ranks."""
    streams = []
    for path in folder.glob("logs/*.log"):
        found = STREAM.fullmatch(path.stem)
        if not RANK_LOG.fullmatch(path.name):
            streams.append(LogFile(path, found[1] if found else path.stem, int(found[2]) if found else 0))
    if streams:
        return sorted(streams, key=lambda each: (natural(each.host), each.start, each.path.name))
    return sorted(_rank_logs(folder), key=lambda each: (natural(each.host), each.rank or 0, each.path.name))


def _rank_logs(folder: Path) -> Iterator[LogFile]:
    for results in result_folders(folder):
        for path in results.path.glob("logs/rank-*.log"):
            found = RANK_LOG.fullmatch(path.name)
            if found:
                yield LogFile(path, results.host, rank=int(found[1]))


@dataclass(frozen=True, slots=True)
class ResultFolder:
    """A folder with the launcher's result files, `output/data` of a host. `host` is "this host" if the path does not tell it."""

    path: Path
    host: str = "this host"


def result_folders(folder: Path) -> list[ResultFolder]:
    """Of a fetched job, of a host's /opt/ml, or of all hosts of a simulation."""
    own = [folder / "output" / "data", folder / "output"]
    found = [ResultFolder(each) for each in own if (each / "result.json").is_file() or (each / "logs").is_dir()][:1]
    hosts = sorted(folder.glob("*/output/data"), key=lambda path: natural(path.parts[-3]))
    return found or [ResultFolder(each, each.parts[-3]) for each in hosts if each.is_dir()]


def lines(log: LogFile) -> Iterator[str]:
    """The lines of a file without their ends. What is not UTF-8 is replaced. Raises UserError if it cannot be read."""
    try:
        with open(log.path, encoding="utf-8", errors="replace", newline="\n") as file:
            for line in file:
                yield line[:LONGEST_LINE].rstrip("\r\n")
    except OSError as error:
        raise UserError(
            str(log.path), error.strerror or str(error), fix="make it readable, or fetch the job again"
        ) from None


def times(log: LogFile) -> list[float] | None:
    """The time of each line in seconds since 1970. None if they are unknown or damaged: curves can do without."""
    try:
        return [int(each) / 1000 for each in log.times.read_text(encoding="ascii").split()]
    except (OSError, ValueError, OverflowError):
        return None


def shown(text: str) -> str:
    """A line without what moves a terminal's cursor, and without invisible characters that turn the text around."""
    text = TERMINAL.sub("", text.rsplit("\r", 1)[-1])
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
