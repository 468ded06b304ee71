"""Trains a model in pipeline stages: `python -m algorun_train.jobs.pipeline --pp 2 ..` under any launcher.

The job itself is pipeline_job.py. This module imports no torch before `main` is called (start.py).
"""

from algorun.inside.stop_flag import StopFlag
from algorun_train.options import mp_parameters, option_parser
from algorun_train.options.job_options import PipelineJobOptions

from .start import start


def main(argv: list[str], stop: StopFlag) -> int:
    """Trains with the options `argv`; returns the exit code. Call it on all ranks. Raises UserError."""
    options, asked = mp_parameters.apply(option_parser.read_options(PipelineJobOptions, argv))
    from .pipeline_job import run  # imports torch

    run(options, asked, stop)
    return 0


if __name__ == "__main__":
    start(main, PipelineJobOptions, "algorun_train.jobs.pipeline")
