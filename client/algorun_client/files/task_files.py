"""The files of a task: its code folder, what is added to that, and the folders and files of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from algorun.common.errors import UserError
from algorun.common.sizes import size_text

from . import scan
from .scan import FileScan, FoundFile

LARGEST_SHOWN = 3


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """What goes up for a task; nothing is hashed yet."""

    code: tuple[FoundFile, ...]
    data: Mapping[str, FileScan]  # by input
    notices: tuple[str, ...]  # what was left out although no rule names it


def find(
    folder: str, add: Sequence[str], inputs: Mapping[str, tuple[str, Path]], *, job_file: str, max_code: int
) -> TaskFiles:
    """The files of a task. Raises UserError for a folder that cannot go up, and for code of more than `max_code` bytes.

    `folder`: of the code, "" for none. `add`: files and folders beside it. `inputs`: by name, the option that asks for it and
    where it lies. `job_file`: "" for none. Code has neither inputs nor the job file, where other tasks stand too.
    """
    files: list[FoundFile] = []
    notices: list[str] = []
    if folder:
        root = Path(folder).resolve()
        if root in (Path.home().resolve(), Path("/")):
            raise UserError(
                "--code", f"{root} is more than a program", fix="--code DIR, the folder of the program alone"
            )
        without = [path for _, path in inputs.values()]
        found = scan.code(root, "--code", without=[*without, Path(job_file)] if job_file else without)
        files, notices = list(found.files), list(found.notices)
    names = {file.name.split("/", 1)[0] for file in files}
    for path in map(Path, add):
        if path.name in names:
            raise UserError("--add", f"{path}: the code has {path.name!r} already", fix="rename one of the two")
        names.add(path.name)
        if path.is_file():
            files += scan.data(path, "--add").files
            continue
        found = scan.code(path, "--add")
        notices += [f"{path.name}/{notice}" for notice in found.notices]
        files += [replace(file, name=f"{path.name}/{file.name}") for file in found.files]
    size = sum(file.size for file in files)
    if size > max_code:
        raise UserError(
            "--code",
            f"{folder or ', '.join(add)}: {described(files)}",
            allowed=f"up to {size_text(max_code)}",
            fix=f".algorunignore keeps files out, --in takes data, --max-code {-(-size // 10**9)}GB sends all of it",
        )
    data = {name: scan.data(path, where) for name, (where, path) in inputs.items()}
    return TaskFiles(tuple(files), data, (*notices, *(notice for found in data.values() for notice in found.notices)))


def described(files: Sequence[FoundFile]) -> str:
    """`6.1 GB in 13 files, the largest: data/a.bin (6.0 GB), b.bin (84.0 MB)`."""
    largest = sorted(files, key=lambda file: file.size, reverse=True)[:LARGEST_SHOWN]
    named = ", ".join(f"{file.name} ({size_text(file.size)})" for file in largest)
    count = f"{len(files)} file{'s'[: len(files) != 1]}"
    return f"{size_text(sum(file.size for file in files))} in {count}, the largest: {named}"
