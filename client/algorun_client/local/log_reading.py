"""CloudWatch Logs on this machine: the streams that a job's runner writes, one JSON object a line."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from algorun.common.codec import loads
from algorun.common.json_values import table, text, whole
from algorun_client.aws import fields
from algorun_client.aws.api import Answer
from algorun_client.aws.fields import Table
from algorun_client.aws.job_state import GROUPS
from algorun_client.common.errors import ApiError, NotFound
from algorun_client.request.model import Kind

from .answers import ACCOUNT, REGION
from .job_folder import JobFolder

KINDS = {group: kind for kind, group in GROUPS.items()}
MOST_STREAMS = 50  # a page
MOST_EVENTS = 10_000  # a page
MOST_BYTES = 1024 * 1024  # a page
MOST_SHOWN = 1000  # bytes of a damaged line
FOREVER = 1 << 62  # milliseconds


class LogEvent(TypedDict):
    """CloudWatch's words. Times are milliseconds since 1970."""

    timestamp: int
    ingestionTime: int
    message: str


class LocalLogs:
    """LogsApi. A token is a place in the stream's file; the end of a stream answers with the token that was given."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def describe_log_streams(self, **query: object) -> Answer:
        """As LogsApi, in the order of the streams' names."""
        group, prefix = self._group(query), fields.text(query, "logStreamNamePrefix")
        names = sorted(self._streams(group, prefix))
        after = fields.text(query, "nextToken")
        most = min(fields.number(query, "limit") or MOST_STREAMS, MOST_STREAMS)
        page = [name for name in names if name > after][: most + 1]
        answer: dict[str, object] = {"logStreams": [self._described(group, name) for name in page[:most]]}
        if len(page) > most:
            answer["nextToken"] = page[most - 1]
        return answer

    def get_log_events(self, **query: object) -> Answer:
        """As LogsApi. `startTime` (inclusive) and `endTime` (exclusive) are milliseconds since 1970."""
        path = self._path(self._group(query), fields.text(query, "logStreamName"))
        most = min(fields.number(query, "limit") or MOST_EVENTS, MOST_EVENTS)
        from_head = bool(query.get("startFromHead", False))
        first, last = fields.number(query, "startTime") or 0, fields.number(query, "endTime")
        last = FOREVER if last is None else last
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise NotFound(
                "ResourceNotFoundException", "The specified log stream does not exist.", "GetLogEvents"
            ) from None
        if "nextToken" in query:
            direction, place = _token(fields.text(query, "nextToken"), size)
        else:
            direction, place = ("f", 0) if from_head else ("b", size)
        events, begin, end = (
            _forward(path, place, most, first, last) if direction == "f" else _backward(path, place, most, first, last)
        )
        return {"events": events, "nextForwardToken": f"f/{end}", "nextBackwardToken": f"b/{begin}"}

    def _group(self, query: Table) -> Kind:
        name = fields.text(query, "logGroupName")
        if name not in KINDS or not JobFolder.all(self._root, KINDS[name]):
            raise NotFound("ResourceNotFoundException", "The specified log group does not exist.", "DescribeLogStreams")
        return KINDS[name]

    def _streams(self, kind: Kind, prefix: str) -> Iterable[str]:
        job, slash, _ = prefix.partition("/")
        jobs = [JobFolder.of(self._root, kind, job)] if slash else JobFolder.all(self._root, kind)
        for each in jobs:
            names = os.listdir(each.logs) if each.logs.is_dir() else ()
            yield from (name for name in (f"{each.job}/{file}" for file in names) if name.startswith(prefix))

    def _path(self, kind: Kind, stream: str) -> Path:
        job, _, name = stream.partition("/")
        if not name or "/" in name or name.startswith(".") or job.startswith("."):
            raise NotFound("ResourceNotFoundException", "The specified log stream does not exist.", "GetLogEvents")
        return JobFolder.of(self._root, kind, job).logs / name

    def _described(self, kind: Kind, stream: str) -> dict[str, object]:
        path = self._path(kind, stream)
        answer: dict[str, object] = {
            "logStreamName": stream,
            "creationTime": int(stream.rpartition("-")[2]) * 1000,
            "arn": f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{GROUPS[kind]}:log-stream:{stream}",
            "storedBytes": 0,
        }
        first, _, _ = _forward(path, 0, 1, 0, FOREVER)
        last, _, _ = _backward(path, path.stat().st_size, 1, 0, FOREVER)
        if first and last:
            answer |= {
                "firstEventTimestamp": first[0]["timestamp"],
                "lastEventTimestamp": last[-1]["timestamp"],
                "lastIngestionTime": last[-1]["ingestionTime"],
            }
        return answer


def _token(text: str, size: int) -> tuple[str, int]:
    direction, _, place = text.partition("/")
    if direction not in ("f", "b") or not place.isdigit() or int(place) > size:
        raise ApiError("InvalidParameterException", "The specified nextToken is invalid.", "GetLogEvents")
    return direction, int(place)


def _event(path: Path, line: bytes) -> LogEvent:
    """The event of a line. One that is damaged, as a killed runner or a full disk may leave it, is shown as it is."""
    try:
        found = table(loads(line))
        timestamp, came = whole(found.get("timestamp")), whole(found.get("ingestionTime"))
        return {"timestamp": timestamp, "ingestionTime": came, "message": text(found.get("message"))}
    except ValueError:
        at = path.stat().st_mtime_ns // 1_000_000
        shown = line[:MOST_SHOWN].decode(errors="replace").strip()
        return {"timestamp": at, "ingestionTime": at, "message": f"algorun: a damaged line of {path}: {shown}"}


def _forward(path: Path, place: int, most: int, first: int, last: int) -> tuple[list[LogEvent], int, int]:
    """Events from a place on, the place where they begin and the one where they end."""
    events: list[LogEvent] = []
    end = place
    with open(path, "rb") as file:
        file.seek(place)
        for line in file:
            if not line.endswith(b"\n") or len(events) == most or (end - place + len(line) > MOST_BYTES and events):
                break  # the runner is writing this line
            end += len(line)
            event = _event(path, line)
            if first <= event["timestamp"] < last:
                events.append(event)
    return events, place, end


def _backward(path: Path, place: int, most: int, first: int, last: int) -> tuple[list[LogEvent], int, int]:
    """The last events before a place, in their order, the place where they begin and the one where they end."""
    size = min(place, 4096 * most, MOST_BYTES)
    while True:
        with open(path, "rb") as file:
            file.seek(place - size)
            data = file.read(size)
        skipped = 0 if size == place else data.find(b"\n") + 1 or size  # most likely a piece of a line
        lines = data[skipped:].splitlines(keepends=True)
        if lines or size >= min(place, MOST_BYTES):
            break
        size = min(place, MOST_BYTES)  # a long line
    if lines and not lines[-1].endswith(b"\n"):
        place -= len(lines.pop())  # the runner is writing it
    events: list[LogEvent] = []
    begin = place
    for line in reversed(lines):
        if len(events) == most:
            break
        begin -= len(line)
        event = _event(path, line)
        if first <= event["timestamp"] < last:
            events.append(event)
    return events[::-1], begin, place
