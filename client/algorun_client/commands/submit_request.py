"""From the words of `submit` to its request: reads the job file, the code and the data, and looks up the facts."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from algorun.common.code_commit import commit_of
from algorun.common.errors import UserError
from algorun.common.plain_text import plain
from algorun.common.sizes import size_text
from algorun_client.common import settings
from algorun_client.files import archive, inputs, scan, scratch
from algorun_client.files.scan import FoundFile, Scan
from algorun_client.request import chain, limits, make_spec, program, references
from algorun_client.request.build import build, task_address, with_long_arguments
from algorun_client.request.facts import Facts
from algorun_client.request.jobfile import JobFile
from algorun_client.request.material import CodeArchive, LocalFile, Material
from algorun_client.request.model import Request, TaskAddress
from algorun_client.request.spec import SourceKind, TaskSpec
from algorun_client.target.service_model import input_shape

from . import job_file, submit_options
from .upstreams import Reading

NO_HASH = "0" * 64  # of a file that is not read yet
LARGE_CODE = 200 * 1024 * 1024  # bytes; more is data in most cases
LARGEST_SHOWN = 3
LARGE_DATA = 2_000_000_000  # bytes that are hashed in some 10 s


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user asked for, and the files that it needs; nothing is hashed yet."""

    spec: TaskSpec
    code: tuple[FoundFile, ...]
    started: program.Started
    data: Mapping[str, Scan]
    notices: tuple[str, ...]
    commit: str = ""  # of the code, for the job's page
    reading: Reading = field(default_factory=Reading)  # what is known of tasks that it reads
    hashed: Mapping[str, Sequence[LocalFile]] | None = None  # the data, once somebody has hashed them for several jobs
    archive: CodeArchive | None = (
        None  # the code, once somebody has packed it for several jobs, without `started.added`
    )

    def of(self, spec: TaskSpec) -> Asked:
        """The same files for a task with other words."""
        names = {file.name for file in self.code}
        return replace(self, spec=spec, started=with_long_arguments(program.started(spec.program, names), spec.kind))


def read(options: argparse.Namespace, environ: Mapping[str, str], folder: Path) -> Asked:
    """Reads job file and folders. `folder`: the current one. Raises UserError."""
    flags = submit_options.layer(options, str(folder))
    file = job_file.read(options.file, folder)
    spec = make_spec.make(file, flags, options.program, folder=str(folder), environ=environ)
    spec = _relative_to_code(spec, folder) if options.program else spec
    known = known_tasks(file)
    chain.check_reading(spec, known)
    return of_spec(spec, file, Reading(known=known), environ)


def known_tasks(file: JobFile) -> dict[str, chain.SourceTask]:
    """What the tasks of a job file are to those that read them. Raises UserError."""
    return chain.sources({task: file.metrics(task) for task in file.tasks}, file.sweeps)


def of_spec(spec: TaskSpec, file: JobFile, reading: Reading, environ: Mapping[str, str]) -> Asked:
    """Looks for the files that a task needs. Raises UserError."""
    spec = replace(spec, bucket=spec.bucket or settings.BUCKET.read(environ))
    code, notices = _code(spec, file.path)
    started = with_long_arguments(program.started(spec.program, {file.name for file in code}), spec.kind)
    data = {
        each.name: scan.data(Path(each.source), each.where) for each in spec.inputs if each.kind is SourceKind.FOLDER
    }
    notices = (*notices, *(notice for found in data.values() for notice in found.notices))
    return Asked(spec, code, started, data, notices, _commit(spec, code), reading)


def _commit(spec: TaskSpec, code: Sequence[FoundFile]) -> str:
    """The commit of the code folder, if its files go up."""
    folder = Path(spec.code).resolve()
    own = [file.path for file in code if file.path.is_relative_to(folder)] if spec.code else []
    return commit_of(folder, own) if own else ""


class Maker:
    """Makes the request of any execution of a task: the same one each time, byte for byte."""

    def __init__(self, asked: Asked, facts: Facts, material: Material) -> None:
        self.asked, self.facts, self.material = asked, facts, material

    @property
    def address(self) -> TaskAddress:
        """Where the task is kept."""
        return task_address(self.asked.spec, self.facts)

    def __call__(self, number: int | None) -> Request:
        """The request of an execution; None: its number is unknown. Raises UserError."""
        request = build(self.asked.spec, self.facts, self.material, number)
        limits.check(input_shape(request.kind), request.create, request.unknown)
        return request


@contextmanager
def prepared(asked: Asked, facts: Facts) -> Iterator[Maker]:
    """Packs the code and hashes the data. What is wrong with the request is said before data is read.

    A large code archive exists until the end of the context.
    """
    asked = asked.of(references.filled(asked.spec, facts.values))
    with scratch.folder("algorun-submit-") as folder:
        code = packed(asked, folder)
        material = Material(
            started=asked.started,
            code=code,
            inputs=_sizes(asked),
            commit=asked.commit,
            notices=_with_size(asked.notices, code),
        )
        Maker(asked, facts, material)(None)
        yield Maker(asked, facts, replace(material, inputs=asked.hashed or hashed(asked)))


def check(asked: Asked, facts: Facts) -> None:
    """Raises UserError for what is wrong with the request. Packs and hashes nothing."""
    asked = asked.of(references.filled(asked.spec, facts.values))
    code = CodeArchive(sha256=NO_HASH, size=0, data=b"") if asked.code or asked.started.added else None
    Maker(asked, facts, Material(started=asked.started, code=code, inputs=_sizes(asked)))(None)


def hashed(asked: Asked) -> dict[str, Sequence[LocalFile]]:
    """The files of the local inputs. Raises UserError for one that cannot be read."""
    for name, found in asked.data.items():
        if found.size > LARGE_DATA:
            print(f"algorun: reading --in {name}: {plain(_described(found.files))}", file=sys.stderr, flush=True)
    return {name: _hashed(found, name) for name, found in asked.data.items()}


def _sizes(asked: Asked) -> dict[str, Sequence[LocalFile]]:
    return {
        name: [LocalFile(name=f.name, path=f.path, size=f.size, sha256=NO_HASH) for f in found.files]
        for name, found in asked.data.items()
    }


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
            f"{spec.code or ', '.join(spec.add)}: {_described(files)}",
            allowed=f"up to {size_text(spec.max_code)}",
            fix=f".algorunignore keeps files out, --in takes data, --max-code {-(-size // 10**9)}GB sends all of it",
        )
    return tuple(files), tuple(notices)


def _described(files: Sequence[FoundFile]) -> str:
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


def packed(asked: Asked, folder: Path) -> CodeArchive | None:
    """The code of a task; None without any. A large archive is written into `folder`. Raises UserError."""
    if not asked.code and not asked.started.added:
        return None
    if asked.archive is not None and not asked.started.added:
        return asked.archive
    if sum(file.size for file in asked.code) > LARGE_CODE:  # packing and hashing may take minutes
        print(f"algorun: packing {plain(_described(asked.code))}", file=sys.stderr, flush=True)
    made = archive.pack(asked.code, asked.started.added, folder, "--code")
    return CodeArchive(sha256=made.sha256, size=made.size, data=made.data, path=made.path, contents=made.contents)


def _with_size(notices: tuple[str, ...], code: CodeArchive | None) -> tuple[str, ...]:
    if code is None or code.size <= LARGE_CODE:
        return notices
    return (*notices, f"the code archive has {code.size >> 20} MiB; .algorunignore keeps files out, --in takes data")


def _hashed(found: Scan, name: str) -> list[LocalFile]:
    return [
        LocalFile(name=file.name, path=file.path, size=file.size, sha256=file.sha256)
        for file in inputs.hashed(found, f"--in {name}")
    ]
