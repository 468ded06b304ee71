"""mpirun on the leader, and Open MPI's daemons on all hosts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from algorun.common.fast_dataclasses import replace
from algorun.control.wire.messages import DaemonEnded, Go, NodeAlive, StartDaemon
from algorun.host.ranks.rank_port import Fields, Peer
from algorun.host.ranks.ranks import RankRules, Ranks
from algorun.host.tools import Tools
from algorun.job.config import JobConfig
from algorun.machine import openmpi, probe
from algorun.machine.openmpi import ABORTS, HARMLESS, SESSIONS
from algorun.machine.probe import Machine
from algorun.plan.plan import Plan

from .daemons import Daemons, with_session
from .rank_starter import RankStarter

ABORT_WORD_S = 0.2  # for the rest of mpirun's text
LEFT_S = 1.0  # for the other ranks to leave as well, after one that has left with 0


class MpirunAtWork(RankStarter):
    """mpirun starts on the leader, and asks each host for the daemon that starts the host's ranks."""

    def __init__(self, tools: Tools, config: JobConfig) -> None:
        super().__init__(tools, config)
        self._daemons: Daemons | None = None  # once the attempt has started
        self._early: list[StartDaemon] = []  # what mpirun has asked for before that
        self._refuses = self._abort_told = False

    def needs(self, machine: Machine, python: str) -> Machine:
        """The machine with its Open MPI: the job's requirements may have installed one. Raises UserError without one."""
        if machine.openmpi is not None:
            return machine
        return replace(machine, openmpi=openmpi.usable(probe.openmpi(os.environ)))

    def rules(self, plan: Plan) -> RankRules:
        """Only mpirun knows whether a rank that has left with 0 has called MPI_Finalize: if not, ranks that wait for it would
        wait for ever, and mpirun ends them once its own process for this rank has left."""
        return RankRules(let_go_s=LEFT_S)

    def met(self, go: Go) -> None:
        """What was asked before belongs to an earlier attempt."""
        self._early.clear()

    def start(self, plan: Plan, ranks: Ranks) -> None:
        """Starts mpirun on the leader, and the daemon that was asked for meanwhile. Raises UserError."""
        mpirun = next((each.starter for each in plan.hosts if each.starter), ())
        self._daemons = Daemons(plan.openmpi, mpirun, self._start_daemon, self._tools.send)
        super().start(plan, ranks)
        early, self._early = self._early, []
        for order in early:
            self.heard(order)

    def _start_daemon(self, argv: list[str]) -> int:
        assert self._plan is not None
        assert self._plan.openmpi is not None
        command = with_session(argv, self._plan.openmpi.major, self._tools.run_dir)
        return self._run(command, what="mpirun's daemon", extra=self._environ())

    def _session(self) -> Mapping[str, str]:
        assert self._plan is not None
        assert self._plan.openmpi is not None
        return {SESSIONS[self._plan.openmpi.major]: self._tools.run_dir}

    # -- daemons -----------------------------------------------------------------------------------------------------

    def asked(self, peer: Peer, message: Fields) -> None:
        """mpirun's remote shell asks for a daemon on a host."""
        if self._daemons is not None:
            self._daemons.wanted(peer, message)

    def heard(self, message: StartDaemon | DaemonEnded | NodeAlive) -> None:
        """mpirun asks this host for its daemon, or a daemon elsewhere has ended.

        mpirun may ask while this host still checks the entrypoint's options: the leader has checked them already.
        """
        if isinstance(message, DaemonEnded):
            if self._daemons is not None:
                self._daemons.ended(message)
        elif isinstance(message, StartDaemon):
            if self._daemons is not None:
                if problem := self._daemons.start(message):
                    self.broken(problem)
            elif self._refuses:
                self._tools.send(DaemonEnded(message.id, 1))
            else:
                self._early.append(message)

    def refuse(self) -> None:
        """The job stops: mpirun hears that no daemon starts here."""
        self._refuses = True
        early, self._early = self._early, []
        for order in early:
            self.heard(order)

    def _starter_ended(self, returncode: int) -> None:
        """No failure where mpirun ends well after the ranks of this host, while their last lines are still on their way."""
        if returncode or self._ranks is None or not self._ranks.all_ended:
            super()._starter_ended(returncode)

    def child_ended(self, pid: int, returncode: int) -> bool:
        """A child of this process has ended; False if it was neither mpirun nor a daemon."""
        if super().child_ended(pid, returncode):
            return True
        return self._daemons is not None and self._daemons.exited(pid, returncode)

    @property
    def busy(self) -> bool:
        return bool(self._starter) or (self._daemons is not None and self._daemons.busy)

    def _why_not_started(self) -> str:
        return "" if self.busy else "mpirun has not asked for its daemon here"

    # -- what it prints ----------------------------------------------------------------------------------------------

    def _read(self, lines: bytes) -> bytes:
        """Without a warning that means nothing. mpirun tells that it ends the ranks before it does: a rank that MPI has ended has
        no words of its own, and these are needed to find the cause."""
        if not self._abort_told and re.search(ABORTS, lines):
            self._abort_told = True
            self._tools.loop.after(ABORT_WORD_S, lambda: self.broken(f"{self.name} ends the ranks"))
        return re.sub(HARMLESS, b"", lines) if b"setpgid" in lines else lines
