"""Errors that a user can repair, and how an entrypoint reports them."""

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from algorun.common.errors import ExitCode, UserError

__all__ = ["TrainingError", "UserError", "guarded", "leave"]


class TrainingError(RuntimeError):
    """Training went wrong in a way that no restart repairs, such as a loss that is not a number."""


def guarded(main: Callable[[list[str]], int]) -> int:
    """Runs `main(argv)` and returns its exit code; a UserError becomes one `error: ..` line on stderr and code 64.

    Every other exception passes through with its traceback: it is a defect or a fault of the machine, and its reader
    needs to know where it happened.
    """
    try:
        return main(sys.argv[1:])
    except UserError as error:
        sys.stdout.flush()
        text = " ".join(str(error).split())
        print(f"error: {text}", file=sys.stderr, flush=True)
        return ExitCode.CONFIGURATION


def leave(code: int) -> NoReturn:
    """Flushes stdout and stderr and ends the process at once; the interpreter does not shut down.

    Call it when all files are written. Reason: while the interpreter shuts down, a thread of Gloo (torch 2.10 to 2.13)
    may wait for the GIL. It then aborts the process (SIGABRT, "terminate called without an active exception"), and a
    job that has succeeded fails.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
