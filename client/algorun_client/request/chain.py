"""Tasks of a job file that read each other: in which order they run, and what is wrong with that. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter

from algorun.common.errors import UserError
from algorun.job.metric_definitions import DEFINITIONS

from . import references, sweep
from .metric_goal import Goal
from .spec import TaskSpec
from .sweep import TaskSweep

SHOWN = 4  # points in an error


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTask:
    """What a job file says about a task that others may read, or about a point of a sweep."""

    table: str = ""
    points: tuple[str, ...] = ()  # of a sweep: the names of its points
    best: Goal | None = None  # which of them others read
    metrics: Mapping[str, str] = field(default_factory=dict)  # name and regular expression


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One job of a chain: a task, or a point of a sweep."""

    spec: TaskSpec
    table: str  # its table in the job file
    after: tuple[str, ...]  # the tables whose jobs have to complete first


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """All jobs, each after those that it reads."""

    nodes: tuple[Node, ...]
    sweeps: Mapping[str, TaskSweep]  # by table, of those that have one

    @property
    def parallel(self) -> dict[str, int]:
        """By table with a sweep: so many of its jobs run at most."""
        return {table: each.parallel or len(each.points) for table, each in self.sweeps.items()}

    def of_table(self, table: str) -> tuple[Node, ...]:
        """The job of a task, or those of a sweep."""
        return tuple(node for node in self.nodes if node.table == table)


def needs(spec: TaskSpec) -> dict[str, str]:
    """The tasks that a task reads, each with the option that says so. A task may read its own state. Raises UserError."""
    found: dict[str, str] = {}
    for each in spec.inputs:
        if each.task is not None and (each.task.what != "state" or each.task.task != spec.task):
            found.setdefault(each.task.task, each.where)
    for reference, where in references.found(spec).items():
        found.setdefault(reference.task, where)
    return found


def sources(metrics_of: Mapping[str, Mapping[str, str]], sweeps: Mapping[str, TaskSweep]) -> dict[str, SourceTask]:
    """What tasks, and the points of their sweeps, are to those that read them. `metrics_of`: the user's own, by task.

    Raises UserError if one has the name of another: they would be one task, with one state.
    """
    known: dict[str, SourceTask] = {}
    for task, own in metrics_of.items():
        metrics = {**{each["Name"]: each["Regex"] for each in DEFINITIONS}, **own}
        asked = sweeps.get(task)
        names = tuple(sweep.point_task(task, point) for point in asked.points) if asked else ()
        for name in names:
            if name in metrics_of or known.get(name, SourceTask(table=task)).table != task:
                raise _two_called(name, name if name in metrics_of else known[name].table, task)
            known[name] = SourceTask(table=task, metrics=metrics)
        known[task] = SourceTask(table=task, points=names, best=asked.best if asked else None, metrics=metrics)
    return known


def check_state(spec: TaskSpec, known: Mapping[str, SourceTask]) -> None:
    """Raises UserError if a task reads the state of a sweep: each point has its own."""
    for each in spec.inputs:
        points = known[each.task.task].points if each.task is not None and each.task.task in known else ()
        if points and each.task is not None and each.task.what == "state":
            raise UserError(
                each.where,
                f"task {each.task.task!r} is a sweep, and each of its points has a state of its own",
                allowed=", ".join(f"task:{point}/state" for point in points[:SHOWN]),
                fix="name a point",
            )


def check_reading(spec: TaskSpec, known: Mapping[str, SourceTask]) -> None:
    """Raises UserError if a task reads a value that the other one does not have, or a sweep without a best point."""
    check_state(spec, known)
    for reference, where in references.found(spec).items():
        if reference.task in known:
            check_metric(where, reference.metric, reference.task, known[reference.task].metrics)
    for task, where in needs(spec).items():
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


def make(
    specs: Mapping[str, TaskSpec],
    sweeps: Mapping[str, TaskSweep],
    known: Mapping[str, SourceTask],
    tables: Sequence[str],
) -> Chain:
    """The chain of these tables. What they read of other tasks has to exist already. Raises UserError."""
    reads = {task: _tables_read(specs[task], known, tables) for task in tables}
    for task in tables:
        check_reading(specs[task], known)
        for other, where in reads[task].items():
            _check_place(specs[task], specs[other], where)
        goal = sweeps[task].best if task in sweeps else None
        if goal is not None:
            check_metric(f"{sweeps[task].where} best", goal.metric, task, known[task].metrics)
    nodes = [node for task in _ordered(reads) for node in _nodes(specs[task], sweeps.get(task), tuple(reads[task]))]
    _check_names(nodes)
    return Chain(nodes=tuple(nodes), sweeps={task: sweeps[task] for task in tables if task in sweeps})


def _check_names(nodes: Sequence[Node]) -> None:
    """Raises UserError for two points of one name: they would be one task."""
    tables = {node.spec.task: node.table for node in nodes}
    if twice := [name for name, count in Counter(node.spec.task for node in nodes).items() if count > 1]:
        where = f"[task.{tables[twice[0]]}.sweep]"
        raise UserError(where, f"two points are called {twice[0]!r}", fix="change one of their values")


def _two_called(name: str, other: str, table: str) -> UserError:
    text = f"two tasks are called {name!r}: see [task.{other}] and [task.{table}]"
    return UserError(f"[task.{table}]", text, fix="rename one of the two")


def _check_place(spec: TaskSpec, other: TaskSpec, where: str) -> None:
    """Raises UserError if a task looks for what it reads where the other one does not leave it."""
    for key in ("project", "bucket", "prefix"):
        own, found = getattr(spec, key), getattr(other, key)
        if own != found:
            raise UserError(
                where,
                f"task {spec.task!r} has {key} {own or 'none'}, and task {other.task!r}, which it reads, {found or 'none'}",
                allowed=f"one {key} for tasks that read each other",
                fix=f"give {key} at the top of the job file",
            )


def _tables_read(spec: TaskSpec, known: Mapping[str, SourceTask], tables: Sequence[str]) -> dict[str, str]:
    """Those of the tables that a task reads, each with the option that says so."""
    found: dict[str, str] = {}
    for task, where in needs(spec).items():
        if task in known and known[task].table in tables:
            found.setdefault(known[task].table, where)
    return found


def _nodes(spec: TaskSpec, asked: TaskSweep | None, after: tuple[str, ...]) -> Iterator[Node]:
    if asked is None:
        yield Node(spec=spec, table=spec.task, after=after)
        return
    for point in asked.points:
        yield Node(spec=sweep.point_spec(spec, asked, point), table=spec.task, after=after)


def _ordered(reads: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Each table after those that it reads; otherwise in the order of the job file."""
    sorter = TopologicalSorter(reads)
    try:
        sorter.prepare()
    except CycleError as error:
        circle: list[str] = list(reversed(error.args[1]))  # each needs the next one
        raise UserError(
            reads[circle[0]][circle[1]],
            f"tasks wait for each other: {' needs '.join(circle)}",
            fix=f"remove one of these inputs or values, such as this one of task {circle[0]!r}",
        ) from None
    places = list(reads)
    order: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=places.index)
        order += ready
        sorter.done(*ready)
    return order
