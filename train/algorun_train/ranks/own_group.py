"""A rank's process group among disjoint ones, such as the pipelines of a job."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from . import join


def own_group(rank: int, groups: Sequence[Sequence[int]]) -> dist.ProcessGroup | None:
    """The group of `groups`, which are disjoint, that `rank` is in; None if it is in none, or alone in its own. Its collectives
    may take `join.COLLECTIVE_TIMEOUT`. Call it on all ranks of the job, with the same `groups`.

    Each rank calls torch for every group, so that all ranks count the same groups: the count becomes a group's name. Only
    members wait for each other, unless TORCH_DIST_INIT_BARRIER=1 is set. torch's `use_local_synchronization` would save the
    other calls, 20 ms for 1,024 ranks, but it names a group after the number of groups that a rank is in: ranks hang if a
    script has made some groups of its own.
    """
    mine = None
    for ranks in groups:
        if len(ranks) > 1:
            made = dist.new_group(list(ranks), timeout=join.COLLECTIVE_TIMEOUT)
            mine = made if rank in ranks else mine
    return mine
