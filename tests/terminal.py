"""Programs that run on a terminal of their own, as wide as a test wants it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROWS = 24
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
OF_A_TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


@dataclass(frozen=True, slots=True)
class Shown:
    """What a terminal got. `raw` has the commands to the terminal; `lines` are without them."""

    code: int
    raw: str

    @property
    def lines(self) -> list[str]:
        """The lines, as they stood last: what was erased again is not among them."""
        rows = re.sub(r"\r\x1b\[(?:\d+A\x1b\[)?0?J[^\n]*(?=\r\x1b\[)", "", self.raw)
        return [ESCAPE.sub("", row).rstrip() for row in rows.replace("\r\n", "\n").rstrip("\n").split("\n")]


def on_terminal(argv: Sequence[object], columns: int, environ: Mapping[str, str], folder: Path) -> Shown:
    """Runs a program whose stdout and stderr are a terminal, to its end."""
    env = {name: value for name, value in environ.items() if name not in OF_A_TERMINAL or environ is not os.environ}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    process = subprocess.Popen(
        list(map(str, argv)),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={"TERM": "xterm", **env},
        cwd=folder,
    )
    os.close(theirs)
    found = b""
    with contextlib.suppress(OSError):  # EIO: the last of them has closed it
        while data := os.read(ours, 65536):
            found += data
    os.close(ours)
    return Shown(process.wait(), found.decode("utf-8", "replace"))
