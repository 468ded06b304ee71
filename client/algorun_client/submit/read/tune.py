"""`[task.NAME.tune]`: a sweep whose points are chosen one after the other, from the results of those before. Pure.

A point is a task of its own, as that of a sweep is: the same name, words, jobs and state.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, TypedDict

from algorun.common.errors import UserError

from . import sweep, values
from .spec import TaskSpec
from .sweep import MOST_PARALLEL, MOST_POINTS, Goal, TaskSweep

KEYS = ("goal", "space", "points", "parallel", "method", "seed", "stop", "steps", "least", "factor", "tuner")
TUNERS = ("algorun", "sagemaker")
MEDIAN = "median"  # of `stop`
OF_STOPPING = ("steps", "least", "factor")
RANGE_KEYS = ("from", "to", "log")
FORM = "{ from = 1e-5, to = 0.1, log = true } or { values = [16, 32] }"
LARGEST = 2**53  # of whole numbers: up to here a float holds each of them
MOST_STEPS = 1_000_000
MOST_LOOKS = 1_000  # of one job: the value of each is kept
MOST_FACTOR = 100
PARTS = 5  # decimal digits of a value within its range: more would only make names of tasks longer


class Method(StrEnum):
    """How the next point is chosen."""

    RANDOM = "random"
    BAYESIAN = "bayesian"
    HYPERBAND = "hyperband"  # as bayesian, and jobs that lag behind are stopped early


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRange:
    """All numbers from `low` to `high`, both included."""

    low: float
    high: float
    is_whole: bool
    is_log: bool

    @property
    def count(self) -> int | None:
        """How many values it has; None for a range without gaps."""
        return int(self.high) - int(self.low) + 1 if self.is_whole else None

    @property
    def ends(self) -> tuple[str, str]:
        """Its first and last value."""
        return self.text(self.low), self.text(self.high)

    def text(self, value: float) -> str:
        """A value as it stands in the words of a program, with as many digits as the range needs."""
        if self.is_whole:
            return str(int(value))
        largest = max(abs(self.low), abs(self.high))
        digits = min(17, PARTS + max(1, math.ceil(math.log10(largest / (self.high - self.low)))))
        return repr(min(max(float(f"{value:.{digits}g}"), self.low), self.high))

    def number(self, text: str) -> float | int:
        """The value of a text. Raises ValueError for one that is not in the range."""
        found = int(text) if self.is_whole else float(text)
        if not self.low <= found <= self.high:
            raise ValueError(f"{text} is not in {self.low} to {self.high}")
        return found

    def to_json(self) -> dict[str, object]:
        """For comparison with an earlier one."""
        low, high = (int(each) if self.is_whole else each for each in (self.low, self.high))
        return {"from": low, "to": high, "whole": self.is_whole, "log": self.is_log}


@dataclass(frozen=True, slots=True)
class ValueChoices:
    """Some values without an order."""

    texts: tuple[str, ...]

    @property
    def count(self) -> int:
        """How many values it has."""
        return len(self.texts)

    @property
    def ends(self) -> tuple[str, str]:
        """Its first and last value."""
        return self.texts[0], self.texts[-1]

    def to_json(self) -> dict[str, object]:
        """For comparison with an earlier one."""
        return {"values": list(self.texts)}


Dimension: TypeAlias = ValueRange | ValueChoices


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTune:
    """What a job file asks for."""

    where: str
    goal: Goal
    space: Mapping[str, Dimension]
    points: int  # jobs in all
    parallel: int = 1  # the most jobs that may run at the same time
    method: Method = Method.BAYESIAN
    seed: int = 0
    by_median: bool = False  # jobs that are worse than the median of the others are stopped early
    steps: int = 0  # of hyperband and the median: how often a job prints the goal's metric
    least: int = 1  # of hyperband and the median: so often before it may be stopped
    factor: int = 3  # of hyperband: one of so many goes on
    by_sagemaker: bool = False  # SageMaker's tuner chooses the points and creates their jobs

    def to_json(self) -> dict[str, object]:
        """What decides which points are chosen."""
        found: dict[str, object] = {
            "goal": f"{'min' if self.goal.lowest else 'max'}:{self.goal.metric}",
            "method": self.method.value,
            "seed": self.seed,
            **{f"space.{name}": each.to_json() for name, each in self.space.items()},
        }
        if self.method is Method.HYPERBAND:
            found |= {"steps": self.steps, "least": self.least, "factor": self.factor}
        if self.by_median:
            found |= {"stop": MEDIAN, "steps": self.steps, "least": self.least}
        if self.by_sagemaker:  # a tuning job takes no further points
            found |= {"tuner": "sagemaker", "points": self.points}
        return found

    @property
    def looks(self) -> tuple[int, ...]:
        """After how many values of the metric a job may be stopped early; () if never. The last value ends a job anyway."""
        if self.by_median:
            return tuple(range(self.least, self.steps, self.least))
        if self.method is not Method.HYPERBAND:
            return ()
        found, step = [], self.least
        while step < self.steps:
            found.append(step)
            step *= self.factor
        return tuple(found)

    def as_sweep(self, points: Sequence[Mapping[str, str]]) -> TaskSweep:
        """A sweep of these points."""
        return TaskSweep(where=self.where, points=tuple(points), parallel=self.parallel, best=self.goal)

    def all_points(self) -> Iterator[Mapping[str, str]]:
        """Every point of a space without ranges of fractions."""
        listed = []
        for each in self.space.values():
            if isinstance(each, ValueRange):
                listed.append([each.text(number) for number in range(int(each.low), int(each.high) + 1)])
            else:
                listed.append(list(each.texts))
        return (dict(zip(self.space, chosen, strict=True)) for chosen in itertools.product(*listed))

    @property
    def size(self) -> int | None:
        """How many points the space has; None if more than anybody can count."""
        counts = [each.count for each in self.space.values()]
        return None if None in counts else math.prod(each for each in counts if each is not None)


class Stopping(TypedDict, total=False):
    """The fields of TaskTune that say which jobs are stopped early."""

    by_median: bool
    steps: int
    least: int
    factor: int


def parse(where: str, raw: object) -> TaskTune:
    """Reads the table. Raises UserError."""
    if not isinstance(raw, Mapping):
        raise UserError(where, f"{raw!r} is not a table", allowed=f"a table with {', '.join(KEYS)}")
    values.known(where, raw, KEYS)
    for key, example in (("goal", '"max:accuracy"'), ("points", "30"), ("space", "{ lr = { from = 1e-5, to = 0.1 } }")):
        if key not in raw:
            raise UserError(where, f"has no {key}", fix=f"{key} = {example}")
    method = Method(
        values.one_of(f"{where} method", raw.get("method", Method.BAYESIAN), [each.value for each in Method])
    )
    by_sagemaker = values.one_of(f"{where} tuner", raw.get("tuner", TUNERS[0]), TUNERS) == "sagemaker"
    made = TaskTune(
        where=where,
        by_sagemaker=by_sagemaker,
        goal=sweep.parse_goal(f"{where} goal", raw["goal"]),
        space=_space(f"{where} space", raw["space"]),
        points=values.count(f"{where} points", raw["points"], MOST_POINTS),
        parallel=values.count(f"{where} parallel", raw.get("parallel", 1), MOST_PARALLEL),
        method=method,
        seed=values.count(f"{where} seed", raw.get("seed", 0), 2**31 - 1, least=0),
        **(_stopping_of_sagemaker(where, raw, method) if by_sagemaker else _stopping(where, raw, method)),
    )
    if made.size is not None and made.size < made.points:
        raise UserError(
            f"{where} points", f"{made.points} points, and the space has {made.size}", allowed=f"up to {made.size}",
            fix=f"points = {made.size}, or more values",
        )  # fmt: skip
    return made


def check_space(spec: TaskSpec, asked: TaskTune) -> tuple[TaskSpec, TaskSpec]:
    """The tasks at the first and at the last values of all parameters. Raises UserError for one that the task does not have."""
    first = {name: each.ends[0] for name, each in asked.space.items()}
    last = {name: each.ends[1] for name, each in asked.space.items()}
    return point_spec(spec, asked, first), point_spec(spec, asked, last)


def point_spec(spec: TaskSpec, asked: TaskTune, point: Mapping[str, str]) -> TaskSpec:
    """The task of a point. Raises UserError for a parameter that the task does not have, or that the space does not."""
    return sweep.point_spec(spec, asked.as_sweep(()), point)


def _stopping(where: str, raw: Mapping[str, object], method: Method) -> Stopping:
    """The keys that say which jobs are stopped early: those of hyperband, or of `stop`."""
    is_hyperband, by_median = method is Method.HYPERBAND, "stop" in raw
    if by_median:
        values.one_of(f"{where} stop", raw["stop"], (MEDIAN,))
    if by_median and is_hyperband:
        raise UserError(f"{where} stop", "hyperband stops jobs by a rule of its own", fix="drop one of the two")
    for key in OF_STOPPING:
        if key in raw and not is_hyperband and (key == "factor" or not by_median):
            also = "" if key == "factor" else f", or for stop = {MEDIAN!r}"
            raise UserError(f"{where} {key}", f"is for method {Method.HYPERBAND.value!r}{also}", fix="drop it")
    if not is_hyperband and not by_median:
        return {}
    if "steps" not in raw:
        who = "hyperband" if is_hyperband else f"stop = {MEDIAN!r}"
        fix = "steps = 27: how often a job prints the goal's metric before its end"
        raise UserError(where, f"{who} has no steps", fix=fix)
    steps = values.count(f"{where} steps", raw["steps"], MOST_STEPS, least=2)
    least = values.count(f"{where} least", raw.get("least", 1), steps - 1)
    if by_median and steps > least * MOST_LOOKS:
        text = f"a job of {steps} steps would be compared after each {least}"
        fix = f"least = {-(-steps // MOST_LOOKS)}"
        raise UserError(f"{where} least", text, allowed=f"up to {MOST_LOOKS:,} comparisons of a job", fix=fix)
    factor = values.count(f"{where} factor", raw.get("factor", 3), MOST_FACTOR, least=2)
    return {"by_median": by_median, "steps": steps, "least": least, "factor": factor}


def _stopping_of_sagemaker(where: str, raw: Mapping[str, object], method: Method) -> Stopping:
    """The same for SageMaker's tuner, which has its own rules: no factor, and a median without steps."""
    of_hyperband = method is Method.HYPERBAND
    for key in OF_STOPPING:
        if key in raw and (key == "factor" or not of_hyperband):
            allowed = "steps and least, of hyperband" if of_hyperband else "stop = 'median'"
            raise UserError(f"{where} {key}", "SageMaker's tuner has no such setting", allowed=allowed, fix="drop it")
    if not of_hyperband:
        if "stop" in raw:
            values.one_of(f"{where} stop", raw["stop"], (MEDIAN,))
        return {"by_median": "stop" in raw}
    return _stopping(where, raw, method)


def _space(where: str, raw: object) -> dict[str, Dimension]:
    if not isinstance(raw, Mapping) or not raw:
        raise UserError(where, f"{raw!r} is not a table of parameters", allowed=f"such as {{ lr = {FORM} }}")
    return {sweep.checked_name(where, name): _dimension(f"{where}.{name}", each) for name, each in raw.items()}


def _dimension(where: str, raw: object) -> Dimension:
    if not isinstance(raw, Mapping):
        raise UserError(where, f"{raw!r} is no range and no choice", allowed=FORM)
    if "values" in raw:
        values.known(where, raw, ("values",))
        return _choices(where, raw["values"])
    values.known(where, raw, ("values", *RANGE_KEYS))
    for key in ("from", "to"):
        if key not in raw:
            raise UserError(where, f"has no {key}", allowed=FORM)
    return _range(where, raw)


def _choices(where: str, raw: object) -> ValueChoices:
    if not isinstance(raw, list) or len(raw) < 2:
        raise UserError(f"{where} values", f"{raw!r} is no list of at least 2 values", allowed="such as [16, 32]")
    texts = tuple(sweep.checked_value(f"{where} values", each) for each in raw)
    if twice := [text for at, text in enumerate(texts) if text in texts[:at]]:
        raise UserError(f"{where} values", f"{twice[0]!r} comes twice", fix="drop one of the two")
    return ValueChoices(texts)


def _range(where: str, raw: Mapping[str, object]) -> ValueRange:
    low, high = (_number(f"{where} {key}", raw[key]) for key in ("from", "to"))
    is_log = values.flag(f"{where} log", raw.get("log", False))
    if not low < high or not math.isfinite(float(high) - float(low)):
        raise UserError(where, f"from {low} to {high} is no range", fix="from has to be less than to")
    if is_log and low <= 0:
        raise UserError(
            where, f"a logarithm of {low} does not exist", allowed="log with from above 0", fix="log = false"
        )
    return ValueRange(
        low=float(low), high=float(high), is_whole=isinstance(low, int) and isinstance(high, int), is_log=is_log
    )


def _number(where: str, raw: object) -> float | int:
    is_number = isinstance(raw, int | float) and not isinstance(raw, bool)
    if not is_number or not math.isfinite(raw) or abs(raw) > LARGEST:  # type: ignore[arg-type]
        raise UserError(where, f"{raw!r} is not a number", allowed="a number, such as 1e-5 or 8")
    assert isinstance(raw, int | float)
    return raw
