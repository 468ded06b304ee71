"""The first stage of `submit`: reads the words of the command line, the job file, and which files the task needs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from algorun.common.code_commit import commit_of
from algorun.common.errors import UserError
from algorun.common.sizes import size_text
from algorun_client.common import settings
from algorun_client.files import scan
from algorun_client.files.scan import FileScan, FoundFile

from . import job_file, program, regions, submit_options
from .job_file import JobFile
from .material import CodeArchive, LocalFile
from .source_tasks import Reading, check_reading, known_tasks
from .spec import SourceKind, TaskSpec

LARGEST_SHOWN = 3


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
    hashed: Mapping[str, Sequence[LocalFile]] | None = None  # the data, once somebody has hashed them for several jobs
    archive: CodeArchive | None = (
        None  # the code, once somebody has packed it for several jobs, without `started.added`
    )

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
    return of_spec(spec, file, Reading(known=known), environ)


def of_spec(spec: TaskSpec, file: JobFile, reading: Reading, environ: Mapping[str, str]) -> SubmitOrder:
    """Looks for the files that a task needs. Raises UserError."""
    spec = replace(spec, bucket=spec.bucket or settings.BUCKET.read(environ))
    code, notices = _code(spec, file.path)
    started = program.with_long_arguments(program.started(spec.program, {file.name for file in code}), spec.kind)
    data = {
        each.name: scan.data(Path(each.source), each.where) for each in spec.inputs if each.kind is SourceKind.FOLDER
    }
    notices = (*notices, *(notice for found in data.values() for notice in found.notices))
    return SubmitOrder(spec, code, started, data, notices, _commit(spec, code), reading)


def _commit(spec: TaskSpec, code: Sequence[FoundFile]) -> str:
    """The commit of the code folder, if its files go up."""
    folder = Path(spec.code).resolve()
    own = [file.path for file in code if file.path.is_relative_to(folder)] if spec.code else []
    return commit_of(folder, own) if own else ""


def _relative_to_code(spec: TaskSpec, folder: Path) -> TaskSpec:
    """A program of the command line counts from the code folder, or from the current one if it is found there only."""
    name, code = spec.program.name, spec.code
    if spec.program.module or not code or not name or (Path(code) / name).exists() or not (folder / name).is_file():
        return spec
    path = Path(os.path.normpath(folder / name))
    if not path.is_relative_to(code):
        raise UserError("PROGRAM", f"{name!r} lies outside of the code folder {code}", fix=f"--code {path.parent}")
    return replace(spec, program=replace(spec.program, name=str(path.relative_to(code))))


def _code(spec: TaskSpec, job_file: str) -> tuple[tuple[FoundFile, ...], tuple[str, ...]]:
    """The files of the code folder and of --add, and what was left out."""
    files: list[FoundFile] = []
    notices: list[str] = []
    if spec.code and (spec.program.shell or program.needs_folder(spec.program, _present(spec))):
        folder = Path(spec.code).resolve()
        if folder in (Path.home().resolve(), Path("/")):
            raise UserError(
                "--code", f"{folder} is more than a program", fix="--code DIR, the folder of the program alone"
            )
        at_home = [Path(each.source) for each in spec.inputs if each.kind is SourceKind.FOLDER]
        if job_file:  # what is written there about other tasks changes no code
            at_home.append(Path(job_file))
        found = scan.code(folder, "--code", without=at_home)
        files, notices = list(found.files), list(found.notices)
    names = {file.name.split("/", 1)[0] for file in files}
    for path in map(Path, spec.add):
        if path.name in names:
            raise UserError("--add", f"{path}: the code has {path.name!r} already", fix="rename one of the two")
        names.add(path.name)
        files += _added(path, notices)
    size = sum(file.size for file in files)
    if size > spec.max_code:
        raise UserError(
            "--code",
            f"{spec.code or ', '.join(spec.add)}: {described(files)}",
            allowed=f"up to {size_text(spec.max_code)}",
            fix=f".algorunignore keeps files out, --in takes data, --max-code {-(-size // 10**9)}GB sends all of it",
        )
    return tuple(files), tuple(notices)


def described(files: Sequence[FoundFile]) -> str:
    """`6.1 GB in 13 files, the largest: data/a.bin (6.0 GB), b.bin (84.0 MB)`."""
    largest = sorted(files, key=lambda file: file.size, reverse=True)[:LARGEST_SHOWN]
    named = ", ".join(f"{file.name} ({size_text(file.size)})" for file in largest)
    count = f"{len(files)} file{'s'[: len(files) != 1]}"
    return f"{size_text(sum(file.size for file in files))} in {count}, the largest: {named}"


def _present(spec: TaskSpec) -> tuple[str, ...]:
    """The program, if the code folder has a file of its name: `ddp` is then that file."""
    return (spec.program.name,) if (Path(spec.code) / spec.program.name).is_file() else ()


def _added(path: Path, notices: list[str]) -> Sequence[FoundFile]:
    if path.is_file():
        return scan.data(path, "--add").files
    found = scan.code(path, "--add")
    notices += [f"{path.name}/{notice}" for notice in found.notices]
    return [replace(file, name=f"{path.name}/{file.name}") for file in found.files]
