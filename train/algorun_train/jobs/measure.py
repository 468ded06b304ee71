"""Measures GPUs, hosts and the links between them, and names what is odd: `algorun run measure`.

This module imports no torch before `main` is called (start.py). measure_job.py is the job itself.
"""

from dataclasses import dataclass

from algorun.inside.stop_flag import StopFlag
from algorun_train.options import option_parser
from algorun_train.options.option_rules import OnResume, option

from .start import start


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """The options of `measure`."""

    seconds: float = option(
        60.0, "how long all measurements take together", OnResume.FREE, at_least=5.0, at_most=3600.0
    )
    factor: float = option(
        2.0,
        "a host or a link that is so many times slower than is usual among the others is named",
        OnResume.FREE,
        above=1.0,
    )
    strict: bool = option(False, "end with exit code 69 if anything is named", OnResume.FREE)


def main(argv: list[str], _stop: StopFlag) -> int:
    """Measures with the options `argv`, also after a stop, as it soon ends by itself; returns the exit code. Call it on all ranks.

    Raises UserError.
    """
    options = option_parser.read_options(MeasureOptions, argv)
    from .measure_job import run  # imports torch

    return run(options)


if __name__ == "__main__":
    start(main, MeasureOptions, "algorun_train.jobs.measure")
