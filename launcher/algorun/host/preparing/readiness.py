"""Gets this host ready for an attempt: fetches the user's code, checks the machine, finds free ports."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

from algorun.common.errors import ExitCode, UserError
from algorun.common.fast_dataclasses import replace
from algorun.control.failures.failure import Failure
from algorun.control.wire.messages import Go, Ready
from algorun.host.engines import registry
from algorun.host.engines.engine import EngineAtWork
from algorun.host.output.logs import RankLog, without_secrets
from algorun.host.output.pipes import Pipes
from algorun.host.tools import Tools
from algorun.job import config as configs
from algorun.job.config import JobConfig
from algorun.job.values import Sourced
from algorun.machine import preflight, probe
from algorun.machine.newest_checkpoint import newest_stamp
from algorun.machine.probe import Machine
from algorun.network.channel import own_address
from algorun.plan import agreement, cluster, plan, simple_sagemaker_env
from algorun.plan.plan import Plan
from algorun.timing.clock import CHECK, GATE, PREPARE, PROGRAM, Clock

from . import planning
from .entrypoint_options import OptionCheck
from .preparation import Preparation


class Readiness:
    """Every call of `prepare` and `ready` ends in a `Ready` to the hub, or in a failure of this host.

    `config` is the job as far as it is known: the program only once its code is here. `machine` and `programs` may change as
    well: the job may install another mpirun, or have an environment of its own. `engine` is that of the attempt that follows,
    None before the first call of `ready`.
    """

    def __init__(self, tools: Tools, config: JobConfig, machine: Machine, clock: Clock) -> None:
        self.config, self.machine, self.programs = config, machine, tools.programs
        self.engine: EngineAtWork | None = None
        self._tools, self._clock = tools, clock
        self._host = config.resources.current_host
        self._pipes = Pipes(tools.loop, tools.console)
        self._preparation: Preparation | None = None
        self._options = OptionCheck(tools, self._cannot_start)
        self._source = ""  # checksum of the fetched code
        self._warned = False
        self._held: int | None = None  # the descriptor that keeps the job's own environment

    def prepare(self) -> bool:
        """Starts the process that fetches code, installs it and unpacks channels. False if there is nothing to do."""
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
            self._tools.broken(Failure("setup", self._host, error.code, str(error)))
            return False
        self._tools.owner.adopt()
        self._mark(PREPARE)
        return True

    def is_preparation(self, pid: int) -> bool:
        return self._preparation is not None and pid == self._preparation.pid

    def is_check(self, pid: int) -> bool:
        return pid == self._options.pid

    def checked(self, returncode: int) -> None:
        """The check of the entrypoint's options is over."""
        self._options.ended(returncode)

    def when_options_are_right(self, ranks: int, then: Callable[[], None]) -> None:
        """Calls `then` once the entrypoint's options suit this many ranks; the supervisor hears if they don't."""

        def start() -> None:
            self._mark(PROGRAM)
            then()

        self._mark(CHECK)
        self._options.when_right(ranks, start)

    def _cannot_start(self, error: UserError) -> None:
        self._tools.broken(Failure.of(error, self._host))

    def _mark(self, cause: str) -> None:
        self._clock.mark(self._tools.loop.now(), cause)

    def prepared(self, returncode: int) -> None:
        """The preparation has ended: goes on to `ready`, or fails with the last lines that it printed."""
        assert self._preparation is not None
        self._pipes.drain()
        found = self._preparation.ended(returncode)
        self._clock.divide(self._tools.loop.now(), PREPARE, found.moments)
        if found.error:
            self._tools.broken(Failure("setup", self._host, found.code, found.error, traceback=found.tail))
        else:
            self._source = found.source
            if found.environment:
                self._work_in(found.environment)
            self.ready()

    def _work_in(self, environment: str) -> None:
        """From now on everything that this host starts belongs to the job's own environment."""
        from algorun.job import own_environment  # imported late: most jobs have none

        self._held = own_environment.hold(environment)
        self.programs = replace(self.programs, python=own_environment.python_of(environment))
        os.environ.update(own_environment.variables(environment, os.environ))

    def ready(self) -> None:
        """Tells the hub what this host carries, or why it cannot run the job."""
        try:
            if self.config.setup is not None:
                self.config = configs.prepared(self.config)
            self._make_state_folder()
            self._options.start(self.config.entry, self.programs.python)
            is_first = self.engine is None
            if self.engine is not None:
                self.engine.close()  # of an attempt that never began
            self.engine = registry.at_work(self._tools, self.config)
            self.machine = self.engine.needs(self.machine, self.programs.python)
            slots = cluster.own_slots(self.config, self.machine)
            unfit = self._unfit(slots)
            if unfit:
                self._tools.broken(Failure("preflight", self._host, ExitCode.PREFLIGHT, unfit))
                return
            ready = Ready(slots.value, agreement.at_the_start(self.config, self.machine, self._source, slots.value))
            ready = self.engine.ready(self._with_ports(ready), own_address(self.config, self.machine))
            if self.config.launch.restarts:
                ready = replace(ready, newest=newest_stamp(self.config.paths.checkpoints, self.config.paths.model))
            if is_first:
                self.engine.before_gate(ready, self.planned)
        except UserError as error:
            self._cannot_start(error)
        else:
            self._tools.send(ready)
            self._mark(GATE)

    def planned(self, go: Go) -> Plan:
        """The plan that every host makes of the same `go`. Raises UserError."""
        return planning.planned(self.config, self.machine, self.programs, go)

    def _with_ports(self, ready: Ready) -> Ready:
        """With free ports of this host, if ranks need them: of rank 0's host for all ranks, and TensorFlow's. Raises
        UserError."""
        hosts = self.config.resources.hosts
        # Addresses that are given may be of one machine: those of simulated hosts are.
        part = (hosts.index(self._host), len(hosts)) if self.config.control.addresses else (0, 1)
        if self._host == plan.first_host(self.config):
            from algorun.common.free_ports import free_ports

            address = plan.offline(self.config).master_addr.value
            port, engine_port, jax_port = free_ports(own_address(self.config, self.machine), 3, part)
            ready = replace(ready, master_addr=address, master_port=port, engine_port=engine_port, jax_port=jax_port)
        if self.config.launch.tf_config and self._host not in self.config.launch.standalone:
            from algorun.common.free_ports import free_row

            taken = (ready.master_port, ready.engine_port, ready.jax_port)
            ready = replace(ready, tf_port=free_row(own_address(self.config, self.machine), ready.slots, taken, part))
        return ready

    def _make_state_folder(self) -> None:
        """Makes the folder for the state of this host, for programs that rely on it. Raises UserError."""
        if not simple_sagemaker_env.needs_instance_state(self.config):
            return
        folder = self.config.input.state_of(self._host)
        try:
            os.makedirs(folder, exist_ok=True)
        except (OSError, ValueError) as error:  # ValueError: half of a surrogate pair
            raise UserError(
                simple_sagemaker_env.INSTANCE_STATE,
                f"{folder} cannot be created: {error}",
                fix="set SSM_STATE to a folder in which the job may write",
            ) from None

    def kill(self) -> None:
        """Ends a preparation or a check under way."""
        self._options.kill()
        if self._preparation is not None:
            self._preparation.kill()

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
        self._options.close()
        self._pipes.close()
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _unfit(self, slots: Sourced[int]) -> str:
        """Why this machine cannot run the job, "" if it can. Prints other findings as warnings, once."""
        paths, hosts = self.config.paths, len(self.config.resources.hosts)
        written = [probe.folder(str(path)) for path in (paths.model, paths.output)] if paths.base.is_dir() else []
        kept = probe.folder(str(paths.checkpoints)) if written else None
        found = preflight.examine(self.machine, slots, written, kept, hosts=hosts)
        if self.config.warning and not self._warned:
            self._tools.warn(self.config.warning)
        for each in found:
            if each.state == "warn" and not self._warned:
                self._tools.warn(str(each))
        self._warned = True
        return " | ".join(str(each) for each in found if each.state == "fail")
