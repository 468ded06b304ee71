"""Checks the options of an entrypoint without torch: `echo RANKS | python -m algorun_train.jobs.check ENTRYPOINT --option value ..`.

The launcher runs it while its hosts meet, so that a wrong option is one error of the job's, not one of every rank after
seconds of imports. What depends on the number of ranks is checked once a line of stdin tells it, or never at its end.
"""

import sys

from algorun_train.errors import UserError, guarded
from algorun_train.options import parsing


def main(argv: list[str]) -> int:
    """0 where the entrypoint would take these options. Raises UserError."""
    name, *words = argv
    if "--help" in words or "-h" in words:
        return 0
    match name:  # each imports its own only: a start waits for the slowest of them
        case "ddp":
            from algorun_train.options.config import DdpConfig

            parsing.read(DdpConfig, words)
        case "pipeline":
            _pipeline(words)
        case "mpi-basics":
            from .mpi_basics import MpiConfig

            parsing.read(MpiConfig, words)
        case _:
            raise UserError(f"entrypoint {name!r} is not bundled; allowed: ddp, pipeline, mpi-basics")
    return 0


def _pipeline(words: list[str]) -> None:
    from importlib import metadata

    from algorun_train.options import mp_parameters
    from algorun_train.options.config import PipelineConfig
    from algorun_train.options.layout import lay_out

    config, wishes = mp_parameters.apply(parsing.read(PipelineConfig, words))
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:  # a plan at home needs none
        torch = ""
    ranks = sys.stdin.readline().strip()
    if ranks:
        lay_out(config, wishes, int(ranks), torch)


if __name__ == "__main__":
    sys.exit(guarded(main))
