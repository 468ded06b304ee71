"""The first stage of `submit`: reads the words of the command line, the job file, and which files the task needs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from algorun.common.code_commit import commit_of
from algorun.common.errors import UserError
from algorun.job.entry import BUNDLED
from algorun_client.files import task_files
from algorun_client.files.archive import Archive
from algorun_client.files.inputs import HashedFile
from algorun_client.files.scan import FileScan, FoundFile

from . import job_file, program, regions, submit_options
from .job_file import JobFile
from .source_tasks import Reading, check_reading, known_tasks
from .spec import SourceKind, TaskSpec


@dataclass(frozen=True, slots=True)
class SubmitOrder:
    """What the user asked for, and the files that it needs; nothing is hashed yet."""

    spec: TaskSpec
    code: tuple[FoundFile, ...]
    started: program.Started
    data: Mapping[str, FileScan]
    notices: tuple[str, ...]
    commit: str = ""  # of the code, for the job's page
    reading: Reading = field(default_factory=Reading)  # what is known of tasks that it reads
    hashed: Mapping[str, Sequence[HashedFile]] | None = None  # the data, once somebody has hashed them for several jobs
    archive: Archive | None = None  # the code, once somebody has packed it for several jobs, without `started.added`

    def of(self, spec: TaskSpec) -> SubmitOrder:
        """The same files for a task with other words."""
        names = {file.name for file in self.code}
        return replace(
            self, spec=spec, started=program.with_long_arguments(program.started(spec.program, names), spec.kind)
        )


def read_order(options: argparse.Namespace, environ: Mapping[str, str], folder: Path) -> SubmitOrder:
    """Reads job file and folders. `folder`: the current one. Raises UserError."""
    flags = submit_options.layer(options, str(folder))
    file = job_file.read_job_file(options.file, folder)
    spec = regions.make(file, flags, options.program, folder=str(folder), environ=environ)
    spec = _relative_to_code(spec, folder) if options.program else spec
    spec = replace(spec, elsewhere=tuple(replace(each, program=spec.program) for each in spec.elsewhere))
    known = known_tasks(file)
    check_reading(spec, known)
    return of_spec(spec, file, Reading(known=known))


def of_spec(spec: TaskSpec, file: JobFile, reading: Reading) -> SubmitOrder:
    """Looks for the files that a task needs. Raises UserError."""
    asked, folder = spec.program, Path(spec.code).resolve()
    needs_no_folder = asked.name in BUNDLED and not asked.module and not (Path(spec.code) / asked.name).is_file()
    found = task_files.find(
        "" if needs_no_folder else spec.code,
        spec.add,
        {each.name: (each.where, Path(each.source)) for each in spec.inputs if each.kind is SourceKind.FOLDER},
        job_file=file.path,
        max_code=spec.max_code,
    )
    started = program.with_long_arguments(program.started(asked, {file.name for file in found.code}), spec.kind)
    own = [file.path for file in found.code if file.path.is_relative_to(folder)] if spec.code else []
    commit = commit_of(folder, own) if own else ""
    return SubmitOrder(spec, found.code, started, found.data, found.notices, commit, reading)


def _relative_to_code(spec: TaskSpec, folder: Path) -> TaskSpec:
    """A program of the command line counts from the code folder, or from the current one if it is found there only."""
    name, code = spec.program.name, spec.code
    if spec.program.module or not code or not name or (Path(code) / name).exists() or not (folder / name).is_file():
        return spec
    path = Path(os.path.normpath(folder / name))
    if not path.is_relative_to(code):
        raise UserError("PROGRAM", f"{name!r} lies outside of the code folder {code}", fix=f"--code {path.parent}")
    return replace(spec, program=replace(spec.program, name=str(path.relative_to(code))))
