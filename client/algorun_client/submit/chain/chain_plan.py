"""The chain of `submit --all`: which jobs, of which files, checked as far as that is possible before the first one runs."""

from __future__ import annotations

import argparse
import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from algorun.common.errors import UserError
from algorun_client.common.refusals import Unanswered
from algorun_client.files.archive import Archive
from algorun_client.files.scan import FoundFile
from algorun_client.submit.assemble import prepare
from algorun_client.submit.read import job_file, regions, submit_options, tune, values
from algorun_client.submit.read.job_file import JobFile
from algorun_client.submit.read.layers import Given, Layer
from algorun_client.submit.read.read import SubmitOrder, of_spec
from algorun_client.submit.read.source_tasks import Reading, known_tasks, needs
from algorun_client.submit.read.spec import TaskSpec

from . import chain
from .chain import Chain, Node

# Options that name or describe one task. The others hold for all tasks of a chain.
OF_ONE_TASK = {
    **{key: f"--{key}" for key in ("task", "kind", "shell", "code", "cwd", "in", "out")},
    "module": "-m",
    "add": "--add",
    "metrics": "--metric",
    "hyperparameters": "--hyperparameter",
}


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """All jobs of a chain, and the files that they need by table of the job file."""

    chain: Chain
    asked: Mapping[str, SubmitOrder]

    def of(self, node: Node) -> SubmitOrder:
        """What is asked for by one job."""
        return self.asked[node.table].of(node.spec)


def read_chain(
    options: argparse.Namespace, environ: Mapping[str, str], folder: Path, tables: Sequence[str] | None
) -> ChainPlan:
    """Reads job file and folders. `tables`: these tasks and all that they read; None: the swept task of --task alone.

    Raises UserError.
    """
    file, flags = job_file.read_job_file(options.file, folder), submit_options.layer(options, str(folder))
    known = known_tasks(file)
    specs: dict[str, TaskSpec] = {}
    left = _swept(file, flags) if tables is None else _wanted(file, flags, tables)
    while left:
        task = left.pop()
        if task not in specs:
            specs[task] = _spec(file, flags, task, str(folder), environ)
            read_by_it = [] if tables is None else needs(specs[task])
            left += [known[other].table for other in read_by_it if other in known]
    chosen = [task for task in file.tasks if task in specs]
    made = chain.make(specs, file.sweeps, known, chosen, file.tunes)
    later = tuple(name for name, each in known.items() if each.table in chosen)
    reading = Reading(known=known, later=later)
    asked = {}
    for task in dict.fromkeys(node.table for node in made.nodes):
        with naming(task):
            asked[task] = of_spec(specs[task], file, reading)
    return ChainPlan(made, asked)


def specs_of(plan: ChainPlan, table: str) -> list[TaskSpec]:
    """The jobs of a table whose requests can be checked before the first one runs: of a tuning those at the ends of its space."""
    if table in plan.chain.tunes:
        return list(tune.check_space(plan.asked[table].spec, plan.chain.tunes[table]))
    return [node.spec for node in plan.chain.of_table(table)]


@contextlib.contextmanager
def naming(task: str) -> Iterator[None]:
    """An error that does not say which task it is about says so."""
    try:
        yield
    except Unanswered:
        raise
    except UserError as error:
        if f"task {task!r}" in error.where or f"[task.{task}]" in error.where:
            raise
        where = f"task {task!r}, {error.where}"
        raise UserError(where, error.what, allowed=error.allowed, fix=error.fix, code=error.code) from None


def is_sweep(options: argparse.Namespace, folder: Path) -> bool:
    """True if `submit` without --all means a task of the job file that has a sweep or is tuned."""
    if options.program or options.shell or options.module:
        return False
    file = job_file.read_job_file(options.file, folder)
    task = options.task or (next(iter(file.tasks)) if len(file.tasks) == 1 else "")
    return task in file.sweeps or task in file.tunes


def snapshot(plan: ChainPlan, folder: Path) -> ChainPlan:
    """The plan for the time when jobs are created one after the other: what a job reads is then looked up.

    All code is copied to `folder`, so that what is edited while jobs run changes none of them. It is packed, and data are
    hashed, once for all points of a sweep: a file that changes later is noticed when it is uploaded. Raises UserError.
    """
    copies: dict[Path, Path] = {}
    archives: dict[tuple[FoundFile, ...], Archive | None] = {}
    asked = {}
    for task, each in plan.asked.items():
        code = tuple(_copied(file, copies, folder) for file in each.code)
        if code not in archives:  # refuses a file that holds a key
            aside = folder / f"archive-{len(archives)}"
            aside.mkdir()
            alone = replace(each, code=code, started=replace(each.started, added={}))
            archives[code] = prepare.packed(alone, aside)
        reading = replace(each.reading, later=())
        asked[task] = replace(each, code=code, archive=archives[code], hashed=prepare.hashed(each), reading=reading)
    return ChainPlan(plan.chain, asked)


def _copied(file: FoundFile, copies: dict[Path, Path], folder: Path) -> FoundFile:
    if file.link:
        return file
    if file.path not in copies:
        copies[file.path] = folder / str(len(copies))
        try:
            shutil.copyfile(file.path, copies[file.path])
        except OSError as error:
            raise UserError("--code", f"{file.path}: {error.strerror}", fix="make it readable") from None
    return replace(file, path=copies[file.path])


def _wanted(file: JobFile, flags: Layer, tables: Sequence[str]) -> list[str]:
    for key, option in OF_ONE_TASK.items():
        if key in flags.single or key in flags.tables:
            raise UserError(
                option, "describes one task, and --all takes tasks as the job file has them", fix="drop it, or --all"
            )
    if not file.tasks:
        raise UserError(
            "--all", f"{file.name} has no task", fix="add a table [task.NAME], or name a PROGRAM without --all"
        )
    for word in tables:
        if word.startswith("-"):
            raise UserError(
                "--all", f"{word!r} is no task", allowed=", ".join(file.tasks), fix="put options before the tasks"
            )
    return [values.one_of("--all", task, tuple(file.tasks)) for task in tables] or list(file.tasks)


def _swept(file: JobFile, flags: Layer) -> list[str]:
    """The one task that `submit` without --all means."""
    return [str(flags.single["task"].raw)] if "task" in flags.single else list(file.tasks)


def _spec(file: JobFile, flags: Layer, task: str, folder: str, environ: Mapping[str, str]) -> TaskSpec:
    single = {**flags.single, "task": Given("--task", task, folder)}
    spec = regions.make(file, Layer(single, flags.tables), (), folder=folder, environ=environ)
    if spec.elsewhere:
        raise UserError(
            "--region",
            f"{', '.join(each.region for each in (spec, *spec.elsewhere))}: several regions are for one task",
            fix="--region NAME, one region, with --all, sweeps and tunings",
        )
    return spec
