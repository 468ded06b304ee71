"""The engine's own processes on this host: torchrun, mpirun or Ray's node (the plan's starter), and mpirun's daemons."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from algorun.common.fast_dataclasses import dataclass
from algorun.control.messages import Message
from algorun.machine.openmpi import HARMLESS, SESSIONS
from algorun.plan.plan import Plan

from .daemons import Daemons, with_session
from .logs import RankLog
from .output import Pipes
from .processes import kill_sessions
from .tools import Tools


@dataclass(frozen=True, slots=True)
class EngineUser:
    """What these processes need: `send` takes messages to the hub, `clean` reads their lines and may change them."""

    send: Callable[[Message], None]
    clean: Callable[[bytes], bytes]


class EngineProcesses:
    """Starts and follows the starter, and `daemons`. Their log is made when the first process starts."""

    def __init__(self, tools: Tools, pipes: Pipes, plan: Plan, host: str, user: EngineUser) -> None:
        self._tools, self._pipes, self._plan, self._host = tools, pipes, plan, host
        self._engine, self._clean = plan.engine.value, user.clean
        mpirun = next((each.starter for each in plan.hosts if each.starter), ())
        self.daemons = Daemons(plan.openmpi, mpirun, self._start_daemon, user.send)
        self._log: RankLog | None = None
        self._starter = 0

    @property
    def tail(self) -> str:
        """The last lines that they wrote to stderr."""
        return self._log.tail if self._log else ""

    @property
    def folder(self) -> Path:
        """Where Ray keeps its session."""
        return Path(self._tools.run_dir, f"r{self._plan.attempt}")

    def hush(self) -> None:
        """From now on their output goes into their log file only, such as torchrun's lines about ranks that leave."""
        if self._log:
            self._log.aside = True

    @property
    def busy(self) -> bool:
        """True while one of them runs."""
        return bool(self._starter) or self.daemons.busy

    @property
    def missing(self) -> str:
        """What mpirun's ranks on this host wait for, "" where all processes of the engine run."""
        return "mpirun has not asked for its daemon here" if self._engine.needs_openmpi and not self.busy else ""

    def start(self, argv: Sequence[str], *, what: str) -> None:
        """Starts the plan's starter. Raises UserError where the program cannot start."""
        folder = [f"--temp-dir={self.folder}"] if self._engine.has_driver else []
        self._starter = self._run([*argv, *folder], what=what)

    def kill(self) -> None:
        """Ends the starter and all that it has started."""
        if self._starter:
            kill_sessions([self._starter])

    def is_starter(self, pid: int) -> bool:
        """True if the child that has ended was the starter, which is then forgotten."""
        if pid != self._starter:
            return False
        self._starter = 0
        return True

    def _start_daemon(self, argv: list[str]) -> int:
        assert self._plan.openmpi is not None
        return self._run(with_session(argv, self._plan.openmpi.major, self._tools.run_dir), what="mpirun's daemon")

    def _run(self, argv: Sequence[str], *, what: str) -> int:
        if self._log is None:
            name = f"{self._engine}-{self._host}.log"
            self._log = RankLog(
                f"{self._engine} {self._host}", name, self._tools.logs, self._tools.console, self._clean
            )
            self._log.aside = self._engine.has_driver  # Ray prints how to use a cluster by hand
        out = self._pipes.into(self._log, 2)
        try:
            cwd = self._plan.cwd if self._engine.has_driver else "/"
            return self._tools.owner.start(argv, self._all_environ(), cwd, out, out, what=what)
        finally:
            os.close(out)

    def _all_environ(self) -> dict[str, str]:
        """This process's environment, the engine's own variables, and where to find this supervisor."""
        extra = self._plan.starter_environ(self._plan.host(self._host))
        if self._engine.has_driver:  # Ray's workers inherit it: they are no ranks
            return {**os.environ, **extra}
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}  # silences torchrun's own default
        # Open MPI's session files go into the run folder: apart from those of other simulated hosts, and removed with it.
        # So does torchrun's log folder (PET_LOG_DIR is its --log-dir).
        openmpi = self._plan.openmpi
        session = {SESSIONS[openmpi.major] if openmpi else "PET_LOG_DIR": self._tools.run_dir}
        return {**os.environ, **threads, **session, **extra, "ALGORUN_RUN_DIR": self._tools.run_dir}


def without_harmless(lines: bytes) -> bytes:
    """The lines without a warning of mpirun that means nothing."""
    return re.sub(HARMLESS, b"", lines) if b"setpgid" in lines else lines
