"""How busy a host was while its ranks made steps, as it tells the leader: a few numbers, whatever the host has. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from algorun.common.fast_dataclasses import dataclass

from .activities import NAMES
from .host_figures import FolderFigures, HostFigures, together
from .rank_times import RankTimes

IDLE = 0.05  # of the time: a GPU that runs kernels less is idle
ASIDE = ("saving", "evaluation")  # meanwhile GPUs may rest
MOST_ASIDE = 0.1  # of the time: with more of it, an interval says nothing about training
USUAL = "power cap"  # a reason for a lower clock that is no fault
LITTLE_SHARE, LITTLE_BYTES = 0.05, 10 << 30  # free of a disk: nearly full is below both


@dataclass(frozen=True, slots=True)
class HostLoad:
    """What a host did in `seconds`; None: not known.

    `training`: each of its ranks has made steps, and evaluations and saves took little time; only then the shares `data` (of
    the ranks' time, waiting for batches), `cpu` and the rates (bytes per second) are those of training, and GPUs are
    judged. `workers`: of the loader of the rank that has fewest. `memory`: share of the limit. `fullest`: the folder whose
    disk is nearly full, with its room.
    """

    training: bool = False
    seconds: float = 0.0
    ranks: int = 0
    data: float | None = None
    cpu: float | None = None
    cores: int | None = None
    disk_read: float | None = None
    network_in: float | None = None
    memory: float | None = None
    memory_limit_bytes: int | None = None
    fullest: FolderFigures | None = None
    gpus: int = 0
    idle: int = 0
    throttled: int = 0
    reasons: tuple[str, ...] = ()
    workers: int | None = None


def host_load(
    samples: Sequence[HostFigures],
    before: Sequence[RankTimes] = (),
    after: Sequence[RankTimes] = (),
    workers: int | None = None,
) -> HostLoad:
    """The load of the intervals `samples`. `before` and `after`: the ranks at the begin and the end, () if they have not all
    made steps meanwhile."""
    training, data, seconds = _training(before, after)
    if not samples:
        return HostLoad(training, seconds, len(after), data, workers=workers)
    whole = together(samples)
    gpus = [each for each in whole.gpus if each.utilization is not None]
    hot = [reasons for each in whole.gpus if (reasons := [name for name in each.throttled if name != USUAL])]
    memory, limit = whole.memory_bytes, whole.memory_limit_bytes
    return HostLoad(
        training=training,
        seconds=seconds,
        ranks=len(after),
        data=data,
        cpu=whole.cpu,
        cores=whole.cores,
        disk_read=whole.disk_read,
        network_in=whole.network_in,
        memory=memory / limit if memory is not None and limit else None,
        memory_limit_bytes=limit,
        fullest=min(filter(_nearly_full, whole.folders), key=lambda each: each.free_bytes, default=None),
        gpus=len(gpus),
        idle=len([each for each in gpus if each.utilization is not None and each.utilization < IDLE]),
        throttled=len(hot),
        reasons=tuple(sorted({name for reasons in hot for name in reasons})),
        workers=workers,
    )


def _training(before: Sequence[RankTimes], after: Sequence[RankTimes]) -> tuple[bool, float | None, float]:
    """Whether the ranks trained, the share of their time in which they waited for batches, and how long that was."""
    pairs = list(zip(before, after, strict=True)) if before else []
    if not pairs or not all(old.steps and new.steps > old.steps and new.at > old.at for old, new in pairs):
        return False, None, 0.0

    def share(name: str) -> float:
        index = NAMES.index(name)
        return sum((new.activities[index] - old.activities[index]) / (new.at - old.at) for old, new in pairs) / len(
            pairs
        )

    aside = sum(map(share, ASIDE))
    return aside < MOST_ASIDE, share("data"), sum(new.at - old.at for old, new in pairs) / len(pairs)


def _nearly_full(room: FolderFigures) -> bool:
    return room.free_bytes < min(LITTLE_SHARE * room.size_bytes, LITTLE_BYTES)
