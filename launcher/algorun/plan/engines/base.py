"""What an engine gives to a plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Programs:
    """Where our own programs lie. `home` is the folder of `algorun.inside`."""

    python: str
    home: str

    @property
    def rank(self) -> tuple[str, ...]:
        """The command that an engine starts in place of a rank; it asks its host's supervisor what to run."""
        return (self.python, "-I", "-S", f"{self.home}/rank_exec.py")

    @property
    def rsh(self) -> tuple[str, ...]:
        """Open MPI's remote shell: it asks the supervisors to start orted."""
        return (self.python, "-I", "-S", f"{self.home}/rsh.py")


@dataclass(frozen=True, slots=True)
class Pieces:
    """An engine's own processes: host name to argv (a host without one starts none), and their environment.

    `keeps_contract` says that the engine itself computes RANK, MASTER_ADDR and their like.
    """

    starters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    keeps_contract: bool = False
