"""Programs that run on a terminal of their own, as wide as a test wants it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROWS = 24
LONGEST_S = 60.0
STEERING = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
PIECE = re.compile(r"\x1b\[([0-9;?]*)([@-~])|([^\x1b]+)")


@dataclass(frozen=True, slots=True)
class Shown:
    """What a terminal got. `raw` has the commands to the terminal."""

    code: int
    columns: int
    raw: str

    @property
    def lines(self) -> list[str]:
        """All lines at the end, those that have scrolled away too: without what was erased, and folded as a terminal folds."""
        rows, row, column = [""], 0, 0
        for argument, command, text in PIECE.findall(self.raw):
            if command == "A":
                row -= int(argument or 1)
            elif command == "J":
                rows[row:] = [rows[row][:column]]
            elif command == "K":
                rows[row] = rows[row][:column]
            for sign in text:
                if sign == "\r":
                    column = 0
                    continue
                if sign == "\n" or column == self.columns:
                    row, column = row + 1, column if sign == "\n" else 0
                    rows += [""] * (row + 1 - len(rows))
                if sign != "\n":
                    rows[row] = rows[row][:column].ljust(column) + sign + rows[row][column + 1 :]
                    column += 1
        return "\n".join(map(str.rstrip, rows)).rstrip("\n").split("\n")


def on_terminal(
    argv: Sequence[object],
    columns: int,
    environ: Mapping[str, str],
    folder: Path,
    *,
    stderr: int | None = None,
    seen: Callable[[bytes, subprocess.Popen[bytes]], None] = lambda _, __: None,
) -> Shown:
    """Runs a program whose stdout is a terminal, to its end, or kills it after LONGEST_S. `stderr`: a file instead of the terminal.

    `seen` is called with all that the terminal has got so far, and the process.
    """
    env = {name: value for name, value in environ.items() if name not in STEERING or os.environ.get(name) != value}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    process = subprocess.Popen(
        list(map(str, argv)),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs if stderr is None else stderr,
        env={"TERM": "xterm", **env},
        cwd=folder,
    )
    os.close(theirs)
    found, deadline = b"", time.monotonic() + LONGEST_S
    with contextlib.suppress(OSError):  # EIO: the last of them has closed it
        while select.select([ours], [], [], max(0.0, deadline - time.monotonic()))[0] and (
            data := os.read(ours, 65536)
        ):
            found += data
            seen(found, process)
    os.close(ours)
    if time.monotonic() > deadline:
        process.kill()
    return Shown(process.wait(), columns, found.decode("utf-8", "replace"))
