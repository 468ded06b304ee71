"""Which ranks reduce with each other: those of the job, or in a job of smp the ranks that have the same partition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from algorun_smdistributed.ranks import joining
from algorun_smdistributed.ranks.rank_group import RankGroup
from algorun_train.common.errors import UserError

Variable = Any  # TensorFlow's objects have no types for mypy


@dataclass(frozen=True, slots=True)
class Membership:
    """The ranks of a library, seen from this one."""

    group: RankGroup
    on_host: tuple[int, int]
    """this rank's number among those of the group on its host, and their number"""
    is_here: Callable[[Variable], bool]
    """False for a variable of another partition"""


_replicas: list[Membership] = []


def use_replicas(group: RankGroup, is_here: Callable[[Variable], bool]) -> None:
    """From here on all libraries reduce over `group`, the ranks with this one's partition. Called by smp.init(), on all ranks."""
    _replicas[:] = [Membership(group, group.on_host(), is_here)]


class ScriptRanks:
    """The place of this process in a library that a script knows as `name`, such as hvd."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._joined: Membership | None = None

    def init(self) -> None:
        """Joins the ranks of the job: by MPI where mpirun has started them, else by Gloo. A second call does nothing."""
        if self._joined is None and not _replicas:
            group = joining.join(f"{self.name}.init")
            self._joined = Membership(group, group.on_host(), lambda _: True)

    def shutdown(self) -> None:
        """Leaves; `init` joins again."""
        self._joined = None

    def is_initialized(self) -> bool:
        """True after init(), or smp.init()."""
        return self._joined is not None or bool(_replicas)

    @property
    def here(self) -> Membership:
        """UserError before init()."""
        if _replicas:
            return _replicas[0]
        if self._joined is None:
            raise UserError(f"{self.name} is not initialised; fix: call {self.name}.init() first")
        return self._joined

    def rank(self) -> int:
        """This process's rank."""
        return self.here.group.rank

    def size(self) -> int:
        """The number of ranks."""
        return self.here.group.size

    def local_rank(self) -> int:
        """This process's number among the ranks of its host."""
        return self.here.on_host[0]

    def local_size(self) -> int:
        """The number of ranks on this host."""
        return self.here.on_host[1]
