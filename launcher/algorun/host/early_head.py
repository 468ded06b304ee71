"""Ray's head before the hosts have met: it needs nothing of the others, and takes seconds to start.

The gate still decides. Without a `go` the head ends with its supervisor, and no driver has run.
"""

from __future__ import annotations

from collections.abc import Callable

from algorun.common.fast_dataclasses import replace
from algorun.control.failure import Failure
from algorun.plan.plan import Plan

from . import ray_logs
from .engine_processes import EngineProcesses, EngineUser
from .output import Pipes
from .ray_node import RayNode
from .tools import Tools


class EarlyHead:
    """The head of the first attempt, which takes over `pipes`, `node` and `engine`. Until then `broken` hears of its end.

    Raises UserError where the program cannot start.
    """

    def __init__(self, tools: Tools, plan: Plan, broken: Callable[[Failure], None]) -> None:
        leader = plan.hosts[0]
        self._broken, self._failed = broken, False
        self._logs = tools.logs / ray_logs.kept_in(leader.host, plan.attempt)
        self.pipes = Pipes(tools.loop, tools.console)
        self.node = RayNode(leader.host, lambda: None, self._fail)
        user = EngineUser(lambda _: None, self.node.read)
        self.engine = EngineProcesses(tools, self.pipes, plan, leader.host, user)
        self.engine.start(leader.starter, what=plan.engine.value)
        tools.owner.adopt()

    def child_ended(self, pid: int, returncode: int) -> None:
        """A child of this process has ended."""
        if self.engine.is_starter(pid):
            self.pipes.drain()
            self.node.starter_ended(returncode, self.engine.tail)

    def keep_logs(self) -> None:
        """Keeps Ray's own log files of a head that has failed."""
        if self._failed:
            ray_logs.keep(self.engine.folder, self._logs)

    def close(self) -> None:
        """Nobody takes it over: its supervisor ends, and ends its processes."""
        self.pipes.close()

    def _fail(self, failure: Failure) -> None:
        self._failed = True
        self._broken(replace(failure, traceback=self.engine.tail))
