"""Ray's node on this host; on the leader also the head, and the driver once every host has its node."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import replace
from algorun.control.failures.failure import Failure, listed
from algorun.control.wire.messages import DaemonEnded, Go, NodeAlive, Ready, StartDaemon
from algorun.host.engines.engine import EngineAtWork
from algorun.host.ranks.ranks import RankRules, Ranks
from algorun.host.tools import Tools
from algorun.job.config import JobConfig
from algorun.machine import failure_snapshot, ray, ray_installation
from algorun.machine.probe import Machine
from algorun.plan import ray_cluster
from algorun.plan.plan import Plan

from . import logs
from .memory_watch import MemoryWatch
from .node import RayNode
from .nodes import Nodes, before_the_gate

SECRET_BYTES = 16  # of the secret that the processes of a cluster share


class RayAtWork(EngineAtWork):
    """The head needs nothing of the other hosts and takes seconds to start, so it starts while the leader waits for them.

    The gate still decides: without a `go` the head ends with its supervisor, and no driver has run.
    """

    has_nodes = True

    def __init__(self, tools: Tools, config: JobConfig) -> None:
        super().__init__(tools, config)
        self._hosts = config.resources.hosts
        self._attempt = 0
        self._nodes = Nodes(self._hosts, 0)
        self._node = RayNode(self._host, self._node_alive, self._node_failed)
        self._node_has_failed = False
        self._memory: MemoryWatch | None = None
        self._waits_for_nodes = True  # until the driver starts, or will not start any more

    # -- before the hosts have met -----------------------------------------------------------------------------------

    def needs(self, machine: Machine, python: str) -> Machine:
        """The machine with its Ray. Raises UserError without one, or with too little shared memory for the object store."""
        machine = replace(machine, ray=ray.usable(ray_installation.look(os.environ, python)))
        ray_cluster.offer(self._config, machine)
        return machine

    def ready(self, ready: Ready, address: str) -> Ready:
        """With the address of this host's node, and the leader's secret."""
        secret = os.urandom(SECRET_BYTES).hex() if self._host == self._hosts[0] else ""
        return replace(ready, address=ray.node_address(address), secret=secret)

    def before_gate(self, ready: Ready, plan: Callable[[Go], Plan]) -> None:
        """Starts the head. Raises UserError where the program cannot start."""
        if not ready.secret or len(self._hosts) == 1:
            return
        self._start_node(plan(before_the_gate(self._hosts, ready)))
        self._tools.owner.adopt()

    def met(self, go: Go) -> None:
        """All hosts have met: the leader counts their nodes."""
        self._attempt, self._nodes = go.attempt, Nodes(self._hosts, go.attempt)

    # -- the attempt -------------------------------------------------------------------------------------------------

    def rules(self, plan: Plan) -> RankRules:
        """Names of hosts in place of addresses; a cluster of the script's own leaves nothing in /tmp."""
        return RankRules(logs.with_hosts(plan.hosts_by_address), {"RAY_TMPDIR": self._tools.run_dir})

    def start(self, plan: Plan, ranks: Ranks) -> None:
        """Starts this host's node, if it does not run yet; the driver follows once all nodes are alive. Raises UserError."""
        self._plan, self._ranks = plan, ranks
        self._has_time()
        if not self._starter and not self._node_has_failed:
            self._start_node(plan)
        elif self._node.is_alive:
            self._node_alive()
        self._memory = MemoryWatch(self._tools.loop, failure_snapshot.snapshot(), plan.attempt, self._tools.send)
        self._look_whether_all_alive()

    def _start_node(self, plan: Plan) -> None:
        command = (*plan.host(self._host).starter, f"--temp-dir={self._folder}")
        # Its workers offer their stacks: a driver that waits says nothing of the worker that hangs.
        shim = {"ALGORUN_SHIM": f"{self._tools.programs.home}/rank_shim.py", "ALGORUN_STACKS": self._tools.run_dir}
        extra = {**plan.starter_environ(plan.host(self._host)), **shim}
        self._starter = self._run(command, what=self.name, cwd=plan.cwd, extra=extra)
        assert self._log is not None
        self._log.aside = True  # Ray prints how to use a cluster by hand

    def heard(self, message: StartDaemon | DaemonEnded | NodeAlive) -> None:
        """A node of the cluster is alive."""
        if isinstance(message, NodeAlive):
            self._nodes.heard(message)
            self._look_whether_all_alive()

    def _look_whether_all_alive(self) -> None:
        if self._waits_for_nodes and self._nodes.all_alive and self._ranks is not None:
            self._waits_for_nodes = False
            try:
                self._ranks.start()
            except UserError as error:
                self.broken(error)

    def signal(self, number: int) -> None:
        """A driver that has not started does not start any more."""
        if self._waits_for_nodes and self._ranks is not None:
            self._waits_for_nodes = False
            self._ranks.give_up()

    @property
    def node(self) -> int:
        return self._starter

    # -- the node ----------------------------------------------------------------------------------------------------

    @property
    def _folder(self) -> Path:
        """Where Ray keeps its session."""
        return Path(self._tools.run_dir, f"r{self._attempt}")

    def _read(self, lines: bytes) -> bytes:
        return self._node.read(lines)

    def _node_alive(self) -> None:
        if self._plan is not None:  # else the head is early: `start` tells of it
            self._tools.send(NodeAlive(self._attempt))

    def _node_failed(self, failure: Failure) -> None:
        self._node_has_failed = True
        if not self._over:
            self._tools.broken(replace(failure, traceback=self.tail))

    def _starter_ended(self, returncode: int) -> None:
        self._pipes.drain()
        self._node.starter_ended(returncode, self.tail)

    def _not_started(self) -> str:
        """The hosts whose nodes are not alive: this one, and on the leader, which starts the driver, all others."""
        leads = self._waits_for_nodes and self._plan is not None and bool(self._plan.host(self._host).ranks)
        missing = self._nodes.missing if leads else []
        missing = [] if self._node.is_alive and not missing else missing or [self._host]
        return f"{'the node' if len(missing) == 1 else 'the nodes'} of {listed(missing)}" if missing else ""

    # -- the end -----------------------------------------------------------------------------------------------------

    def leave(self, *, well: bool) -> None:
        """The job is over: ends the node, and warns if the driver has not used the cluster."""
        super().leave(well=well)
        drove = self._plan is not None and bool(self._plan.host(self._host).ranks)
        if well and drove and not logs.driver_connected(self._folder):
            self._tools.warn(logs.NOT_CONNECTED)
        self._kill_starter()

    def keep_logs(self) -> None:
        """Keeps Ray's own log files of a failed attempt, and of a head that has failed before one."""
        if self._plan is not None or self._node_has_failed:
            logs.keep(self._folder, self._tools.logs / logs.kept_in(self._host, self._attempt))

    def close(self) -> None:
        super().close()
        if self._memory is not None:
            self._memory.close()
