"""The last values of a job's metrics, from its lines. They are kept beside the job: its lines may be removed one day."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from algorun.common.codec import loads
from algorun_client.common.errors import ApiError, NotFound
from algorun_client.common.json_values import row, table, text, whole
from algorun_client.request.model import TaskAddress
from algorun_client.target.api import ObjectStore, Target
from algorun_client.target.job_state import JobState

from .log_reader import LogLine, LogReader

FORMAT = 1
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Last:
    """The last value of a metric, as it was printed: a number. `text` is "" if none was."""

    text: str
    time_ms: int = 0

    @property
    def number(self) -> float | None:
        """The value; None without one."""
        return float(self.text) if self.text else None


def last_values(chunks: Iterable[Sequence[LogLine]], regexes: Iterable[str]) -> dict[str, Last]:
    """By regular expression, what it found last; lines may come in any order. A text that is no number does not count."""
    found = {regex: Last("") for regex in regexes}
    compiled = {regex: re.compile(regex) for regex in found}
    for line in (line for lines in chunks for line in lines):
        for regex, pattern in compiled.items():
            match = pattern.search(line.text)
            if match is None or line.time_ms < found[regex].time_ms:
                continue
            text = (match[1] if pattern.groups else match[0]) or ""
            if _is_number(text):
                found[regex] = Last(text, line.time_ms)
    return found


def unsettled_s(state: JobState, grace_s: float) -> float:
    """For how long lines of an ended job may still come, in seconds."""
    if state.times.ended is None:
        return grace_s
    return min(max(0.0, grace_s - (datetime.now(UTC) - state.times.ended).total_seconds()), grace_s)


def read(
    target: Target, address: TaskAddress, number: int, state: JobState, metrics: Mapping[str, str], grace_s: float
) -> dict[str, Last]:
    """The last value of each metric of an execution that has ended; `metrics`: name and regular expression.

    What is read once all lines are there is kept, and read no second time.
    """
    uri = address.values(number)
    kept = _kept(target.store, uri)
    missing = {regex for regex in metrics.values() if regex not in kept}
    if missing:
        is_settled = state.ended and not unsettled_s(state, grace_s)
        kept |= last_values(_lines(target, state), missing)
        if is_settled:
            _keep(target.store, uri, kept)
    return {name: kept[regex] for name, regex in metrics.items()}


def _lines(target: Target, state: JobState) -> Iterator[Sequence[LogLine]]:
    yield from LogReader(target.logs, state.kind, state.job).read_all()


def _kept(store: ObjectStore, uri: str) -> dict[str, Last]:
    """What was read before. An object that is damaged is read from the lines again."""
    try:
        value = table(loads(store.get(uri)))
        if value.get("format") != FORMAT:
            return {}
        found = {}
        for regex, entry in table(value.get("values")).items():
            last, time_ms = row(entry, 2)
            found[regex] = Last(text(last), whole(time_ms))
    except (NotFound, ValueError):
        return {}
    return found if all(not each.text or _is_number(each.text) for each in found.values()) else {}


def _keep(store: ObjectStore, uri: str, found: Mapping[str, Last]) -> None:
    """A caller who may read the bucket and not write reads the lines the next time again."""
    rows = {regex: [each.text, each.time_ms] for regex, each in found.items()}
    with contextlib.suppress(ApiError):
        store.put(uri, json.dumps({"format": FORMAT, "values": rows}, indent=1).encode())


def _is_number(text: str) -> bool:
    """True for a number that a program reads; not for nan, inf and 1e999, which no program can use."""
    return NUMBER.fullmatch(text) is not None and math.isfinite(float(text))
