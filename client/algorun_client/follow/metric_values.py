"""The last values of a job's metrics, from its lines. They are kept beside the job: its lines may be removed one day."""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from algorun.common.bounded_search import BoundedSearch, compiled
from algorun.common.codec import loads
from algorun.common.json_values import row, table, text, whole
from algorun_client.aws.api import ObjectStore, Target
from algorun_client.aws.job_state import JobState
from algorun_client.common.errors import ApiError, NotFound
from algorun_client.request.model import TaskAddress

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


def last_values(
    chunks: Iterable[Sequence[LogLine]], regexes: Iterable[str], warn: Callable[[str], None]
) -> dict[str, Last]:
    """By regular expression, what it found last; lines may come in any order. A text that is no number does not count. An expression
    that Python cannot compile, or that takes too long, is missing: `warn` gets a sentence about it."""
    found: dict[str, Last] = {}
    for regex in dict.fromkeys(regexes):
        try:
            compiled(regex)
            found[regex] = Last("")
        except ValueError as error:  # SageMaker's expressions may know more than Python's
            warn(f"the regular expression {regex!r} cannot be used here: {error}")
    searched = list(found)

    def slow(number: int, text: str) -> None:
        del found[searched[number]]
        warn(text)

    with BoundedSearch(searched, slow) as search:
        for lines in chunks:
            values = search.search([line.text for line in lines]) if searched else []
            for regex, matches in zip(searched, values, strict=bool(searched)):
                for at, text in matches:
                    if regex in found and lines[at].time_ms >= found[regex].time_ms and is_number(text):
                        found[regex] = Last(text, lines[at].time_ms)
    return found


def unsettled_s(state: JobState, grace_s: float) -> float:
    """For how long lines of an ended job may still come, in seconds."""
    if state.times.ended is None:
        return grace_s
    return min(max(0.0, grace_s - (datetime.now(UTC) - state.times.ended).total_seconds()), grace_s)


def read_metrics(
    target: Target, address: TaskAddress, number: int, state: JobState, metrics: Mapping[str, str], grace_s: float
) -> dict[str, Last]:
    """The last value of each metric of an execution that has ended; `metrics`: name and regular expression.

    What is read once all lines are there is kept, and read no second time. A metric whose regular expression cannot be used, or
    takes too long, has no value: stderr gets a line about it.
    """
    uri = address.values(number)
    kept = _kept(target.store, uri)
    missing = {regex for regex in metrics.values() if regex not in kept}
    if missing:
        is_settled = state.ended and not unsettled_s(state, grace_s)
        kept |= last_values(job_lines(target, state), missing, _warn)
        if is_settled:
            _keep(target.store, uri, kept)
    return {name: kept.get(regex, Last("")) for name, regex in metrics.items()}


def _warn(text: str) -> None:
    print(f"algorun: warning: {text}", file=sys.stderr)


def job_lines(target: Target, state: JobState) -> Iterator[Sequence[LogLine]]:
    """All lines of a job, in chunks as they arrive."""
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
    return found if all(not each.text or is_number(each.text) for each in found.values()) else {}


def _keep(store: ObjectStore, uri: str, found: Mapping[str, Last]) -> None:
    """A caller who may read the bucket and not write reads the lines the next time again."""
    rows = {regex: [each.text, each.time_ms] for regex, each in found.items()}
    with contextlib.suppress(ApiError):
        store.put(uri, json.dumps({"format": FORMAT, "values": rows}, indent=1).encode())


def is_number(text: str) -> bool:
    """True for a number that a program reads; not for nan, inf and 1e999, which no program can use."""
    return NUMBER.fullmatch(text) is not None and math.isfinite(float(text))
