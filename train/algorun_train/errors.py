"""What a user can repair, and how an entrypoint reports it."""

import os
import sys
from collections.abc import Callable
from typing import NoReturn

EXIT_USER_ERROR = 64  # sysexits.h EX_USAGE; the launcher's code for "configuration"


class UserError(Exception):
    """Bad configuration or bad data input. The text says what, where, what is allowed and the fix."""


class TrainingError(RuntimeError):
    """Training went wrong in a way that no restart repairs, such as a loss that is not a number."""


def guarded(main: Callable[[list[str]], int]) -> int:
    """Runs `main(argv)` and returns its exit code; a UserError becomes one `error: ..` line on stderr and code 64.

    Every other exception passes through, traceback and all: it is a defect or a fault of the machine, and whoever
    reads it needs the place.
    """
    try:
        return main(sys.argv[1:])
    except UserError as error:
        sys.stdout.flush()
        text = " ".join(str(error).split())
        print(f"error: {text}", file=sys.stderr, flush=True)
        return EXIT_USER_ERROR


def leave(code: int) -> NoReturn:
    """Ends the process here, without taking the interpreter down.

    Everything is written by now. Gloo's thread (torch 2.10 to 2.13) may want the GIL while the interpreter ends, and
    then aborts the process (SIGABRT, "terminate called without an active exception"): a job that had succeeded fails.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
