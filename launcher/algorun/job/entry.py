"""What the ranks run: a bundled entrypoint, a script, a module or a command."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from algorun.errors import UserError

from .usercode import is_package

BUNDLED = {
    "ddp": "algorun_train.jobs.ddp",
    "pipeline": "algorun_train.jobs.pipeline",
    "mpi-basics": "algorun_train.jobs.mpi_basics",
}

FIRST_LINE = 256  # bytes: what the kernel reads of a program to find its interpreter

# pending: code that must be fetched or installed first.
Kind = Literal["bundled", "script", "module", "shell", "command", "pending"]


@dataclass(frozen=True, slots=True)
class Entry:
    """The user's program. `target` is a bundled name, a path or a module; `cwd` the folder that it starts in."""

    kind: Kind
    target: str
    args: tuple[str, ...]
    cwd: str
    source: str
    interpreter: tuple[str, ...] = ()  # of a script without execute permission

    def argv(self, python: str) -> tuple[str, ...]:
        """The command line of one rank.

        Our own programs start isolated (`-I`), so that a user's folder with a json.py or a train.py cannot shadow
        what they import; the user's start plainly.
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
        """The target as a path: without a slash it would be looked for on PATH."""
        return self.target if self.target.startswith(("/", "./", "../")) else f"./{self.target}"


def _kind(path: Path, target: str) -> tuple[Kind, tuple[str, ...]]:
    """How a file is started, and by which interpreter where the kernel would not start it.

    AWS's toolkit makes an entry point executable and gives it to a shell: its first line names the interpreter, and
    without such a line the shell runs it itself. Archives lose modes, and code folders may be read-only, so here the
    same interpreter is called by name.
    """
    if target.endswith(".py"):
        return "script", ()
    try:
        with open(path, "rb") as file:
            start = file.read(FIRST_LINE)
    except OSError:
        return "command", ()  # a program may be executable and yet not readable
    named = start.startswith(b"#!")
    if os.access(path, os.X_OK) and (named or b"\0" in start):
        return "command", ()
    if named:
        # As the kernel reads it: the interpreter, and all that follows as one argument.
        words = start[2:].split(b"\n")[0].strip().split(None, 1)
        return "shell", tuple(map(os.fsdecode, words)) or ("/bin/sh",)
    if os.access(path, os.X_OK) or target.endswith(".sh"):
        return "shell", ("/bin/sh",)
    return "command", ()


def of_command_line(target: str, args: Sequence[str], *, module: bool, cwd: str) -> Entry:
    """`algorun run TARGET ..`: a bundled name wins; `./ddp` is a file. Raises UserError where nothing is there."""
    source = "command line"
    if module:
        return Entry("module", target, tuple(args), cwd, source)
    if target in BUNDLED:
        return Entry("bundled", target, tuple(args), cwd, source)
    return of_file(target, args, cwd, where="program", source=source)


def of_file(target: str, args: Sequence[str], cwd: str, *, where: str, source: str) -> Entry:
    """A program file, relative to `cwd`."""
    path = Path(cwd, target)
    if os.path.isdir(path):  # Path's own raise on names that no file can have
        raise UserError(where, f"{target!r} is a folder", allowed="a .py, a .sh or an executable file")
    if not os.path.isfile(path):
        near = difflib.get_close_matches(target, [*BUNDLED, *_programs(cwd)], n=1)
        raise UserError(
            where,
            f"{target!r} does not exist in {cwd}",
            allowed=f"a file, or one of {', '.join(BUNDLED)}",
            fix=f"did you mean {near[0]}?" if near else "",
        )
    kind, interpreter = _kind(path, target)
    if kind == "command" and not os.access(path, os.X_OK):
        raise UserError(where, f"{target!r} is not executable", fix=f"chmod +x {target}")
    return Entry(kind, target, tuple(args), cwd, source, interpreter)


def _programs(cwd: str) -> list[str]:
    try:
        return [name for name in os.listdir(cwd) if name.endswith((".py", ".sh"))]
    except OSError:
        return []


def of_job(program: str, source: str, args: Sequence[str], code: Path, cwd: str) -> Entry:
    """The job's own program: a file or module in the code folder, else a bundled name; without a name the bundled ddp.

    A file called `ddp` in the code folder wins over the bundled one: the user's code is meant where there is any.
    """
    if not program:
        if code.is_dir() and any(name.endswith((".py", ".sh")) for name in _programs(str(code))):
            raise UserError(
                "hyperparameter sagemaker_program",
                f"is absent, but {code} holds {', '.join(sorted(_programs(str(code)))[:5])}",
                fix="name the entry point in sagemaker_program or SAGEMAKER_PROGRAM (SDK v3: entry_script)",
            )
        return Entry("bundled", "ddp", tuple(args), cwd if code.is_dir() else "/", "default program")
    if program in BUNDLED and not os.path.exists(code / program):
        return Entry("bundled", program, tuple(args), cwd if code.is_dir() else "/", source)
    plain = program.removeprefix("./")  # SDK v3 writes it so
    if plain.startswith(("/", "-")) or ".." in plain.split("/") or "\0" in plain:
        raise UserError(source, f"{program!r} is no entry point", allowed="a path inside the code folder")
    _inside(code, plain, source)
    if is_package(code, plain):
        return Entry("module", plain.removesuffix(".py").replace("/", "."), tuple(args), cwd, source)
    if os.path.isfile(code / plain):
        return of_file(plain if cwd == str(code) else str(code / plain), args, cwd, where=source, source=source)
    if _is_module(code, plain):
        return Entry("module", plain, tuple(args), cwd, source)
    return of_file(plain, args, str(code), where=source, source=source)  # says what is there instead


def pending(program: str, source: str, args: Sequence[str], cwd: str) -> Entry:
    """The job's own program before its code is here."""
    return Entry("pending", program, tuple(args), cwd, source)


def _inside(code: Path, program: str, source: str) -> None:
    """A link must not lead the entry point out of the code folder."""
    try:
        real = os.path.realpath(code / program)
    except ValueError:  # half of a surrogate pair: no file is called so
        return
    if not Path(real).is_relative_to(os.path.realpath(code)):
        raise UserError(source, f"{program!r} leads out of {code}", allowed="a path inside the code folder")


def _is_module(code: Path, name: str) -> bool:
    """True for `package.module` below the code folder."""
    path = code.joinpath(*name.split("."))
    return os.path.isfile(path.with_name(f"{path.name}.py")) or os.path.isfile(path / "__main__.py")
