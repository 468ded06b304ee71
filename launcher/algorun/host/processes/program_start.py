"""Why a program could not be started, in words that name what is missing: the kernel says "No such file or directory" of a script
that is there but whose interpreter is not."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from errno import EACCES, EAGAIN, ENOENT, ENOEXEC

from algorun.common.errors import UserError
from algorun.common.process_limit import cannot_start

FIRST_LINE = 256  # bytes that the kernel reads from a script to find its interpreter
# Machines of ELF files, by number (elf.h), as `uname -m` names them.
MACHINES = {3: "i686", 40: "armv7l", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
LOADER = 3  # PT_INTERP, the part of an ELF file that names its loader


def explained(argv: Sequence[str], cwd: str, number: int, filename: str, what: str = "program") -> UserError:
    """The error of a program that could not be started with `argv` in `cwd`; `number` is the system's (errno), `filename` the
    file that it names, `what` the program for a reader."""
    reason = os.strerror(number)
    if number == EAGAIN:
        return cannot_start(f"{what} {argv[0]}")
    if filename == cwd and filename != argv[0]:
        return UserError(what, f"its folder {cwd}: {reason}", fix="name a folder that exists and can be entered")
    path = _found(argv[0], cwd)
    script = _script(argv, cwd)
    if script:
        return _of_script(what, script, argv[0] if script != argv[0] else "", cwd, number)
    if number == ENOENT and not os.path.exists(path):
        return UserError(what, f"{argv[0]}: {reason}", fix="check that it exists and is executable")
    return _of_binary(what, argv[0], path, number)


def _found(program: str, cwd: str) -> str:
    return os.path.join(cwd, program) if "/" in program else shutil.which(program) or program


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(4096)
    except OSError:
        return b""


def _script(argv: Sequence[str], cwd: str) -> str:
    """The script that is to be started: the program itself, or the argument of the interpreter that its first line names."""
    for word in argv[:3]:
        line = _first_line(_found(word, cwd)) if "/" in word else ""
        if line and (word == argv[0] or argv[0] in line.split()):
            return word
    return ""


def _first_line(path: str) -> str:
    """What follows `#!` in the first line of a script, with its line end but for the newline; "" of another file."""
    head = _head(path)[:FIRST_LINE]
    return os.fsdecode(head[2:].split(b"\n")[0]) if head.startswith(b"#!") else ""


def _of_script(what: str, script: str, interpreter: str, cwd: str, number: int) -> UserError:
    """`interpreter` is the one that was started, "" where the kernel had to find it."""
    line = _first_line(_found(script, cwd))
    named = interpreter or (line.split() or [""])[0]
    if line.endswith("\r"):
        return UserError(
            what, f"{script} has Windows line endings (CRLF): its first line names the interpreter {named + chr(13)!r}",
            fix=f"save it with Unix line endings: sed -i 's/\\r$//' {shlex.quote(script)}",
        )  # fmt: skip
    if number == ENOENT and not os.path.exists(named):
        near = shutil.which(os.path.basename(named))
        return UserError(
            what, f"{script}: its first line (#!) names the interpreter {named}, which does not exist",
            fix=f"#!{near}" if near else "name one that this image has, or install it",
        )  # fmt: skip
    if number == EACCES and not os.access(named, os.X_OK):
        return UserError(what, f"{script}: its interpreter {named} is not executable", fix=f"chmod +x {named}")
    return UserError(what, f"{script}: {os.strerror(number)}", fix="check that it exists and is executable")


def _of_binary(what: str, program: str, path: str, number: int) -> UserError:
    machine, loader = _elf(path)
    ours = os.uname().machine
    if number == ENOEXEC and machine and machine != ours:
        return UserError(
            what, f"{program} is built for {machine}, this host is {ours}", fix=f"build it for {ours}, or use other instances"
        )  # fmt: skip
    if number == ENOENT and loader and not os.path.exists(loader):
        return UserError(
            what, f"{program} needs the loader {loader}, which does not exist",
            fix="build it in this image, or install the C library that it was built with",
        )  # fmt: skip
    if number == EACCES and os.access(path, os.F_OK) and os.access(path, os.X_OK):
        return UserError(
            what, f"{program}: {os.strerror(number)}", fix="check that its disk is not mounted with noexec"
        )
    if number == ENOEXEC and not _head(path):
        return UserError(what, f"{program} is empty", fix="check what was uploaded")
    fix = "check that it exists and is executable" if number in (ENOENT, EACCES, ENOEXEC) else ""
    return UserError(what, f"{program}: {os.strerror(number)}", fix=fix)


def _elf(path: str) -> tuple[str, str]:
    """The machine that an ELF file of 64 bits is built for, and its loader; "" where it is none."""
    head = _head(path)
    if not head.startswith(b"\x7fELF") or len(head) < 64:
        return "", ""
    order = "little" if head[5] == 1 else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(head[at : at + size], order)  # type: ignore[arg-type]  # a literal, by the line above

    machine = MACHINES.get(number(18, 2), f"another machine (ELF {number(18, 2)})")
    if head[4] != 2:
        return machine, ""
    begin, size, count = number(32, 8), number(54, 2), number(56, 2)
    for at in range(begin, begin + size * min(count, 64), size or 1):
        if number(at, 4) == LOADER:
            offset, length = number(at + 8, 8), number(at + 32, 8)
            return machine, os.fsdecode(head[offset : offset + length].rstrip(b"\0"))
    return machine, ""
