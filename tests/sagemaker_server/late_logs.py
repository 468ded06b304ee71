"""CloudWatch at its worst: events come late and out of order, the lines of a host are spread over many streams.

As there, a stream is sorted by the events' times, and a token is a place in that order: an event that comes late, with a
time before the place, is never seen by who follows the token alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from algorun_client.common.errors import ApiError, NotFound
from algorun_client.local.log_reading import MOST_EVENTS, MOST_STREAMS, LocalLogs

from .faults import Faults

STEPS = 10  # different delays


class LateLogs:
    """LogsApi over another one."""

    def __init__(self, logs: LocalLogs, faults: Faults) -> None:
        self._logs, self._faults = logs, faults
        self._lock = threading.Lock()
        self._read: dict[tuple[str, str], tuple[list[dict[str, Any]], str]] = {}  # events so far, and the next token

    def describe_log_streams(self, **query: Any) -> Mapping[str, Any]:
        """As LogsApi."""
        count = self._faults.streams
        if count == 1:
            return self._logs.describe_log_streams(**query)
        inner = {name: value for name, value in query.items() if name not in ("nextToken", "limit")}
        prefix = inner.get("logStreamNamePrefix", "")
        streams: list[dict[str, Any]] = []
        token: dict[str, Any] = {}
        while True:
            answer = self._logs.describe_log_streams(**inner, **token)
            for each in answer["logStreams"]:
                events = self._all(query["logGroupName"], each["logStreamName"])
                begun = min(len(events), count)  # a stream comes into being with its first line
                streams += [
                    {**each, "logStreamName": f"{each['logStreamName']}{number:03d}"} for number in range(begun)
                ]
            if "nextToken" not in answer:
                break
            token = {"nextToken": answer["nextToken"]}
        names = sorted(
            (each for each in streams if each["logStreamName"].startswith(prefix)),
            key=lambda each: each["logStreamName"],
        )
        after = query.get("nextToken", "")
        most = min(query.get("limit", MOST_STREAMS), MOST_STREAMS)
        page = [each for each in names if each["logStreamName"] > after]
        more = {"nextToken": page[most - 1]["logStreamName"]} if len(page) > most else {}
        return {"logStreams": page[:most], **more}

    def get_log_events(self, **query: Any) -> Mapping[str, Any]:
        """As LogsApi, forward only."""
        count, name = self._faults.streams, query["logStreamName"]
        if count == 1 and not self._faults.late_s:
            return self._logs.get_log_events(**query)
        number, real = (int(name[-3:]), name[:-3]) if count > 1 else (0, name)
        if number >= count:
            raise NotFound("ResourceNotFoundException", "The specified log stream does not exist.", "GetLogEvents")
        now = time.time() * 1000
        visible = [
            (event["timestamp"], place, event)
            for place, event in enumerate(self._all(query["logGroupName"], real))
            if place % count == number and event["ingestionTime"] + self._delay_ms(place // count) <= now
        ]
        visible.sort(key=lambda each: each[:2])
        after = self._place(query.get("nextToken", ""))
        first, last = query.get("startTime", 0), query.get("endTime", 1 << 62)
        page = [each for each in visible if each[:2] > after and first <= each[0] < last][
            : query.get("limit", MOST_EVENTS)
        ]
        place = page[-1][:2] if page else after
        events = [
            {**event, "ingestionTime": int(event["ingestionTime"] + self._delay_ms(at // count))}
            for _, at, event in page
        ]
        return {"events": events, "nextForwardToken": f"f/{place[0]}/{place[1]}", "nextBackwardToken": "b/0/0"}

    def _delay_ms(self, place: int) -> float:
        return self._faults.late_s * 1000 * (place * 7 % STEPS) / STEPS

    @staticmethod
    def _place(token: str) -> tuple[int, int]:
        if not token:
            return -1, -1
        try:
            _, stamp, number = token.split("/")
            return int(stamp), int(number)
        except ValueError:
            raise ApiError("InvalidParameterException", "The specified nextToken is invalid.", "GetLogEvents") from None

    def _all(self, group: str, stream: str) -> list[dict[str, Any]]:
        """All events of a stream so far, in the order in which they were written."""
        with self._lock:
            events, token = self._read.get((group, stream), ([], ""))
            while True:
                place = {"nextToken": token} if token else {"startFromHead": True}
                answer = self._logs.get_log_events(logGroupName=group, logStreamName=stream, **place)
                events = [*events, *answer["events"]] if answer["events"] else events
                if answer["nextForwardToken"] == token:
                    break
                token = answer["nextForwardToken"]
            self._read[group, stream] = events, token
            return events
