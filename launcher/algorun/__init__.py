"""algorun: starts training on every host of a SageMaker job. Standard library only.

For training scripts: a stop on request that all ranks make at the same step.

    import algorun

    for step, batch in enumerate(batches):
        train_on(batch)
        if algorun.should_stop():  # on every rank, once a step
            save()
            break

It needs no launcher: a script that a person started, torchrun, mpirun and algorun all work.
"""

from __future__ import annotations

TYPE_CHECKING = False  # an import of this package costs nothing; the first call does the rest
if TYPE_CHECKING:
    from .inside.common_stop import CommonStop

__version__ = "0.2.0.dev"
__all__ = ["should_stop"]

_common: CommonStop | None = None


def should_stop() -> bool:
    """True once any rank has been asked to stop by SIGTERM, from the same step on everywhere.

    Every rank must call it equally often, at the end of a step. Ranks are those of torch.distributed where it is
    initialised, else those of mpi4py where it is imported, else this process alone. They exchange their wishes every
    few steps, about four times a second at most, on a gloo group (or communicator) of their own.

    A call is also a sign of life for the launcher, which takes a rank that makes no optimizer steps for minutes for one
    that hangs: call it between the batches of a long evaluation too, on every rank.

    The first call takes SIGTERM over: from then on it no longer ends the process. A handler that the script has set
    before is called as well. One that it sets later stands alone, and this process then hears of a stop from the
    others only. Call it in the main thread: Python sets handlers nowhere else.
    """
    global _common
    if _common is None:
        from .inside.common_stop import CommonStop
        from .inside.stop_flag import StopFlag

        _common = CommonStop(StopFlag())
    return _common.poll()
