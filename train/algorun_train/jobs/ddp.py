"""Trains an image classifier or a language model, data parallel, under any launcher: `python -m algorun_train.jobs.ddp ..`.

The job itself is ddp_job.py. This module imports no torch before `main` is called (start.py).
"""

from algorun.inside.stop_flag import StopFlag
from algorun_train.options import option_parser
from algorun_train.options.job_options import DdpJobOptions

from .start import start


def main(argv: list[str], stop: StopFlag) -> int:
    """Trains with the options `argv`; returns the exit code. Call it on all ranks. Raises UserError."""
    options = option_parser.read_options(DdpJobOptions, argv)
    from .ddp_job import run  # imports torch

    run(options, stop)
    return 0


if __name__ == "__main__":
    start(main, DdpJobOptions, "algorun_train.jobs.ddp")
