"""Starts a training program before torch is imported: the import takes seconds."""

import sys
from collections.abc import Callable
from typing import NoReturn

from algorun.inside.stop_flag import StopFlag
from algorun_train.common.errors import guarded, leave
from algorun_train.options import option_parser


def start(main: Callable[[list[str], StopFlag], int], options: type, program: str) -> NoReturn:
    """Runs `main` as the program, and ends the process with its exit code.

    From here on SIGTERM sets a flag: if it arrives while `main` imports torch, training stops after the first step.
    --help is answered at once. `options` is the dataclass with the options of `program`.
    """
    stop = StopFlag()
    stop.install()
    if option_parser.answer_help(options, program, sys.argv[1:]):
        sys.exit(0)
    leave(guarded(lambda argv: main(argv, stop)))
