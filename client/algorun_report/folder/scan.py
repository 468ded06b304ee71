"""Reads all logs of a job once: values of metrics, attempts of the launcher, the last lines of each host."""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from algorun.common.bounded_search import BoundedSearch
from algorun_report.run_report import Axis, Excerpt, Metric, MetricPlace, ReportedHost, Series

from .attempts import HostsStart
from .definitions import Definition
from .line_places import LinePlace, place_of
from .log_files import LogFile, lines, natural, shown, times

LAST_LINES = 30  # of each host
MOST_LINES = 3000  # of all hosts: with LONGEST_SHOWN 1.5 MB of the page's 5
MOST_LINES_AT_ONCE, MOST_CHARACTERS_AT_ONCE = 10_000, 4 * 1024 * 1024  # that are searched at once
LONGEST_SHOWN = 500  # characters of a line in an excerpt
RANK = re.compile(r"\[(\d{1,9}) \S+\] ")  # what the launcher puts before each line of a rank


@dataclass(slots=True)
class _Values:
    """Values of one metric from one rank of one host."""

    x: list[float] = field(default_factory=list)  # seconds since 1970, or 1, 2, ..
    values: list[float] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)  # of the step or the epoch
    epochs: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Found:
    """What a metric's regular expression has found in lines of one place. The key: host and rank."""

    sources: defaultdict[tuple[str, int], _Values] = field(default_factory=lambda: defaultdict(_Values))
    unreadable: int = 0
    example: str = ""

    def add(self, source: tuple[str, int], text: str, time: float | None, place: LinePlace) -> None:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            self.unreadable += 1
            self.example = self.example or text[:40]
            return
        found = self.sources[source]
        found.values.append(value)
        found.x.append(len(found.values) if time is None else time)
        if place.kind is not MetricPlace.NONE:
            found.numbers.append(place.number)
            found.epochs.append(place.epoch)


@dataclass(frozen=True, slots=True)
class LogScan:
    """What the logs of a job hold. `begin`: the time of the first line, None if times are unknown."""

    axis: Axis
    begin: float | None
    metrics: tuple[Metric, ...]
    silent: tuple[Definition, ...]
    hosts: tuple[ReportedHost, ...]
    starts: tuple[HostsStart, ...]  # of the hosts, in their order; at least one
    excerpts: tuple[Excerpt, ...]
    slow: tuple[str, ...] = ()  # notices about metrics that were left out


def scan(logs: Sequence[LogFile], definitions: Sequence[Definition], begin: float | None) -> LogScan:
    """Reads all logs. `begin`: the job's begin, in seconds since 1970, if it is known.

    Series are drawn over time if the time of every line is known, else over the number of the value. A metric whose regular
    expression takes too long is left out, and a notice says so.
    """
    slow: dict[int, str] = {}
    with BoundedSearch([each.regex.pattern for each in definitions], slow.__setitem__) as search:
        found = _scan(logs, definitions, begin, search)
    left_out = {definitions[number].name for number in slow}
    return replace(
        found,
        metrics=tuple(each for each in found.metrics if each.name not in left_out),
        silent=tuple(each for each in found.silent if each.name not in left_out),
        slow=tuple(f"Metric {definitions[number].name} is left out: {text}." for number, text in slow.items()),
    )


def _batches(found: Iterable[str]) -> Iterator[list[str]]:
    """The lines in pieces that are searched at once."""
    batch: list[str] = []
    size = 0
    for line in found:
        batch.append(line)
        size += len(line)
        if len(batch) == MOST_LINES_AT_ONCE or size > MOST_CHARACTERS_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _source(log: LogFile, line: str) -> tuple[str, int]:
    """Host and rank of a line; rank -1 for the launcher's own."""
    if log.rank is not None:
        return log.host, log.rank
    prefix = RANK.match(line)
    return log.host, int(prefix[1]) if prefix else -1


def _scan(
    logs: Sequence[LogFile], definitions: Sequence[Definition], begin: float | None, search: BoundedSearch
) -> LogScan:
    clocks = {log.path: times(log) for log in logs}
    counts = {log.path: sum(1 for _ in lines(log)) for log in logs}
    timed = bool(logs) and all(len(clock or ()) == counts[path] for path, clock in clocks.items())
    found: dict[str, defaultdict[MetricPlace, _Found]] = {each.name: defaultdict(_Found) for each in definitions}
    last = max(1, min(LAST_LINES, MOST_LINES // max(1, len({log.host for log in logs}))))
    tails: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=last))
    begun: defaultdict[str, list[int]] = defaultdict(list)  # the starts of each host
    starts = [HostsStart()]
    first = None
    for log in logs:
        clock = clocks[log.path] if timed else None
        if clock and (first is None or clock[0] < first):
            first = clock[0]
        start = _start_of(log, begun[log.host], starts)
        if clock and (start.begin is None or clock[0] < start.begin):
            start.begin = clock[0]
        before, number = "", 0
        for batch in _batches(lines(log)):
            places: dict[int, LinePlace] = {}
            for each, values in zip(definitions, search.search(batch), strict=True):
                for at, text in values:
                    place = places.get(at) or places.setdefault(at, place_of(batch[at]))
                    time = clock[number + at] if clock else None
                    found[each.name][place.kind].add(_source(log, batch[at]), text, time, place)
            for at, line in enumerate(batch):
                if line.startswith("algorun: "):
                    start.note(before, line, clock[number + at] if clock else None)
                before = line
            tails[log.host].extend(batch)
            number += len(batch)
    origin = begin if begin is not None else first
    hosts = _hosts(logs, counts)
    return LogScan(
        axis=Axis.TIME if timed else Axis.ORDER,
        begin=origin,
        metrics=tuple(
            metric for each in definitions for metric in _metrics(each, found[each.name], origin if timed else None)
        ),
        silent=tuple(each for each in definitions if not any(kind.sources for kind in found[each.name].values())),
        hosts=hosts,
        starts=tuple(starts),
        excerpts=tuple(
            Excerpt(
                host.name,
                tuple(shown(line)[:LONGEST_SHOWN] for line in tails[host.name]),
                max(0, host.lines - last),
            )
            for host in hosts
            if tails[host.name]
        ),
    )


def _start_of(log: LogFile, own: list[int], starts: list[HostsStart]) -> HostsStart:
    """The start that a log is of. `own`: the starts of its host so far; the hosts of a start may begin seconds apart."""
    if log.start not in own:
        own.append(log.start)
    if len(own) > len(starts):
        starts.append(HostsStart())
    return starts[len(own) - 1]


def _hosts(logs: Sequence[LogFile], counts: Mapping[Path, int]) -> tuple[ReportedHost, ...]:
    starts: defaultdict[str, set[int]] = defaultdict(set)
    number: defaultdict[str, int] = defaultdict(int)
    for log in logs:
        starts[log.host].add(log.start)
        number[log.host] += counts[log.path]
    return tuple(ReportedHost(name, len(starts[name]), number[name]) for name in sorted(starts, key=natural))


def _metrics(each: Definition, found: Mapping[MetricPlace, _Found], start: float | None) -> list[Metric]:
    """One for each place of the lines that print it: a step's mean and an epoch's are no curve together."""
    kinds = [kind for kind in MetricPlace if kind in found and found[kind].sources]
    return [replace(_metric(each, found[kind], start), place=kind, is_part=len(kinds) > 1) for kind in kinds]


def _metric(each: Definition, found: _Found, start: float | None) -> Metric:
    sources = sorted(found.sources, key=lambda source: (natural(source[0]), source[1]))
    ranks: defaultdict[str, int] = defaultdict(int)
    for host, _ in sources:
        ranks[host] += 1
    return Metric(
        name=each.name,
        regex=each.regex.pattern,
        series=tuple(_series(source, found.sources[source], start, alone=ranks[source[0]] == 1) for source in sources),
        unreadable=found.unreadable,
        example=shown(found.example),
    )


def _series(source: tuple[str, int], found: _Values, start: float | None, *, alone: bool) -> Series:
    host, rank = source
    label = host if alone and host else f"{host} rank {rank}".strip() if rank >= 0 else f"{host} launcher"
    if start is None:
        return Series(label, found.x, found.values, found.numbers, found.epochs)
    order = sorted(range(len(found.x)), key=found.x.__getitem__)  # late lines stand out of order in a log
    x, values = [round(found.x[n] - start, 3) for n in order], [found.values[n] for n in order]
    numbers, epochs = ([each[n] for n in order] if each else () for each in (found.numbers, found.epochs))
    return Series(label, x, values, numbers, epochs)
