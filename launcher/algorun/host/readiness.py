"""This host gets ready for an attempt: the user's code is here, the machine will do, ports are free."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import replace

from algorun.control.failure import Failure
from algorun.control.messages import Ready
from algorun.errors import ExitCode, UserError
from algorun.job import config as configs
from algorun.job.config import JobConfig
from algorun.job.values import Sourced
from algorun.machine import openmpi, preflight, probe
from algorun.machine.newest_checkpoint import newest_stamp
from algorun.machine.probe import Machine
from algorun.network.channel import own_address
from algorun.plan import agreement, cluster, plan

from .entrypoint_options import OptionCheck
from .logs import RankLog, without_secrets
from .output import Pipes
from .preparation import Preparation
from .tools import Tools


class Readiness:
    """`on_ready(ready)` or `on_failed(failure)` answer every `prepare` and `ready`; `warn` hears the rest.

    `config` is the job as far as it is known: its program only once its code is here. `machine` likewise: the job may
    install another mpirun.
    """

    def __init__(
        self,
        tools: Tools,
        config: JobConfig,
        machine: Machine,
        on_ready: Callable[[Ready], None],
        on_failed: Callable[[Failure], None],
        warn: Callable[[str], None],
    ) -> None:
        self.config = config
        self._tools = tools
        self._on_ready, self._on_failed, self._warn = on_ready, on_failed, warn
        self._host = config.resources.current_host
        self._pipes = Pipes(tools.loop, tools.console)
        self._preparation: Preparation | None = None
        self.machine = machine
        self._options = OptionCheck(tools, self._cannot_start)
        self._source = ""  # checksum of the fetched code
        self._warned = False

    def prepare(self) -> bool:
        """Fetches the user's code and installs what it requires; True where that takes time, and `prepared` follows."""
        setup = self.config.setup
        if setup is None:
            self.ready()
            return False
        log = RankLog(
            f"setup {self._host}", f"setup-{self._host}.log", self._tools.logs, self._tools.console, without_secrets
        )
        into = functools.partial(self._pipes.into, log)
        self._preparation = Preparation(self._tools.owner, log, into, self._tools.run_dir)
        try:
            self._preparation.start(setup, self._tools.programs.python)
        except UserError as error:
            self._on_failed(Failure("setup", self._host, error.code, str(error)))
            return False
        self._tools.owner.adopt()
        return True

    def is_preparation(self, pid: int) -> bool:
        return self._preparation is not None and pid == self._preparation.pid

    def is_check(self, pid: int) -> bool:
        return pid == self._options.pid

    def checked(self, returncode: int) -> None:
        """The check of the entrypoint's options is over."""
        self._options.ended(returncode)

    def when_options_are_right(self, ranks: int, then: Callable[[], None]) -> None:
        """Calls `then` once the entrypoint's options suit this many ranks; `on_failed` hears if they don't."""
        self._options.when_right(ranks, then)

    def _cannot_start(self, error: UserError) -> None:
        self._on_failed(Failure("configuration", self._host, error.code, str(error)))

    def prepared(self, returncode: int) -> None:
        """The preparation is over: ready, or the reason why not, with the last lines of what it printed."""
        assert self._preparation is not None
        self._pipes.drain()
        found = self._preparation.ended(returncode)
        if found.error:
            self._on_failed(Failure("setup", self._host, found.code, found.error, traceback=found.tail))
        else:
            self._source = found.source
            self.ready()

    def ready(self) -> None:
        """This host could start, or start again: what it carries."""
        try:
            if self.config.setup is not None:
                self.config = configs.prepared(self.config)
            self._options.start(self.config.entry)
            if self.config.launch.engine.value.needs_openmpi and self.machine.openmpi is None:
                self.machine = replace(self.machine, openmpi=openmpi.usable(probe.openmpi(os.environ)))
            slots = cluster.own_slots(self.config, self.machine)
            unfit = self._unfit(slots)
            if unfit:
                self._on_failed(Failure("preflight", self._host, ExitCode.PREFLIGHT, unfit))
                return
            ready = Ready(slots.value, agreement.at_the_start(self.config, self.machine, self._source, slots.value))
            if self._host == plan.first_host(self.config):
                from algorun.network.addresses import free_ports

                address = plan.offline(self.config).master_addr.value
                port, engine_port = free_ports(own_address(self.config, self.machine), 2)
                ready = replace(ready, master_addr=address, master_port=port, engine_port=engine_port)
            if self.config.launch.restarts:
                ready = replace(ready, newest=newest_stamp(self.config.paths.checkpoints, self.config.paths.model))
        except UserError as error:
            self._cannot_start(error)
        else:
            self._on_ready(ready)

    def kill(self) -> None:
        """Ends a preparation or a check under way."""
        self._options.kill()
        if self._preparation is not None:
            self._preparation.kill()

    def close(self) -> None:
        self._options.close()
        self._pipes.close()

    def _unfit(self, slots: Sourced[int]) -> str:
        """Why this machine cannot run the job, "" if it can; the rest is warned of once."""
        paths, hosts = self.config.paths, len(self.config.resources.hosts)
        written = [probe.folder(str(path)) for path in (paths.model, paths.output)] if paths.base.is_dir() else []
        kept = probe.folder(str(paths.checkpoints)) if written else None
        found = preflight.examine(self.machine, slots, written, kept, hosts=hosts)
        for each in found:
            if each.state == "warn" and not self._warned:
                self._warn(str(each))
        self._warned = True
        return " | ".join(str(each) for each in found if each.state == "fail")
