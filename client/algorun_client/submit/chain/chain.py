"""Tasks of a job file that read each other: in which order they run, and what is wrong with that. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter

from algorun.common.errors import UserError
from algorun_client.submit.read import sweep, tune
from algorun_client.submit.read.source_tasks import SourceTask, check_metric, check_reading, needs
from algorun_client.submit.read.spec import TaskSpec
from algorun_client.submit.read.sweep import TaskSweep
from algorun_client.submit.read.tune import TaskTune


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One job of a chain: a task, or a point. A tuning has a node too, which has no job and runs while its points run."""

    spec: TaskSpec
    table: str  # its table in the job file
    after: tuple[str, ...]  # the tables whose jobs have to complete first
    tune: TaskTune | None = None  # of the node that stands for a tuning
    chosen: int = 0  # of a point of a tuning: its number. What reads the table does not wait for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """All jobs, each after those that it reads. The points of a sweep are all there; those of a tuning come one by one."""

    nodes: tuple[Node, ...]
    sweeps: Mapping[str, TaskSweep]  # by table, of those that have one
    tunes: Mapping[str, TaskTune] = field(default_factory=dict)  # by table, of those that have one

    @property
    def parallel(self) -> dict[str, int]:
        """For each table with several points, the most of its jobs that may run at the same time."""
        fixed = {table: each.parallel or len(each.points) for table, each in self.sweeps.items()}
        return fixed | {table: each.parallel for table, each in self.tunes.items()}

    @property
    def jobs(self) -> int:
        """How many jobs it has; of a tuning all that it may have."""
        fixed = sum(not node.chosen and node.tune is None for node in self.nodes)
        return fixed + sum(each.points for each in self.tunes.values())

    def of_table(self, table: str) -> tuple[Node, ...]:
        """The nodes that a reader of a table waits for: its job, the points of its sweep, or its tuning."""
        return tuple(node for node in self.nodes if node.table == table and not node.chosen)

    def jobs_of(self, table: str) -> tuple[Node, ...]:
        """The job of a task, those of a sweep, or those that a tuning has chosen so far."""
        return tuple(node for node in self.nodes if node.table == table and node.tune is None)

    def with_point(self, table: str, number: int, parameters: Mapping[str, str]) -> tuple[Chain, Node]:
        """The chain with one more point of a tuning, behind the others, and the node of the point."""
        at = next(at for at, node in enumerate(self.nodes) if node.table == table)
        end = next((n for n in range(at, len(self.nodes)) if self.nodes[n].table != table), len(self.nodes))
        spec = tune.point_spec(self.nodes[at].spec, self.tunes[table], parameters)
        made = Node(spec=spec, table=table, after=(), chosen=number)
        return replace(self, nodes=(*self.nodes[:end], made, *self.nodes[end:])), made


def make(
    specs: Mapping[str, TaskSpec],
    sweeps: Mapping[str, TaskSweep],
    known: Mapping[str, SourceTask],
    tables: Sequence[str],
    tunes: Mapping[str, TaskTune] | None = None,
) -> Chain:
    """The chain of these tables. What they read of other tasks has to exist already. Raises UserError."""
    tunes = tunes or {}
    reads = {task: _tables_read(specs[task], known, tables) for task in tables}
    for task in tables:
        check_reading(specs[task], known)
        for other, where in reads[task].items():
            _check_place(specs[task], specs[other], where)
        goal = sweeps[task].best if task in sweeps else None
        if goal is not None:
            check_metric(f"{sweeps[task].where} best", goal.metric, task, known[task].metrics)
        if task in tunes:
            check_metric(f"{tunes[task].where} goal", tunes[task].goal.metric, task, known[task].metrics)
            tune.check_space(specs[task], tunes[task])
            _check_one_job(specs[task], tunes[task])
    nodes: list[Node] = []
    for task in _ordered(reads):
        nodes += _nodes(specs[task], sweeps.get(task), tunes.get(task), tuple(reads[task]))
    _check_names(nodes)
    return Chain(
        nodes=tuple(nodes),
        sweeps={task: sweeps[task] for task in tables if task in sweeps},
        tunes={task: tunes[task] for task in tables if task in tunes},
    )


def _check_one_job(spec: TaskSpec, asked: TaskTune) -> None:
    """Raises UserError for a task whose points could become several jobs: a tuning counts one job for each."""
    if spec.resources.is_series:
        raise UserError(
            asked.where,
            f"task {spec.task!r} has until_done or several instance types, and a point of a tuning has one job",
            fix="drop until_done, and name one instance type",
        )


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


def _nodes(spec: TaskSpec, asked: TaskSweep | None, tuned: TaskTune | None, after: tuple[str, ...]) -> Iterator[Node]:
    if asked is None:
        yield Node(spec=spec, table=spec.task, after=after, tune=tuned)
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
