"""CloudWatch Logs in memory, with what makes it hard to read: pages, tokens in the order of timestamps, late events."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from typing import Any

from algorun_client.common.errors import ApiError, NotFound

GROUP = "/aws/sagemaker/TrainingJobs"


class CloudWatch:
    """Answers as the service does. `put` makes an event visible; its timestamp may be older than what was read."""

    def __init__(self, page: int = 100) -> None:
        self._page = page
        self._streams: dict[str, list[tuple[int, int, str]]] = {}  # (timestamp, arrival, text), sorted
        self._arrivals = 0
        self.refuse: list[ApiError] = []  # raised by the next calls
        self.calls = 0
        self._forgotten = 0  # tokens with a lower number are 24 hours old
        self._tokens = 0

    def put(self, stream: str, time: int, text: str) -> None:
        self._arrivals += 1
        insort(self._streams.setdefault(stream, []), (time, self._arrivals, text))

    def forget_tokens(self) -> None:
        """As CloudWatch does after 24 hours, also with the token of a stream that had nothing new all the time."""
        self._forgotten = self._tokens + 1

    def delete(self, stream: str) -> None:
        del self._streams[stream]

    def describe_log_streams(self, **query: Any) -> Mapping[str, Any]:
        self._called()
        if not self._streams:
            raise NotFound("ResourceNotFoundException", "The specified log group does not exist.", "DescribeLogStreams")
        names = sorted(name for name in self._streams if name.startswith(query["logStreamNamePrefix"]))
        begin = int(query.get("nextToken", 0))
        more = {"nextToken": str(begin + 50)} if begin + 50 < len(names) else {}
        return {"logStreams": [{"logStreamName": name} for name in names[begin : begin + 50]], **more}

    def get_log_events(self, **query: Any) -> Mapping[str, Any]:
        """A token names the last event that was handed out, so one that arrives behind it is not seen."""
        self._called()
        assert query["startFromHead"] is True
        if query["logStreamName"] not in self._streams:
            raise NotFound("ResourceNotFoundException", "The specified log stream does not exist.", "GetLogEvents")
        events = self._streams[query["logStreamName"]]
        token = query.get("nextToken", "")
        after = tuple(map(int, token.split("/")[1:3])) if token else (-1, -1)
        if token and int(token.split("/")[3]) < self._forgotten:
            raise ApiError("InvalidParameterException", "The specified nextToken is invalid.", "GetLogEvents")
        left = [each for each in events if each[:2] > after and each[0] >= query.get("startTime", 0)]
        page = left[: self._page]
        last = page[-1][:2] if page else after
        self._tokens += bool(page)
        return {
            "events": [{"timestamp": time, "ingestionTime": time, "message": text} for time, _, text in page],
            "nextForwardToken": f"f/{last[0]}/{last[1]}/{self._tokens}" if page or not token else token,
            "nextBackwardToken": "b/0/0",
        }

    def _called(self) -> None:
        self.calls += 1
        if self.refuse:
            raise self.refuse.pop(0)
