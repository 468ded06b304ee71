"""Tasks of a job file that read each other: in which order they run, and what is wrong with that. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from algorun.common.errors import UserError
from algorun_client.submit.read import sweep
from algorun_client.submit.read.source_tasks import SourceTask, check_metric, check_reading, needs
from algorun_client.submit.read.spec import TaskSpec
from algorun_client.submit.read.sweep import TaskSweep


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
        """For each table with a sweep, the most of its jobs that may run at the same time."""
        return {table: each.parallel or len(each.points) for table, each in self.sweeps.items()}

    def of_table(self, table: str) -> tuple[Node, ...]:
        """The job of a task, or those of a sweep."""
        return tuple(node for node in self.nodes if node.table == table)


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
