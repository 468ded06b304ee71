"""Starts training on every host of a SageMaker job. Standard library only.

A training script stops on request, all ranks at the same step:

    import algorun

    for step, batch in enumerate(batches):
        train_on(batch)
        if algorun.should_stop():  # on every rank, once a step
            save()
            break

It works under any launcher (algorun, torchrun, mpirun) and without one.
"""

from __future__ import annotations

from .common import __version__

TYPE_CHECKING = False  # no import of typing: `import algorun` costs nothing, the first call imports the rest
if TYPE_CHECKING:
    from .inside.common_stop import CommonStop
    from .inside.progress_report import ProgressReport

__all__ = ["__version__", "progress", "should_stop", "trained_on"]

_common: CommonStop | None = None
_progress: ProgressReport | None = None


def should_stop() -> bool:
    """Returns True once any rank has received SIGTERM. All ranks get the same answer at the same step.

    Call it on every rank at the end of every step, equally often. The ranks are those of torch.distributed if it is
    initialised, else those of mpi4py if it is imported, else this process alone. They exchange their flags every few
    steps, at most about four times a second, on a gloo group (or MPI communicator) of their own.

    After the first True it always returns True and exchanges nothing, because other ranks may have ended.

    Each call is also a sign of life for the launcher, which ends a job if a rank makes no optimizer step for minutes.
    So call it between the batches of a long evaluation as well, on every rank.

    Call it in the main thread: the first call installs a handler for SIGTERM, which then no longer ends the process.
    A handler that the script has set before is called as well. A handler that the script sets later replaces ours;
    this process then learns of a stop from the other ranks only.
    """
    global _common
    if _common is None:
        from .inside.common_stop import CommonStop
        from .inside.stop_flag import StopFlag

        _common = CommonStop(StopFlag())
    return _common.poll()


def progress() -> None:
    """Tells the launcher that this rank goes on.

    Call it wherever your program gets ahead, such as once a step or file, in any framework and in any process of a rank. While
    one rank reports progress, the job is taken to go on. If no rank reports, prints or steps for ten minutes
    (`ALGORUN_HANG_S`) and none works, the job ends with 67. Without algorun's launcher it does nothing. A call takes 1 us; ranks
    exchange nothing.
    """
    global _progress
    if _progress is None:
        from .inside.progress_report import ProgressReport

        _progress = ProgressReport()
    _progress.report()


def trained_on(samples: float, tokens: float = 0.0) -> None:
    """Tells the launcher what this rank has trained on since its last call.

    Call it once a step, on every rank, in the process that has imported torch. The closing table then shows samples and
    tokens per second of all ranks. Without algorun's launcher it does nothing. A call takes 1 us; ranks exchange nothing.

    Args:
        samples: the number of samples of this rank's own batch.
        tokens: the number of tokens of this rank's own batch, for text.
    """
    import sys

    activities = getattr(sys.modules.get("algorun_rank_steps"), "activities", None)
    if activities is not None:
        activities.add_work(samples, tokens, 0.0)
