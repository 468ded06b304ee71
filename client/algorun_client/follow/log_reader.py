"""Reads the lines of all hosts of a job from its log streams: none missing, none double.

CloudWatch has one stream for each host and start, `JOB/algo-N-EPOCH`. A token is a place in a stream, in the order of
timestamps: it returns again and again at the end, until there is more. So a line that arrives late, with an older
timestamp than a line that was read, is behind the token. `sweep` reads the newest part of each stream once more and
finds such lines.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from itertools import compress
from operator import attrgetter
from typing import NamedTuple, TypedDict, cast

from algorun_client.aws import fields
from algorun_client.aws.api import Answer, LogsApi
from algorun_client.aws.job_state import GROUPS
from algorun_client.common import at_once
from algorun_client.common.errors import ApiError, NotFound
from algorun_client.request.model import Kind

AGENT = "/ssm"  # ends the streams of the agent for remote debugging: JOB/algo-1-EPOCH/ssm. No host prints those lines
MOST_PAGES = 20  # of one stream in one round: a long stream must not hold up the others
PAGES = 64  # of all streams in one round: each may hold 10,000 lines in memory
LONGEST_WINDOW = 20_000  # newest lines of a stream, in which `sweep` looks for late ones
SHORTEST_WINDOW = 1_000
WINDOWS = 200_000  # lines of all streams together: 80 bytes each
SHORT_WINDOW = 5_000  # lines; re-reading this many while the job runs costs little
# A smaller page of a stream that was read to its end is its end once more, most likely: the next round asks. CloudWatch
# promises that of the same token alone, and a page has at most 10,000 lines or 1 MiB.
SHORT_PAGE = 5_000  # lines
SHORT_PAGE_SIZE = 500_000  # characters
INVALID_TOKEN = "InvalidParameterException"  # CloudWatch forgets a token after 24 hours, also that of a silent host
HOST = re.compile(r"(.+)-(\d+)$")  # algo-1-1699999999


class LogLine(NamedTuple):  # a frozen dataclass takes four times as long to make, 16,000 times a second
    """A line that a host printed."""

    host: str
    stream: str  # without the job: algo-1-EPOCH
    time_ms: int  # since 1970
    text: str


class _Event(TypedDict):
    """CloudWatch's words."""

    timestamp: int  # milliseconds since 1970
    message: str


@dataclass(slots=True)
class _Stream:
    """How far a stream has been read."""

    name: str  # JOB/algo-1-EPOCH
    short: str  # algo-1-EPOCH
    host: str  # algo-1
    token: str = ""
    at_end: bool = False  # the last call brought nothing
    read_ms: int = 0  # the time of the youngest line that was read
    is_followed: bool = False  # it was at its end once, and what came since was read by one call a round
    # The window: the lines that were handed out, from `begin_ms` on. They are counted in a sweep only.
    begin_ms: int = 0
    times: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)  # of the texts
    news: bool = False  # lines since the last sweep

    @classmethod
    def of(cls, name: str, job: str) -> _Stream:
        """A stream of which nothing was read."""
        short = name[len(job) + 1 :]
        host = HOST.match(short)
        return cls(name, short, host[1] if host else short)

    @property
    def cheap_to_sweep(self) -> bool:
        return self.news and len(self.times) <= SHORT_WINDOW

    def window(self) -> Counter[tuple[int, int]]:
        """How many lines of each time and hash were handed out."""
        return Counter(zip(self.times, self.hashes, strict=True))

    def take(self, events: Sequence[tuple[int, str]], longest: int) -> list[LogLine]:
        """Times and texts as lines. They come into the window, which keeps the newest `longest` to twice as many."""
        host, short, make = self.host, self.short, tuple.__new__  # the class has a slower one, in Python
        times = [time_ms for time_ms, _ in events]
        self.read_ms = max(times, default=self.read_ms)
        self.times += times
        self.hashes += [hash(text) for _, text in events]
        if len(self.times) > 2 * longest:
            self.begin_ms = sorted(self.times, reverse=True)[longest] + 1
            kept = [time_ms >= self.begin_ms for time_ms in self.times]
            self.times, self.hashes = list(compress(self.times, kept)), list(compress(self.hashes, kept))
        return [make(LogLine, (host, short, time_ms, text)) for time_ms, text in events]


class LogReader:
    """The lines of one job. Each line is handed out once, whichever call finds it.

    An ApiError of a call leaves everything as it was: the next call goes on there, and no line is lost.
    """

    def __init__(self, logs: LogsApi, kind: Kind, job: str) -> None:
        self._logs, self._group, self._job = logs, GROUPS[kind], job
        self._streams: dict[str, _Stream] = {}
        self._discovered_ms = 0  # when the streams were looked for, by the service's clock
        self._ready: list[LogLine] = []  # lines that were read before a call in the same round was refused

    @property
    def at_end(self) -> bool:
        """True if the last round found nothing new in any stream."""
        return all(each.at_end for each in self._streams.values())

    @property
    def is_up_to_date(self) -> bool:
        """True if the last round has most likely read all that there is: another one may wait."""
        return all(each.at_end or each.is_followed for each in self._streams.values())

    @property
    def streams(self) -> int:
        """How many streams are known."""
        return len(self._streams)

    def discover(self) -> None:
        """Looks for streams: hosts start one after the other, and a restart adds streams."""
        query: dict[str, object] = {"logGroupName": self._group, "logStreamNamePrefix": f"{self._job}/"}
        while True:
            try:
                answer = self._logs.describe_log_streams(**query)
            except NotFound:  # no job of this account has printed anything yet
                return
            self._discovered_ms = _clock_ms(answer)
            for each in fields.tables(answer, "logStreams"):
                name = fields.required(each, "logStreamName")
                if name not in self._streams and not name.endswith(AGENT):
                    self._streams[name] = _Stream.of(name, self._job)
            token = fields.text(answer, "nextToken")
            if not token:
                return
            query["nextToken"] = token

    def read_all(self) -> Iterator[list[LogLine]]:
        """All lines that exist now, in pieces. It ends also if the hosts go on to print faster than it reads."""
        self.discover()
        yield self.poll()
        until_ms = self._discovered_ms
        while left := [each for each in self._streams.values() if not each.at_end and each.read_ms <= until_ms]:
            yield self._round(left, self._read_on)

    def poll(self) -> list[LogLine]:
        """The new lines of all streams, in the order of their times."""
        return self._round(self._streams.values(), self._read_on)

    def sweep(self, *, all_streams: bool) -> list[LogLine]:
        """Late lines: reads the newest part of streams again. Without `all_streams`: where that is short and has news."""
        chosen = [each for each in self._streams.values() if all_streams or each.cheap_to_sweep]
        return self._round(chosen, self._read_again)

    @property
    def _longest_window(self) -> int:
        return min(LONGEST_WINDOW, max(SHORTEST_WINDOW, WINDOWS // max(1, len(self._streams))))

    def _round(self, streams: Iterable[_Stream], read: Callable[[_Stream], Iterator[list[LogLine]]]) -> list[LogLine]:
        def collect(stream: _Stream) -> Exception | None:
            try:
                for lines in read(stream):
                    self._ready.extend(lines)
            except Exception as error:
                return error
            return None

        chosen = list(streams)
        errors = at_once.each(collect, chosen) if len(chosen) > 1 else map(collect, chosen)
        for error in errors:
            if error is not None:
                raise error
        return self.drain()

    def drain(self) -> list[LogLine]:
        """The lines that were read before a call was refused."""
        lines, self._ready = self._ready, []
        lines.sort(key=attrgetter("time_ms"))  # stable: equal times stay in the order of their stream
        return lines

    def _read_on(self, stream: _Stream) -> Iterator[list[LogLine]]:
        longest = self._longest_window
        for _ in range(max(1, min(MOST_PAGES, PAGES // len(self._streams)))):
            try:
                events, token = self._page(stream.name, stream.token)
            except NotFound:  # somebody has deleted the stream: nothing more comes from it
                stream.at_end = True
                return
            except ApiError as error:
                if error.code != INVALID_TOKEN or not stream.token:
                    raise
                yield from self._read_again(stream)
                return
            lines = stream.take(events, longest)
            stream.at_end = token == stream.token or not token
            stream.is_followed = stream.at_end or (stream.is_followed and bool(lines) and _is_short(lines))
            stream.news |= bool(lines)
            stream.token = token
            yield lines
            if stream.is_followed:
                return

    def _read_again(self, stream: _Stream) -> Iterator[list[LogLine]]:
        """All of the window. What was not handed out yet is new, also the lines behind the token.

        It ends at the first page with a line younger than the window: what follows is no late line but a new one, and a
        talkative host prints faster than its end can be reached.
        """
        token, late, at_end = "", list[tuple[int, str]](), False
        newest = max(stream.times, default=0)
        left = stream.window()  # less the lines that have come once more
        while True:
            try:
                events, following = self._page(stream.name, token, stream.begin_ms)
            except NotFound:  # as in _read_on
                stream.news, stream.at_end = False, True
                yield stream.take(late, self._longest_window)
                return
            for time_ms, text in events:
                key = (time_ms, hash(text))
                if time_ms < stream.begin_ms:
                    continue
                if left[key] > 0:
                    left[key] -= 1
                else:
                    late.append((time_ms, text))
            at_end = following == token or not following
            token = following or token
            if at_end or (events and events[-1][0] > newest):
                break
        stream.token, stream.news, stream.at_end = token, False, at_end and not late
        yield stream.take(late, self._longest_window)

    def _page(self, name: str, token: str, begin_ms: int = 0) -> tuple[list[tuple[int, str]], str]:
        query: dict[str, object] = {"logGroupName": self._group, "logStreamName": name, "startFromHead": True}
        if begin_ms:
            query["startTime"] = begin_ms
        if token:
            query["nextToken"] = token
        answer = self._logs.get_log_events(**query)
        events = cast("Sequence[_Event]", answer.get("events") or ())  # 16,000 a second: each is read without a check
        return [(each["timestamp"], each["message"]) for each in events], fields.text(answer, "nextForwardToken")


def _clock_ms(answer: Answer) -> int:
    """When the service answered, by its own clock: this machine's may be minutes off. A local job has this one's."""
    date = fields.text(fields.inner(fields.inner(answer, "ResponseMetadata"), "HTTPHeaders"), "date")
    try:
        return int(parsedate_to_datetime(date).timestamp() * 1000) + 999  # the header has whole seconds
    except ValueError:
        return int(time.time() * 1000)


def _is_short(page: Sequence[LogLine]) -> bool:
    return len(page) < SHORT_PAGE and sum(len(line.text) for line in page) < SHORT_PAGE_SIZE
