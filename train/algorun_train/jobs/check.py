"""Checks the options of an entrypoint without torch: `echo RANKS | python -m algorun_train.jobs.check ENTRYPOINT --option value ..`.

The launcher runs it while its hosts meet. So a wrong option is one error of the job, instead of an error on every rank after
seconds of imports. Stdin has one line with the number of ranks, or with that of each host; in the second case stdout gets the lines
of a plan about ranks that compute together. If stdin ends without a line, the rules that depend on the number are not checked.
"""

import sys
from collections.abc import Sequence

from algorun_train.common.errors import UserError, guarded
from algorun_train.options import option_parser


def main(argv: list[str]) -> int:
    """Returns 0 if the entrypoint accepts these options. Raises UserError."""
    name, *words = argv
    if "--help" in words or "-h" in words:
        return 0
    match name:  # each case imports only its own options, because the start of a job waits for this program
        case "ddp":
            from algorun_train.options.job_options import DdpJobOptions
            from algorun_train.options.shard_layout import shards_of

            options = option_parser.read_options(DdpJobOptions, words)
            if ranks := _ranks_of_hosts():
                shards_of(options, sum(ranks))
                _say_groups(options.tp, ranks)
        case "pipeline":
            _pipeline(words)
        case "mpi-basics":
            from .mpi_basics import MpiBasicsOptions

            option_parser.read_options(MpiBasicsOptions, words)
        case "measure":
            from .measure import MeasureOptions

            option_parser.read_options(MeasureOptions, words)
        case _:
            raise UserError(f"entrypoint {name!r} is not bundled; allowed: ddp, pipeline, mpi-basics, measure")
    return 0


def _pipeline(words: list[str]) -> None:
    from importlib import metadata

    from algorun_train.options import mp_parameters
    from algorun_train.options.job_options import PipelineJobOptions
    from algorun_train.options.pipeline_layout import lay_out

    options, asked = mp_parameters.apply(option_parser.read_options(PipelineJobOptions, words))
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:  # `algorun plan` needs no torch
        torch = ""
    if ranks := _ranks_of_hosts():
        lay_out(options, asked, sum(ranks), torch)
        _say_groups(options.tp, ranks)


def _ranks_of_hosts() -> list[int]:
    return [int(word) for word in sys.stdin.readline().split()]


def _say_groups(tensor: int, ranks: Sequence[int]) -> None:
    from algorun_train.options.shard_layout import tensor_lines

    for line in tensor_lines(tensor, ranks):
        print(line)


if __name__ == "__main__":
    sys.exit(guarded(main))
