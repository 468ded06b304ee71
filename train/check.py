"""Checks the options of an entrypoint without torch: `echo RANKS | python -m train.check ENTRYPOINT --option value ..`.

The launcher runs it while its hosts meet, so that a wrong option is one error of the job's, not one of every rank after
seconds of imports. What depends on the number of ranks is checked once a line of stdin tells it, or never at its end.
"""

import sys

from . import options
from .errors import UserError, guarded


def main(argv: list[str]) -> int:
    """0 where the entrypoint would take these options. Raises UserError."""
    name, *words = argv
    if "--help" in words or "-h" in words:
        return 0
    match name:  # each imports its own only: a start waits for the slowest of them
        case "ddp":
            from .config import DdpConfig

            options.read(DdpConfig, words)
        case "pipeline":
            _pipeline(words)
        case "mpi-basics":
            from .mpi_basics import MpiConfig

            options.read(MpiConfig, words)
        case _:
            raise UserError(f"entrypoint {name!r} is not bundled; allowed: ddp, pipeline, mpi-basics")
    return 0


def _pipeline(words: list[str]) -> None:
    from importlib import metadata

    from . import mp_parameters
    from .config import PipelineConfig
    from .layout import lay_out

    config, wishes = mp_parameters.apply(options.read(PipelineConfig, words))
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:  # a plan at home needs none
        torch = ""
    ranks = sys.stdin.readline().strip()
    if ranks:
        lay_out(config, wishes, int(ranks), torch)


if __name__ == "__main__":
    sys.exit(guarded(main))
