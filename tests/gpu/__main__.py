"""`make test PART=gpu`: runs the checks on this machine's GPUs and writes what was seen into docs/gpu.md.

Exit code 0: nothing failed. 1: a check failed. 64: a wrong option. 69: this machine has no GPU that torch can use.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from algorun.common.errors import ExitCode, UserError

from . import harness, interpreter, machine, page
from .checks import ALL
from .harness import Row
from .machine import ROOT, Machine
from .session import STOPS, Check, Session
from .sizes import CPU, GPU

PAGE = ROOT / "docs" / "gpu.md"
BUILD = ROOT / ".build"  # ignored by git
FAILED = 1


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError("command line", message, fix="python -m tests.gpu --help")


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(prog="python -m tests.gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--page", type=Path, default=PAGE, help="Markdown file that the tables go to; docs/gpu.md")
    parser.add_argument("--only", default="", metavar="NAME,..", help="these checks; results of the others are kept")
    parser.add_argument("--list", action="store_true", help="print the checks' names and titles")
    parser.add_argument("--keep", type=Path, default=BUILD / "gpu-test.json", help="file that keeps the results")
    parser.add_argument(
        "--cpu", action="store_true", help="try the harness on the CPU; needs --page and --keep of its own"
    )
    options = parser.parse_args(argv)
    if options.cpu and (options.page.resolve() == PAGE or options.keep == BUILD / "gpu-test.json"):
        raise UserError("--cpu", "docs/gpu.md holds what was seen on GPUs", fix="add --page FILE --keep FILE")
    return options


def _chosen(wish: str) -> list[Check]:
    names = [name for name in wish.split(",") if name]
    known = {check.name: check for check in ALL}
    if strange := [name for name in names if name not in known]:
        raise UserError("--only", f"no check is called {', '.join(strange)}", allowed=", ".join(known))
    return [check for check in ALL if not names or check.name in names]


class _Report:
    """Hears of each result: a line here, and the page anew, so that a run which is ended leaves what it saw."""

    def __init__(self, machine: Machine, options: argparse.Namespace) -> None:
        self._machine, self._options = machine, options
        self._rows: list[Row] = []

    def __call__(self, row: Row) -> None:
        note = row.note if row.state == "failed" else " ".join(row.note.split())
        print(f"{row.state:8}{row.name:24}{row.seconds:7.1f} s  {note}", flush=True)
        for figure in row.figures:
            print(f"{'':8}{figure.name}: {figure.value}", flush=True)
        today = datetime.date.today().isoformat()
        self._rows.append(replace(row, when=f"{today}, {self._machine.commit or self._machine.algorun}"))
        names = [check.name for check in ALL]
        every = page.kept(self._options.keep, self._machine, self._rows, names)
        page.write(self._options.page, page.render(self._machine, every, names))


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit code."""
    options = _options(argv)
    checks = _chosen(options.only)
    if options.list:
        print("\n".join(f"{check.name:24}{check.title}" for check in checks))
        return 0
    if not options.cpu:
        machine.refuse_without_gpu(interpreter.package_folders())
    BUILD.mkdir(exist_ok=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-test-", dir=BUILD, ignore_cleanup_errors=True) as folder:
        python = interpreter.make(Path(folder) / "python")
        environ = {**os.environ, **({"CUDA_VISIBLE_DEVICES": ""} if options.cpu else {})}
        found = machine.look(python, environ, cpu=options.cpu)
        print(f"{found}\n", flush=True)
        session = Session(found, CPU if options.cpu else GPU, python, Path(folder))
        rows = harness.run(session, checks, _Report(found, options))
    failed = [row.name for row in rows if row.state == "failed"]
    said = f"failed: {', '.join(failed)}" if failed else "nothing failed"
    print(f"\n{said}; {time.monotonic() - begun:.0f} s; the tables are in {options.page}", flush=True)
    return FAILED if failed else int(ExitCode.OK)


def _leave(number: int, _frame: object) -> NoReturn:
    """A stop ends the job at work and removes what was made, as an exception does."""
    for one in STOPS:
        signal.signal(one, signal.SIG_IGN)
    sys.exit(128 + number)


if __name__ == "__main__":
    for each in STOPS:
        signal.signal(each, _leave)
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.code)
