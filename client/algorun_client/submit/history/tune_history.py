"""What is kept of the tuning of a task: `TASK/tune/NNNN/` in the bucket.

`begun.json` says what was asked for. `points/MMMM.json` is written before the job of a point is placed, and `ends/MMMM.json`
when its result is known; both only if they do not exist. So of two clients one chooses the next point, and the other one
reads it. Nothing is ever changed: a tuning that begins anew takes the next number.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from algorun.common.codec import loads
from algorun.common.errors import UserError
from algorun.common.json_values import number, row, rows, shown, table, text, whole
from algorun_client.aws.api import ObjectStore
from algorun_client.common import at_once
from algorun_client.common.errors import Exists, NotFound
from algorun_client.request import fingerprint
from algorun_client.request.fingerprint import Fingerprint
from algorun_client.request.model import Kind, TaskAddress

FORMAT = 1
NUMBER = re.compile(r"\d{4}")
OBJECT = re.compile(r"(points|ends)/(\d{4})\.json")

Made = TypeVar("Made")


class PointEnding(StrEnum):
    """How the job of a point ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED_EARLY = "stopped early"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointEnd:
    """The result of a point."""

    ending: PointEnding
    kind: Kind
    job: str
    execution: int
    value: str = ""  # the last one of the goal's metric, as it was printed
    curve: Mapping[int, float] = field(default_factory=dict)  # of the metric, after so many values

    @property
    def is_completed(self) -> bool:
        """True if the point has a result that others may read."""
        return self.ending is PointEnding.COMPLETED and bool(self.value)

    def to_json(self) -> dict[str, object]:
        """For the bucket."""
        return {
            "ending": self.ending.value,
            "kind": self.kind.value,
            "job": self.job,
            "execution": self.execution,
            "value": self.value,
            "curve": [[step, value] for step, value in self.curve.items()],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPoint:
    """A point, the number-th that was chosen, from 1."""

    number: int
    parameters: Mapping[str, str]
    after: int  # the newest execution of its task when it was chosen: later ones belong to this tuning
    end: PointEnd | None = None  # None: nobody has written it down yet


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningBegun:
    """What a tuning was asked for, and the task that it is about."""

    number: int
    asked: Mapping[str, object]
    fingerprint: Fingerprint | None

    @property
    def by_sagemaker(self) -> bool:
        """True if SageMaker's tuner chooses the points: they are not written down here."""
        return self.asked.get("tuner") == "sagemaker"


class TuneHistory:
    """The objects of one task's tunings."""

    def __init__(self, store: ObjectStore, address: TaskAddress) -> None:
        self._store, self._folder = store, f"{address.uri}/tune"
        self._points: dict[tuple[int, int], ChosenPoint] = {}  # by tuning and number

    def newest(self) -> TuningBegun | None:
        """The tuning that was begun last; None without one. Raises UserError if it is damaged.

        A folder without begun.json is no tuning: a job may write its output after somebody has removed the folder.
        """
        try:
            numbers = sorted(int(each) for each in self._store.folders(f"{self._folder}/") if NUMBER.fullmatch(each))
        except NotFound:  # there is not even the bucket
            return None
        for each in reversed(numbers):
            with contextlib.suppress(NotFound):
                return self._begun(each)
        return None

    def begin(self, number: int, asked: Mapping[str, object], made_of: Fingerprint | None) -> TuningBegun:
        """Begins a tuning, or finds that another client has begun it a moment ago."""
        value = {"format": FORMAT, "asked": dict(asked), "fingerprint": made_of.to_json() if made_of else None}
        if self._put(self._uri(number, "begun.json"), value):
            return TuningBegun(number=number, asked=asked, fingerprint=made_of)
        return self._begun(number)

    def points(self, tuning: int) -> list[ChosenPoint]:
        """All points in the order in which they were chosen. Reads what is new. Raises UserError for a damaged one."""
        listed: dict[str, set[int]] = {"points": set(), "ends": set()}
        prefix = f"{self._folder}/{tuning:04d}/"
        for each in self._store.list(prefix):
            if found := OBJECT.fullmatch(each.uri.removeprefix(prefix)):
                listed[found[1]].add(int(found[2]))
        old = {number: self._points.get((tuning, number)) for number in listed["points"]}
        new = [
            number for number, known in old.items() if known is None or (known.end is None and number in listed["ends"])
        ]
        for point in at_once.each(lambda number: self._point(tuning, number, has_end=number in listed["ends"]), new):
            self._points[tuning, point.number] = point
        return [self._points[tuning, number] for number in sorted(listed["points"])]

    def choose(self, tuning: int, point: ChosenPoint) -> bool:
        """Writes a point down. False if another client has chosen the point of this number."""
        value = {"format": FORMAT, "parameters": dict(point.parameters), "after": point.after}
        return self._put(self._uri(tuning, f"points/{point.number:04d}.json"), value)

    def end(self, tuning: int, point: int, end: PointEnd) -> PointEnd:
        """Writes the end of a point down. Returns what is written: another client may have seen it first."""
        uri = self._uri(tuning, f"ends/{point:04d}.json")
        return end if self._put(uri, {"format": FORMAT, **end.to_json()}) else self._read(uri, _end)

    def end_of(self, tuning: int, point: int) -> PointEnd | None:
        """The end of a point; None if nobody has written it down."""
        try:
            return self._read(self._uri(tuning, f"ends/{point:04d}.json"), _end)
        except NotFound:
            return None

    def _begun(self, number: int) -> TuningBegun:
        def made(value: Mapping[str, object]) -> TuningBegun:
            kept = value["fingerprint"]
            made_of = None if kept is None else fingerprint.from_json(kept)
            return TuningBegun(number=number, asked=table(value["asked"]), fingerprint=made_of)

        return self._read(self._uri(number, "begun.json"), made)

    def _point(self, tuning: int, number: int, *, has_end: bool) -> ChosenPoint:
        def made(value: Mapping[str, object]) -> ChosenPoint:
            parameters = {name: text(each) for name, each in table(value["parameters"]).items()}
            end = self.end_of(tuning, number) if has_end else None
            return ChosenPoint(number=number, parameters=parameters, after=whole(value["after"]), end=end)

        return self._read(self._uri(tuning, f"points/{number:04d}.json"), made)

    def _uri(self, tuning: int, name: str) -> str:
        return f"{self._folder}/{tuning:04d}/{name}"

    def _put(self, uri: str, value: Mapping[str, object]) -> bool:
        try:
            self._store.put(uri, json.dumps(value, indent=1).encode(), if_absent=True)
        except Exists:
            return False
        return True

    def _read(self, uri: str, make: Callable[[Mapping[str, object]], Made]) -> Made:
        """An object. Raises NotFound, or UserError if it is damaged or of another version."""
        content = self._store.get(uri)
        try:
            value = table(loads(content))
            found = value["format"]
            if found == FORMAT:
                return make(value)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                uri,
                f"is damaged ({type(error).__name__}: {error})",
                fix=f"remove {self._folder}/: the next tuning then begins anew, and the jobs stay",
            ) from None
        raise UserError(
            uri,
            f"has format {shown(found)}: another version of algorun has written it",
            allowed=f"format {FORMAT}",
            fix="install the version that you used before, or name another --task",
        )


def _end(value: Mapping[str, object]) -> PointEnd:
    """Raises ValueError and KeyError."""
    last = text(value["value"])
    if last:
        number(float(last))
    curve = [row(each, 2) for each in rows(value["curve"])]
    return PointEnd(
        ending=PointEnding(text(value["ending"])),
        kind=Kind(text(value["kind"])),
        job=text(value["job"]),
        execution=whole(value["execution"], 1),
        value=last,
        curve={whole(step, 1): number(each) for step, each in curve},
    )
