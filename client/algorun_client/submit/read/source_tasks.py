"""What the tasks of a job file are to those that read them, and what is wrong with such a reading. Pure.

A task reads what another one left as an input, and values of its metrics as `{task:TASK/METRIC}` in its own words. Shells and
TOML leave these words alone. `{{task:` stands for a literal `{task:`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from algorun.common.errors import UserError
from algorun.job.metric_definitions import DEFINITIONS

from . import sweep
from .job_file import JobFile
from .spec import TASK_VALUE, TaskSpec
from .sweep import Goal

SHOWN = 4  # points in an error
FORM = "{task:TASK/METRIC}"
MARK = re.compile(r"(?P<literal>\{\{task:)|\{task:(?P<task>[^{}/\s]+)/(?P<metric>[^{}\n]+)\}|(?P<wrong>\{task:)")


@dataclass(frozen=True, slots=True)
class Reference:
    """A value of another task."""

    task: str
    metric: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTask:
    """What a job file says about a task that others may read, or about a point of a sweep."""

    table: str = ""
    points: tuple[str, ...] = ()  # of a sweep: the names of its points
    best: Goal | None = None  # which of them others read
    by_sagemaker: bool = False  # SageMaker's tuner creates its jobs
    is_tuned: bool = False  # its points are chosen while it runs: the bucket says which they are
    metrics: Mapping[str, str] = field(default_factory=dict)  # name and regular expression


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is known of other tasks before they are looked up."""

    known: Mapping[str, SourceTask] = field(default_factory=dict)  # by task: those of the job file
    later: Collection[str] = ()  # tasks whose jobs are not created yet: what they leave is not looked up
    grace_s: float = 0.0  # the time for which a job's last lines may come after its end


def known_tasks(file: JobFile) -> dict[str, SourceTask]:
    """What the tasks of a job file, and the points of their sweeps, are to those that read them.

    Raises UserError if one has the name of another: they would be one task, with one state.
    """
    known: dict[str, SourceTask] = {}
    for task in file.tasks:
        metrics = {**{each["Name"]: each["Regex"] for each in DEFINITIONS}, **file.metrics(task)}
        swept, tuned = file.sweeps.get(task), file.tunes.get(task)
        points = tuple(sweep.point_task(task, point) for point in swept.points) if swept else ()
        for name in points:
            other = name if name in file.tasks else known[name].table if name in known else task
            if name in file.tasks or other != task:
                raise UserError(
                    f"[task.{task}]",
                    f"two tasks are called {name!r}: see [task.{other}] and [task.{task}]",
                    fix="rename one of the two",
                )
            known[name] = SourceTask(table=task, metrics=metrics)
        known[task] = SourceTask(
            table=task,
            points=points,
            best=swept.best if swept else tuned.goal if tuned else None,
            by_sagemaker=tuned is not None and tuned.by_sagemaker,
            is_tuned=tuned is not None,
            metrics=metrics,
        )
    return known


def references(spec: TaskSpec) -> dict[Reference, str]:
    """The values that a task needs, each with the option that asks for it. Raises UserError if one is not `FORM`."""
    found: dict[Reference, str] = {}
    for where, text in spec.texts:
        for mark in MARK.finditer(text):
            if mark["wrong"]:
                shown = text[mark.start() : mark.start() + 40]
                raise UserError(where, f"{shown!r} is not {FORM}", allowed=FORM, fix="{{task: for the text itself")
            if mark["task"]:
                found.setdefault(Reference(mark["task"], mark["metric"]), where)
    return found


def filled(spec: TaskSpec, values: Mapping[Reference, str]) -> TaskSpec:
    """The task with these values in its words. A value that is not among them stays as it is written, and is unfilled."""
    missing: dict[str, None] = {}

    def value(mark: re.Match[str]) -> str:
        if mark["literal"]:
            return TASK_VALUE
        found = values.get(Reference(mark["task"] or "", mark["metric"] or ""))
        if found is None:
            missing[mark[0]] = None
        return mark[0] if found is None else found

    made = spec.with_texts(lambda text: MARK.sub(value, text))
    return replace(made, unfilled=tuple(missing))


def needs(spec: TaskSpec) -> dict[str, str]:
    """The tasks that a task reads, each with the option that says so. A task may read its own state. Raises UserError."""
    found: dict[str, str] = {}
    for each in spec.inputs:
        if each.task is not None and (each.task.what != "state" or each.task.task != spec.task):
            found.setdefault(each.task.task, each.where)
    for reference, where in references(spec).items():
        found.setdefault(reference.task, where)
    return found


def check_reading(spec: TaskSpec, known: Mapping[str, SourceTask]) -> None:
    """Raises UserError if a task reads a value that the other one does not have, the state of a sweep (each point has its
    own), or a sweep without a best point."""
    for each in spec.inputs:
        if each.task is None or each.task.what != "state" or each.task.task not in known:
            continue
        points = known[each.task.task].points
        if known[each.task.task].is_tuned:
            raise UserError(
                each.where,
                f"task {each.task.task!r} is tuned, and each of its points has a state of its own",
                allowed=f"task:{each.task.task}/model or /output: those of its best point",
                fix=f"name a point: `algorun results {each.task.task}` lists them",
            )
        if points:
            raise UserError(
                each.where,
                f"task {each.task.task!r} is a sweep, and each of its points has a state of its own",
                allowed=", ".join(f"task:{point}/state" for point in points[:SHOWN]),
                fix="name a point",
            )
    for reference, where in references(spec).items():
        if reference.task in known:
            check_metric(where, reference.metric, reference.task, known[reference.task].metrics)
    for task, where in needs(spec).items():
        if task in known and known[task].by_sagemaker:
            raise UserError(
                where, f"task {task!r} is tuned by SageMaker, whose jobs no other task reads",
                fix=f"name what the best job has left in S3 (`algorun results {task}`), or tuner = 'algorun'",
            )  # fmt: skip
        if task not in known or not known[task].points:
            continue
        best = known[task].best
        if best is None:
            raise UserError(
                where,
                f"task {task!r} is a sweep, and does not say which of its points is read",
                fix=f'add best = "max:accuracy" (or min:loss) to [task.{task}.sweep]',
            )
        check_metric(f"[task.{task}.sweep] best", best.metric, task, known[task].metrics)


def check_metric(where: str, metric: str, task: str, metrics: Mapping[str, str]) -> None:
    """Raises UserError if a task has no such metric, or one that cannot be read."""
    if metric in metrics:
        try:
            re.compile(metrics[metric])
        except re.error as error:
            raise UserError(
                f"metric {metric} of task {task!r}",
                f"{metrics[metric]!r} is not a regular expression: {error}",
                allowed="such as 'loss: ([0-9.]+)'",
            ) from None
        return
    near = get_close_matches(metric, metrics, n=1)
    raise UserError(
        where,
        f"task {task!r} has no metric {metric!r}",
        allowed=", ".join(metrics),
        fix=f"did you mean {near[0]!r}?" if near else f'add metrics.{metric} = "REGEX" to [task.{task}]',
    )
