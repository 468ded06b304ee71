"""What an engine gets from a plan and gives to it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from algorun.machine.openmpi import OpenMpi
from algorun.plan.cluster import Cluster, Meeting


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
class Wanted:
    """The ranks that an engine is to start, and what it may use for that.

    `options` are the user's own for the engine, `interface` is the job's network interface. `per_host`: one rank on each
    host, which counts hosts. `simulated`: the hosts are one machine.
    """

    cluster: Cluster
    programs: Programs
    meeting: Meeting
    interface: str
    openmpi: OpenMpi | None
    options: tuple[str, ...]
    per_host: bool
    simulated: bool


@dataclass(frozen=True, slots=True)
class Pieces:
    """An engine's own processes: host name to argv (a host without one starts none), and their environment.

    `keeps_contract`: the engine itself computes RANK, MASTER_ADDR and the rest of torchrun's contract.
    """

    starters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    keeps_contract: bool = False
