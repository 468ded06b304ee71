"""The program that the ranks run: a bundled entrypoint, a script, a module or a command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass

from .usercode import is_package

TRAINING = "algorun_train"
BUNDLED = {
    "ddp": f"{TRAINING}.jobs.ddp",
    "pipeline": f"{TRAINING}.jobs.pipeline",
    "mpi-basics": f"{TRAINING}.jobs.mpi_basics",
    "measure": f"{TRAINING}.jobs.measure",
}

DEFAULT_PROGRAM = "default program"  # the source of `ddp` where nothing is named
COMMAND_LINE = "command line"  # the source of a program that `algorun run` names
DEEPEST = 2  # folders below the code folder in which a program that is not found is looked for
FIRST_LINE = 256  # bytes that the kernel reads from a script to find its interpreter

# pending: its code must be fetched or installed first.
Kind = Literal["bundled", "script", "module", "shell", "command", "pending"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A program and its arguments."""

    kind: Kind
    target: str  # a bundled name, a path or a module
    args: tuple[str, ...]
    cwd: str  # the folder in which it starts
    source: str  # the option or file that names it
    interpreter: tuple[str, ...] = ()  # for a script that the kernel cannot start by itself

    def argv(self, python: str) -> tuple[str, ...]:
        """The command line of one rank.

        Bundled programs start with `python -I`, so that a json.py or a train.py in the user's folder cannot replace
        their imports. The user's programs start without it.
        """
        match self.kind:
            case "bundled":
                head = [python, "-I", "-u", "-m", BUNDLED[self.target]]
            case "script":
                head = [python, "-u", self.target]
            case "module":
                head = [python, "-u", "-m", self.target]
            case "shell":
                head = [*self.interpreter, self._path]
            case "pending" if self.target.endswith(".py"):
                head = [python, "-u", self.target]
            case "command" | "pending":
                head = [self._path]
        return (*head, *self.args)

    @property
    def _path(self) -> str:
        """The target as a path with a slash: a name without one would be searched on PATH."""
        return self.target if self.target.startswith(("/", "./", "../")) else f"./{self.target}"


def _kind(path: Path, target: str) -> tuple[Kind, tuple[str, ...]]:
    """How a file is started, and its interpreter if the kernel would not start the file.

    AWS's toolkit makes an entry point executable and runs it through a shell: the interpreter is that of the first line
    (`#!`), or else the shell. Here the same interpreter is started directly, because the file may not be executable:
    archives lose modes, and a code folder may be read-only.
    """
    if target.endswith(".py"):
        return "script", ()
    try:
        with open(path, "rb") as file:
            start = file.read(FIRST_LINE)
    except OSError:
        return "command", ()  # a program may be executable but not readable
    named = start.startswith(b"#!")
    if os.access(path, os.X_OK) and (named or b"\0" in start):
        return "command", ()
    if named:
        # As the kernel reads it: the interpreter, and the rest of the line as one argument.
        words = start[2:].split(b"\n")[0].strip().split(None, 1)
        return "shell", tuple(map(os.fsdecode, words)) or ("/bin/sh",)
    if os.access(path, os.X_OK) or target.endswith(".sh"):
        return "shell", ("/bin/sh",)
    return "command", ()


def of_command_line(target: str, args: Sequence[str], *, module: bool, cwd: str) -> Entry:
    """The program of `algorun run TARGET ..`. `ddp` is the bundled entrypoint, `./ddp` a file. Raises UserError if there
    is no such program."""
    if module:
        return Entry("module", target, tuple(args), cwd, COMMAND_LINE)
    if target in BUNDLED:
        return _bundled(target, args, cwd, COMMAND_LINE)
    return of_file(target, args, cwd, where="program", source=COMMAND_LINE)


def _bundled(name: str, args: Sequence[str], cwd: str, source: str) -> Entry:
    from algorun.common import distributions  # a user's own program does not need it

    distributions.need(f"entrypoint {name}", TRAINING)
    return Entry("bundled", name, tuple(args), cwd, source)


def of_file(target: str, args: Sequence[str], cwd: str, *, where: str, source: str) -> Entry:
    """The program in a file; `target` is relative to `cwd`. Raises UserError, in which `where` names the option."""
    path = Path(cwd, target)
    if os.path.isdir(path):  # Path.is_dir() raises ValueError on impossible names (a zero byte)
        raise UserError(where, f"{target!r} is a folder", allowed="a .py, a .sh or an executable file")
    if not os.path.isfile(path):
        import difflib  # late: only an error needs it

        near = _namesakes(cwd, target) or difflib.get_close_matches(target, [*BUNDLED, *_programs(cwd)], n=1)
        check = "the folder (--cwd)" if source == COMMAND_LINE else "that source_dir holds it"
        raise UserError(
            where,
            f"{target!r} does not exist in {cwd}",
            allowed=f"a file, or one of {', '.join(BUNDLED)}",
            fix=f"did you mean {near[0]}?" if near else f"check the name, and {check}",
        )
    kind, interpreter = _kind(path, target)
    if kind == "command" and not os.access(path, os.X_OK):
        raise UserError(where, f"{target!r} is not executable", fix=f"chmod +x {target}")
    return Entry(kind, target, tuple(args), cwd, source, interpreter)


def _is_empty(path: Path) -> bool:
    return os.path.isfile(path) and os.path.getsize(path) == 0


def _programs(cwd: str) -> list[str]:
    try:
        return [name for name in os.listdir(cwd) if name.endswith((".py", ".sh"))]
    except OSError:
        return []


def _namesakes(cwd: str, target: str) -> list[str]:
    """The programs of the same name in folders below, or with the suffix that the name lacks, the nearest one first."""
    name = os.path.basename(target)
    found = []
    for top, folders, files in os.walk(cwd):
        below = os.path.relpath(top, cwd)
        folders[:] = [] if below.count("/") >= DEEPEST else sorted(each for each in folders if not each.startswith("."))
        found += [
            os.path.normpath(os.path.join(below, each)) for each in files if each in (name, f"{name}.py", f"{name}.sh")
        ]
    return sorted(found, key=lambda path: (path.rpartition(".")[0] != target, path.count("/"), path))[:1]


def of_job(program: str, source: str, args: Sequence[str], code: Path, cwd: str) -> Entry:
    """The program of a job: a file or module in the code folder, else a bundled entrypoint. Raises UserError.

    A file called `ddp` in the code folder comes before the bundled entrypoint. But an empty file `ddp.py` stands for the
    bundled one, since the SageMaker SDK v2 takes as entry_point only files that exist, and with torch_distributed only
    `*.py`. Without a name and without code it is the bundled `ddp`.
    """
    if not program:
        if code.is_dir() and any(name.endswith((".py", ".sh")) for name in _programs(str(code))):
            raise UserError(
                "hyperparameter sagemaker_program",
                f"is absent, but {code} holds {', '.join(sorted(_programs(str(code)))[:5])}",
                fix="name the entry point in sagemaker_program or SAGEMAKER_PROGRAM (SDK v3: entry_script)",
            )
        return _bundled("ddp", args, cwd if code.is_dir() else "/", DEFAULT_PROGRAM)
    name = program.removesuffix(".py")
    if name in BUNDLED and (_is_empty(code / program) or (name == program and not os.path.exists(code / program))):
        return _bundled(name, args, cwd if code.is_dir() else "/", source)
    plain = program.removeprefix("./")  # SDK v3 adds it
    if plain.startswith(("/", "-")) or ".." in plain.split("/") or "\0" in plain:
        raise UserError(source, f"{program!r} is not an entry point", allowed="a path inside the code folder")
    _inside(code, plain, source)
    if is_package(code, plain):
        return Entry("module", plain.removesuffix(".py").replace("/", "."), tuple(args), cwd, source)
    if os.path.isfile(code / plain):
        return of_file(plain if cwd == str(code) else str(code / plain), args, cwd, where=source, source=source)
    if _is_module(code, plain):
        return Entry("module", plain, tuple(args), cwd, source)
    return of_file(plain, args, str(code), where=source, source=source)  # raises, with similar names as the fix


def pending(program: str, source: str, args: Sequence[str], cwd: str) -> Entry:
    """The program of a job whose code must be fetched or installed first."""
    return Entry("pending", program, tuple(args), cwd, source)


def _inside(code: Path, program: str, source: str) -> None:
    """Raises UserError if a symbolic link leads the entry point out of the code folder."""
    try:
        real = os.path.realpath(code / program)
    except ValueError:  # half of a surrogate pair: no file can have this name
        return
    if not Path(real).is_relative_to(os.path.realpath(code)):
        raise UserError(source, f"{program!r} leads out of {code}", allowed="a path inside the code folder")


def _is_module(code: Path, name: str) -> bool:
    """True for `package.module` below the code folder. A path such as `src/train` is no module's name."""
    if "/" in name:
        return False
    path = code.joinpath(*name.split("."))
    return os.path.isfile(path.with_name(f"{path.name}.py")) or os.path.isfile(path / "__main__.py")
