"""The jobs of a sweep, the best one first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from algorun.common.errors import UserError
from algorun_client.aws.api import Target
from algorun_client.aws.job_state import describe
from algorun_client.common import at_once, json_lines
from algorun_client.connection import PollTimes
from algorun_client.follow import metric_values
from algorun_client.request.model import TaskAddress
from algorun_client.submit.history import claims, done
from algorun_client.submit.history.tune_history import PointEnd, PointEnding
from algorun_client.submit.read import sweep
from algorun_client.submit.read.sweep import Goal, TaskSweep
from algorun_client.submit.read.tune import TaskTune

from . import tuning

ABSENT, COMPLETED, EARLY = "not submitted", "Completed", "Stopped early"


@dataclass(frozen=True, slots=True)
class SweptPoints:
    """The points of a sweep, or those that a tuning has chosen so far."""

    sweep: TaskSweep
    ends: Mapping[str, PointEnd] = field(default_factory=dict)  # of a tuning, by task: those that are known


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One point. `value`: the last one of the metric, None without one."""

    task: str
    parameters: tuple[str, ...]  # in the order of SweepResults.names
    status: str
    job: str = ""
    newer: str = ""  # the status of a job after `job`, which is the newest completed one
    text: str = ""  # the value as it was printed
    counts: bool = False  # its value counts although the job was stopped

    @property
    def value(self) -> float | None:
        """The value as a number."""
        return float(self.text) if self.text else None

    @property
    def is_ranked(self) -> bool:
        """True if its value counts: those of completed jobs do."""
        return bool(self.text) and (self.status == COMPLETED or self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResults:
    """All points: completed ones with a value first, the best of them first; then the others in their order."""

    task: str
    names: tuple[str, ...]
    goal: Goal | None
    rows: tuple[Row, ...]

    @property
    def best(self) -> Row | None:
        """The best completed point; None if no completed job printed the metric."""
        return next((row for row in self.rows if row.is_ranked), None)

    def to_json(self) -> dict[str, object]:
        """For `sweep.json`, which a report reads."""
        return {
            "names": list(self.names),
            "metric": self.goal.metric if self.goal else "",
            "rows": [
                {"job": row.job, "status": row.status, "parameters": list(row.parameters), "value": row.value}
                for row in self.rows
            ],
        }


def swept(target: Target, address: TaskAddress, sweep_: TaskSweep | None, tune: TaskTune | None) -> SweptPoints:
    """The points of a task that has one of the two. Raises UserError for a tuning that is damaged in the bucket."""
    if sweep_ is not None:
        return SweptPoints(sweep_)
    assert tune is not None
    points = tuning.points_so_far(target, address)
    ends = {sweep.point_task(address.task, each.parameters): each.end for each in points if each.end is not None}
    return SweptPoints(
        tune.as_sweep([{name: each.parameters.get(name, "") for name in tune.space} for each in points]), ends
    )


def read_results(
    target: Target,
    task: TaskAddress,
    swept: SweptPoints,
    metrics: Mapping[str, str],
    goal: Goal | None,
    pace: PollTimes,
) -> SweepResults:
    """Asks for the newest completed job of each point, which is the one that a chain reads; without one for the newest.

    Of a tuning its own jobs count, no earlier one. `metrics`: of the task; one of them is the goal's. Raises UserError for a
    task's file that is damaged.
    """
    wanted = {goal.metric: metrics[goal.metric]} if goal else {}

    def row(point: Mapping[str, str]) -> Row:
        address = replace(task, task=sweep.point_task(task.task, point))
        made = Row(task=address.task, parameters=tuple(point.values()), status=ABSENT)
        if (end := swept.ends.get(address.task)) is not None:
            return _of_end(target, address, made, end, wanted, pace)
        newest, state = claims.newest_job(target, address)
        if newest is None or state is None:
            return made
        number, newer = newest.number, ""
        completed = None if state.status == COMPLETED else done.newest_completed(target, address)
        if completed is not None:
            number, newer = completed.number, state.status
            state = describe(target.sagemaker, completed.kind, completed.job)
        found = (
            metric_values.read_metrics(target, address, number, state, wanted, pace.grace_s)
            if wanted and state.ended
            else {}
        )
        text = found[goal.metric].text if goal and found else ""
        return replace(made, status=state.status, job=state.job, newer=newer, text=text)

    rows = ordered(at_once.each(row, swept.sweep.points), goal)
    return SweepResults(task=task.task, names=swept.sweep.names, goal=goal, rows=rows)


def _of_end(
    target: Target, address: TaskAddress, made: Row, end: PointEnd, wanted: Mapping[str, str], pace: PollTimes
) -> Row:
    """A point of a tuning that has ended: what its own job has left, and no earlier one."""
    state = describe(target.sagemaker, end.kind, end.job)
    found = (
        metric_values.read_metrics(target, address, end.execution, state, wanted, pace.grace_s)
        if wanted and state.ended
        else {}
    )
    is_early = end.ending is PointEnding.STOPPED_EARLY and state.status in ("Stopped", "Stopping", "InProgress")
    text = next((each.text for each in found.values()), "")
    return replace(made, status=EARLY if is_early else state.status, job=state.job, text=text)


def best_of(found: SweepResults) -> Row:
    """The best completed point. Raises UserError if there is none."""
    assert found.goal is not None
    if found.best is None:
        completed = sum(row.status == COMPLETED for row in found.rows)
        raise UserError(
            f"--best {found.goal.metric}",
            f"none of the {completed} completed jobs of {found.task!r} printed a number for it",
            fix=f"look at `algorun results {found.task}`, and at the metric's regular expression",
        )
    return found.best


def write(found: SweepResults, *, as_json: bool) -> None:
    """Prints the table, or one object with event `point` for each point."""
    if as_json:
        metric = found.goal.metric if found.goal else ""
        for row in found.rows:
            parameters = dict(zip(found.names, row.parameters, strict=True))
            json_lines.write(
                "point", task=row.task, parameters=parameters, metric=metric, value=row.value, status=row.status, job=row.job,
                newer=row.newer,
            )  # fmt: skip
        return
    from algorun_client.common import table  # imports rich

    value = [found.goal.metric] if found.goal else []
    rows = []
    for row in found.rows:
        status = f"{row.status} (newer: {row.newer})" if row.newer else row.status
        rows.append((*row.parameters, *([row.text or "-"] if value else []), status, row.job or "-"))
    heads = (*found.names, *value, "status", "job")
    table.write(heads, rows, cut=len(heads) - 1)
    if found.goal and found.best:
        print(f"{found.goal.text}: {found.best.text} of {found.best.task}")


def ordered(rows: list[Row], goal: Goal | None) -> tuple[Row, ...]:
    """Completed rows with a value first, the best of them first; then the others in their order."""
    if goal is None:
        return tuple(rows)
    ranked = sorted((row for row in rows if row.is_ranked), key=lambda row: float(row.text), reverse=not goal.lowest)
    return (*ranked, *(row for row in rows if not row.is_ranked))
