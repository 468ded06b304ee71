"""One tuning: its points as the bucket and their jobs tell, the next one, and which job is stopped early.

Nothing is kept on this machine. A point is written down before its job is placed, and its end as soon as it is known, so
that a client that comes later finds the same points, and the jobs that belong to them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from algorun.common.bounded_search import BoundedSearch, compiled
from algorun.common.errors import UserError
from algorun_client.aws.api import Target
from algorun_client.aws.job_state import JobState, ask_to_stop
from algorun_client.follow import metric_values
from algorun_client.follow.log_reader import LogLine, LogReader
from algorun_client.request.fingerprint import Fingerprint, differences
from algorun_client.request.model import TaskAddress
from algorun_client.submit.history import claims
from algorun_client.submit.history.tune_history import ChosenPoint, PointEnd, PointEnding, TuneHistory, TuningBegun
from algorun_client.submit.place.place import HowPlaced, Placed
from algorun_client.submit.read import sweep
from algorun_client.submit.read.tune import TaskTune

from .tune_study import TuneStudy

FIRST_FAILURES = 3  # if as many points fail and no other has ended, the program or its options are wrong
SHOWN = 5  # differences in an error


@dataclass(slots=True)
class _Curve:
    """The values of the goal's metric in the order of their times, as far as the lines were read."""

    reader: LogReader
    by_host: dict[str, list[tuple[int, str]]] = field(default_factory=dict)  # time in ms, and text

    @property
    def values(self) -> list[str]:
        """Those of one host: if each host prints the metric, a step has as many lines."""
        if not self.by_host:
            return []
        return [text for _, text in sorted(self.by_host[min(self.by_host)], key=lambda pair: pair[0])]


def check_begun(asked: TaskTune, target: Target, address: TaskAddress) -> None:
    """Raises UserError if the task's newest tuning was asked for something else. Writes nothing."""
    history = TuneHistory(target.store, address)
    begun = history.newest()
    if begun is not None and _has_results(history, begun):
        check_same(asked, begun)


def points_so_far(target: Target, address: TaskAddress) -> list[ChosenPoint]:
    """The points of the task's newest tuning. Raises UserError for a damaged one."""
    history = TuneHistory(target.store, address)
    begun = history.newest()
    return history.points(begun.number) if begun else []


def open_tuning(
    asked: TaskTune,
    target: Target,
    address: TaskAddress,
    metrics: Mapping[str, str],
    made_of: Fingerprint | None,
    *,
    anew: bool,
    grace_s: float,
    note: Callable[[str], None],
) -> Tuning:
    """The task's newest tuning if it is of the same things, else a new one: `note` gets a line that says why.

    Raises UserError if the table has changed and points were chosen already.
    """
    history = TuneHistory(target.store, address)
    begun = history.newest()
    if begun is not None and not anew:
        is_worth = _has_results(history, begun)
        if is_worth:
            check_same(asked, begun)
        changed = changes(begun.fingerprint, made_of)
        if not changed and (is_worth or begun.asked == asked.to_json()):
            return Tuning(asked, target, address, begun, metrics, grace_s)
        if changed:
            note(text_of_anew(address.task, changed))
    number = begun.number + 1 if begun else 1
    return Tuning(asked, target, address, history.begin(number, asked.to_json(), made_of), metrics, grace_s)


def text_of_anew(task: str, changed: Sequence[str]) -> str:
    """Why a tuning begins anew, in words."""
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    return f"{task}: tunes anew, because of what has changed: {'; '.join(changed[:SHOWN])}{more}"


def _has_results(history: TuneHistory, begun: TuningBegun) -> bool:
    """False if nothing is lost when another tuning begins: each point has failed, or none was chosen."""
    if begun.by_sagemaker:  # its jobs may run
        return True
    return any(each.end is None or each.end.ending is not PointEnding.FAILED for each in history.points(begun.number))


def check_same(asked: TaskTune, begun: TuningBegun) -> None:
    """Raises UserError if a tuning was begun with another table."""
    now, before = asked.to_json(), begun.asked
    changed = [
        f"{key} was {json.dumps(before.get(key, 'absent'))}, is {json.dumps(now.get(key, 'absent'))}"
        for key in (*before, *(key for key in now if key not in before))
        if before.get(key) != now.get(key)
    ]
    if changed:
        raise UserError(
            asked.where,
            f"the tuning was begun with another table: {'; '.join(changed[:SHOWN])}",
            fix="take the change back to go on with it; --force begins a new tuning, another task keeps both",
        )


def changes(before: Fingerprint | None, now: Fingerprint | None) -> list[str]:
    """What is known to have changed. What cannot be compared does not begin a tuning anew."""
    if before is None or now is None:
        return []
    unknown = (*before.unknown, *now.unknown)
    return [each for each in differences(before, now) if each not in unknown]


class Tuning:
    """The points of one table. Close it."""

    def __init__(
        self,
        asked: TaskTune,
        target: Target,
        address: TaskAddress,
        begun: TuningBegun,
        metrics: Mapping[str, str],
        grace_s: float,
    ) -> None:
        self.asked, self.address, self.begun = asked, address, begun
        self._target, self._metrics, self._grace_s = target, metrics, grace_s
        self._history = TuneHistory(target.store, address)
        self._study = TuneStudy(asked)
        self._curves: dict[int, _Curve] = {}
        self._search: BoundedSearch | None = None
        self._slow = ""  # why the metric's expression finds nothing any more
        self.points: list[ChosenPoint] = []
        self.sync()

    def sync(self) -> list[ChosenPoint]:
        """Reads what other clients have chosen. Returns the points that are new here."""
        listed = self._history.points(self.begun.number)
        new = listed[len(self.points) :]
        for point in new:
            self._study.add(point)
            self.points.append(point)
        return new

    def task(self, point: ChosenPoint) -> str:
        """The name of a point's task."""
        return sweep.point_task(self.address.task, point.parameters)

    @property
    def is_exhausted(self) -> bool:
        """True if all points are chosen."""
        return len(self.points) >= self.asked.points

    @property
    def ends(self) -> list[tuple[str, PointEnd]]:
        """The points that have ended, by the names of their tasks."""
        return [(self.task(point), point.end) for point in self.points if point.end is not None]

    @property
    def has_failed_at_once(self) -> bool:
        """True if only failures are known, and as many as FIRST_FAILURES: another point would fail too."""
        endings = [end.ending for _, end in self.ends]
        return len(endings) >= min(FIRST_FAILURES, self.asked.points) and set(endings) == {PointEnding.FAILED}

    @property
    def counted(self) -> str:
        """How the points have ended, and which have failed, in words."""
        endings = [end.ending for _, end in self.ends]
        counts = ", ".join(f"{endings.count(each)} {each}" for each in PointEnding if each in endings)
        failed = [task for task, end in self.ends if end.ending is PointEnding.FAILED]
        return f"{counts} of {len(endings)} points" + (f"; failed: {', '.join(failed)}" if failed else "")

    def choose(self, names: Mapping[str, object]) -> list[ChosenPoint]:
        """Chooses one more point, writes it down and returns it. `names`: tasks of the chain.

        If another client was faster, its choice is returned. Raises UserError if the space has no other point.
        """
        taken = [each.parameters for each in self.points]
        found = self._study.choose(lambda point: point in taken or sweep.point_task(self.address.task, point) in names)
        if found is None:
            raise UserError(
                self.asked.where,
                f"the space has no point beside the {len(taken)} that were chosen",
                fix="add values to it",
            )
        address = replace(self.address, task=sweep.point_task(self.address.task, found))
        after = max(claims.numbers(self._target.store, address), default=0)
        self._history.choose(self.begun.number, ChosenPoint(number=len(self.points) + 1, parameters=found, after=after))
        return self.sync()

    def job_of(self, point: ChosenPoint) -> Placed | None:
        """The job of a point that exists already: another client has created it, or this one before it was killed."""
        claim, state = claims.newest_job(self._target, replace(self.address, task=self.task(point)))
        if claim is None or state is None or claim.number <= point.after:
            return None
        return Placed(claim.kind, claim.job, claim.number, HowPlaced.JOINED)

    def watch(self, point: ChosenPoint, placed: Placed, state: JobState) -> bool:
        """Looks at the values of a job that runs, and stops it if it lags behind. True if it is asked to stop."""
        if not self.asked.looks or state.status != "InProgress":
            return False
        end = self._current(point).end
        if end is None and not self._study.report(point.number, self._read_curve(point, placed)):
            return False
        if end is None:  # written before the stop: nobody takes the stopped job for one that has failed
            end = self._written(point, placed, PointEnding.STOPPED_EARLY, self._curves[point.number].values[-1])
        if end.ending is PointEnding.STOPPED_EARLY:
            ask_to_stop(self._target.sagemaker, placed.kind, placed.job)
            return True
        return False

    def end_of(self, point: ChosenPoint, placed: Placed, state: JobState) -> PointEnd | None:
        """How a point whose job has ended counts; None while its last lines may still come.

        Raises UserError if the job has completed without a value: nothing tells how good the point is.
        """
        end = self._current(point).end or self._history.end_of(self.begun.number, point.number)
        if end is None and state.status != "Completed":
            end = self._written(point, placed, PointEnding.FAILED, "")
        if end is None:
            if metric_values.unsettled_s(state, self._grace_s):
                return None
            value = self._last(point, placed, state)
            if not value:
                raise self._silent(point, placed)
            end = self._written(point, placed, PointEnding.COMPLETED, value, state)
        self._settle(point, end)
        return end

    def close(self) -> None:
        """Ends the search for values."""
        if self._search is not None:
            self._search.close()

    def _current(self, point: ChosenPoint) -> ChosenPoint:
        return self.points[point.number - 1]

    def _settle(self, point: ChosenPoint, end: PointEnd) -> None:
        """The study learns how a point has ended, once."""
        if point.number in self._study.open:
            self._study.report(point.number, end.curve)
            self._study.end(point.number, end.ending, float(end.value) if end.value else None)
        self.points[point.number - 1] = replace(self._current(point), end=end)
        self._curves.pop(point.number, None)

    def _written(
        self, point: ChosenPoint, placed: Placed, ending: PointEnding, value: str, state: JobState | None = None
    ) -> PointEnd:
        curve = self._read_curve(point, placed) if self.asked.looks else {}
        made = PointEnd(
            ending=ending, kind=placed.kind, job=placed.job, execution=placed.number, value=value, curve=curve
        )
        end = self._history.end(self.begun.number, point.number, made)
        self.points[point.number - 1] = replace(self._current(point), end=end)
        return end

    def _last(self, point: ChosenPoint, placed: Placed, state: JobState) -> str:
        address, metric = replace(self.address, task=self.task(point)), self.asked.goal.metric
        wanted = {metric: self._metrics[metric]}
        return metric_values.read_metrics(self._target, address, placed.number, state, wanted, self._grace_s)[
            metric
        ].text

    def _read_curve(self, point: ChosenPoint, placed: Placed) -> dict[int, float]:
        """The values of a job's metric after as many as `looks` says."""
        curve = self._curves.get(point.number)
        if curve is None:
            curve = self._curves[point.number] = _Curve(LogReader(self._target.logs, placed.kind, placed.job))
        for lines in curve.reader.read_all():  # what is new since the last time
            for line, text in self._found(lines):
                curve.by_host.setdefault(line.host, []).append((line.time_ms, text))
        found = curve.values
        return {step: float(found[step - 1]) for step in self.asked.looks if step <= len(found)}

    def _found(self, lines: Sequence[LogLine]) -> list[tuple[LogLine, str]]:
        if not lines or self._slow:
            return []
        if self._search is None:
            regex = self._metrics[self.asked.goal.metric]
            try:
                compiled(regex)
            except ValueError as error:
                raise UserError(self.asked.where, f"{regex!r} cannot be used here: {error}") from None
            self._search = BoundedSearch([regex], self._switched_off)
        (found,) = self._search.search([line.text for line in lines])
        return [(lines[at], text) for at, text in found if metric_values.is_number(text)]

    def _switched_off(self, _: int, text: str) -> None:
        self._slow = text
        print(f"algorun: warning: {text}; no job of {self.address.task} is stopped early", file=sys.stderr)

    def _silent(self, point: ChosenPoint, placed: Placed) -> UserError:
        metric = self.asked.goal.metric
        return UserError(
            f"{self.asked.where} goal",
            f"job {placed.job} of point {self.task(point)} has completed, and never printed a number for metric {metric!r}, whose "
            f"regular expression is {self._metrics[metric]!r}",
            allowed=f"metrics of the task: {', '.join(self._metrics)}",
            fix=f"look at its lines with `algorun logs {placed.job}`, and correct the expression; the same line then goes on",
        )
