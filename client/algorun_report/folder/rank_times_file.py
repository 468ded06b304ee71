"""Reads `rank_times-HOST.jsonl`: what the ranks of each host did over time (docs/time.md).

The files come from the job and may be cut short, damaged, or the program's own: what cannot be read is left out, and named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from algorun.common.codec import loads
from algorun.common.json_values import rows, table
from algorun_report.run_report import HostWindows, ReportedActivities, Window
from algorun_report.thinning import merge_windows

from .json_files import moderate
from .log_files import ResultFolder, natural, shown

FILES = "rank_times-*.jsonl"
FORMAT = 1
LARGEST = 256 << 20  # bytes of a file: the launcher keeps 2,000 reports, of 256 ranks 36 MB
NOTHING = ReportedActivities()
LONGEST_NAME = 100  # characters
MOST_WINDOWS = 256_000  # times ranks, of all hosts together: all reports of 16 hosts with 8 ranks. More are merged
FEWEST_WINDOWS = 20  # of a host


@dataclass(frozen=True, slots=True)
class _Report:
    """What the ranks of a host have done until `time`, summed since their start."""

    time: float
    steps: int  # of the rank that made most
    seconds: list[list[float]]


@dataclass(slots=True)
class _HostFile:
    """One host's file so far."""

    host: str
    names: tuple[str, ...]
    most: int  # windows, times ranks
    ranks: tuple[int, ...] = ()
    begins: dict[int, float] = field(default_factory=dict)  # of attempts
    windows: list[Window] = field(default_factory=list)
    slow: list[tuple[float, str]] = field(default_factory=list)
    last: _Report | None = None  # of the attempt

    def add(self, window: Window) -> None:
        """One more window. Neighbours are merged where there are too many."""
        self.windows.append(window)
        if len(self.windows) > 2 * max(FEWEST_WINDOWS, self.most // len(self.ranks)):
            self.windows = merge_windows(self.windows, 2, range(len(self.names)))


@dataclass(frozen=True, slots=True)
class RanksOverTime:
    """What the files tell. Times are seconds since 1970. `unreadable` names what is left out."""

    activities: ReportedActivities = NOTHING
    begins: Mapping[int, float] = field(default_factory=dict)  # of attempts, on the host that was first
    unreadable: tuple[str, ...] = ()

    @property
    def begins_of_restarts(self) -> dict[int, float]:
        """Of each attempt but the first."""
        return {number: begin for number, begin in self.begins.items() if number > 1}

    def since(self, begin: float) -> ReportedActivities:
        """The activities, with times since `begin`."""
        hosts = tuple(
            replace(
                host,
                windows=tuple(replace(each, begin=each.begin - begin, end=each.end - begin) for each in host.windows),
            )
            for host in self.activities.hosts
        )
        slow = tuple((moment - begin, line) for moment, line in self.activities.slow)
        return replace(self.activities, hosts=hosts, slow=slow)


def read_rank_times(folders: Sequence[ResultFolder]) -> RanksOverTime:
    """What the files of all hosts tell; nothing without a file."""
    files: list[_HostFile] = []
    unreadable: list[str] = []
    paths = sorted(path for each in folders for path in each.path.glob(FILES))
    for path in paths:
        try:
            found, damaged = _read(path, MOST_WINDOWS // len(paths))
        except (OSError, ValueError) as error:
            unreadable.append(f"{path.name} is left out: {getattr(error, 'strerror', None) or error}.")
            continue
        if damaged:
            unreadable.append(f"{path.name}: {damaged} lines that cannot be read are left out.")
        files.append(found)
    names = files[0].names if files else ()
    alike = [each for each in files if each.names == names]
    unreadable += [
        f"The times of {each.host} are left out: its activities are others." for each in files if each not in alike
    ]
    begins: dict[int, float] = {}
    for each in alike:
        for number, begin in each.begins.items():
            begins[number] = min(begin, begins.get(number, begin))
    hosts = sorted((each for each in alike if each.windows), key=lambda each: natural(each.host))
    return RanksOverTime(
        ReportedActivities(
            names,
            tuple(HostWindows(each.host, each.ranks, tuple(each.windows)) for each in hosts),
            tuple(sorted(verdict for each in alike for verdict in each.slow)),
        ),
        begins,
        tuple(unreadable),
    )


def _read(path: Path, most: int) -> tuple[_HostFile, int]:
    """One file, and how many of its lines cannot be read. Raises OSError, and ValueError if it is not the launcher's."""
    damaged, found = 0, None
    for line in _lines(path):
        try:
            values = table(loads(line))
            if found is None:
                found = _head(values, most)
            else:
                _take(found, values)
        except (ValueError, KeyError, TypeError):
            if found is None:
                raise ValueError("its first line is not that of the launcher") from None
            damaged += 1
    if found is None:
        raise ValueError("it is empty")
    return found, damaged


def _lines(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        if file.seek(0, 2) > LARGEST:
            raise ValueError(f"it is larger than {LARGEST >> 20} MiB")
        file.seek(0)
        yield from file


def _head(values: Mapping[str, object], most: int) -> _HostFile:
    names = rows(values["activities"])
    if values["format"] != FORMAT or not names:
        raise ValueError("another format")
    host = shown(str(values["host"]))[:LONGEST_NAME]
    return _HostFile(host, tuple(shown(str(each))[:LONGEST_NAME] for each in names), most)


def _take(found: _HostFile, values: Mapping[str, object]) -> None:
    """One line after the head. Raises ValueError, KeyError or TypeError where it is not one."""
    moment = moderate(values["time"])
    if "attempt" in values:
        ranks = tuple(int(moderate(each)) for each in rows(values["ranks"]))
        if found.ranks and ranks != found.ranks:
            raise ValueError("other ranks")
        found.ranks, found.last = ranks, None
        found.begins[int(moderate(values["attempt"]))] = moment
    elif "slow" in values:
        found.slow.append((moment, shown(str(values["slow"]))))
    else:
        seconds = [[moderate(each) for each in rows(rank)] for rank in rows(values["seconds"])]
        if (
            not found.ranks
            or len(seconds) != len(found.ranks)
            or any(len(each) != len(found.names) for each in seconds)
        ):
            raise ValueError("another number of ranks or activities")
        last, new = found.last, _Report(moment, max(int(moderate(each)) for each in rows(values["steps"])), seconds)
        if last is not None and moment > last.time:
            shares = _shares(last.seconds, seconds, moment - last.time)
            found.add(Window(last.time, moment, max(0, new.steps - last.steps), shares))
        found.last = new


def _shares(before: list[list[float]], after: list[list[float]], length: float) -> tuple[tuple[float, ...], ...]:
    """Shares of the time between two reports. A reader may have missed a moment of an activity: then together they
    would be more than 1 in the next window."""
    found = []
    for old, new in zip(before, after, strict=True):
        spent = [max(0.0, b - a) for a, b in zip(old, new, strict=True)]
        whole = max(length, sum(spent))
        found.append(tuple(each / whole for each in spent))
    return tuple(found)
