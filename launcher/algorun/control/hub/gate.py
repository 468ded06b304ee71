"""Who has come, who is ready, and whether they agree. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from algorun.common.errors import ExitCode
from algorun.control.failures.failure import SHOWN_HOSTS, Failure, listed
from algorun.control.wire.messages import Go, Hello, Ready
from algorun.job.limits import Limits

from .rivals import Rivals
from .waiting import Waiting


class Gate:
    """What the hosts have said at the gate. `hosts` is the file's order; the first one is the leader.

    `deadline` is the end of the wait for hosts to come and get ready, and then that of every restart.
    """

    def __init__(self, now: float, hosts: Sequence[str], limits: Limits) -> None:
        self.hosts = tuple(hosts)
        self.hellos: dict[str, Hello] = {}
        self.ready: dict[str, Ready] = {}
        self.slots = 0  # of all hosts that are ready; a hub asks for it at every tick
        self.rivals = Rivals(hosts[0])
        self.deadline = now + limits.gate_s
        self._limits = limits
        self._preparing = False  # all hosts came, and have had more time to get ready
        self._unproven: set[str] = set()
        self._waiting = Waiting(now)

    def expects(self, host: str) -> bool:
        """True for a host of this job."""
        return host in self.hosts

    def refusal(self, host: str) -> str:
        """Why this host cannot come, "" if it can."""
        if host not in self.hosts:
            return f"{host} is not one of the job's hosts"
        return f"{host} has said hello already" if host in self.hellos else self.rivals.refusal(host)

    def hello(self, now: float, hello: Hello) -> None:
        """A host has come."""
        self.hellos[hello.host] = hello
        if self.all_came:
            self._waiting = Waiting(now)

    def is_ready(self, now: float, host: str, ready: Ready) -> None:
        """A host could start, or start again."""
        if not self.ready:
            self._waiting = Waiting(now)
        self.slots += ready.slots - (self.ready[host].slots if host in self.ready else 0)
        self.ready[host] = ready

    def wait_again(self, now: float) -> None:
        """A restart: all hosts have to get ready once more."""
        self.ready.clear()
        self.slots = 0
        self.deadline = now + self._limits.kill_s + self._limits.restart_s

    def overdue(self, now: float) -> Failure | None:
        """The deadline has passed: names who is missing. None where all hosts came: they get more time to prepare."""
        limits = self._limits
        if self.all_came and not self._preparing:
            self._preparing, self.deadline = True, now + limits.prepare_s + limits.blame_s
            return None
        return self._absent(limits.gate_s + (limits.prepare_s if self._preparing else 0.0))

    def unproven(self, host: str) -> None:
        """A peer claimed to be this host without the job's token. The job goes on; a failure of the gate names the host."""
        if host in self.hosts:
            self._unproven.add(host)

    def mismatch(self, newest: str) -> Failure | None:
        """The first difference between what a host has said and what the leader has. `newest` has just spoken."""
        return self._compare(newest, self.hellos) or self._compare(newest, self.ready)

    @property
    def all_came(self) -> bool:
        return len(self.hellos) == len(self.hosts)

    @property
    def all_ready(self) -> bool:
        return len(self.ready) == len(self.hosts)

    def go(self, attempt: int) -> Go:
        """What all hosts need to start: everybody's slots, and where rank 0 will listen."""
        first = next((each for each in map(self.ready.__getitem__, self.hosts) if each.master_port), None)
        return Go(
            attempt=attempt,
            master_addr=first.master_addr if first else "",
            master_port=first.master_port if first else 0,
            slots={host: self.ready[host].slots for host in self.hosts},
            engine_port=first.engine_port if first else 0,
            jax_port=first.jax_port if first else 0,
            tf_ports={host: self.ready[host].tf_port for host in self.hosts if self.ready[host].tf_port},
            addresses={host: self.ready[host].address for host in self.hosts if self.ready[host].address},
            secret=self.ready[self.hosts[0]].secret,
        )

    @property
    def missing(self) -> list[str]:
        """Hosts that have not come."""
        return [host for host in self.hosts if host not in self.hellos]

    @property
    def unready(self) -> list[str]:
        """Hosts that are not ready."""
        return [host for host in self.hosts if host not in self.ready]

    def waits(self, now: float) -> str:
        """The line about hosts that the others wait for, "" where none is due: while all prepare, none is."""
        missing, what = self.missing, ""
        if not missing and self.ready:
            missing, what = self.unready, " to get ready"
        if not missing or len(self.hosts) == 1 or not self._waiting.due(now):
            return ""
        return f"waiting for {listed(missing)}{what} (of {len(self.hosts)} hosts)"

    def _absent(self, limit_s: float) -> Failure:
        missing, text = self.missing, f"hosts missing after {limit_s:g} s: "
        if not missing:
            missing, text = self.unready, f"hosts not ready after {limit_s:g} s: "
        text += listed(missing)
        came = [host for host in missing if host in self._unproven][:SHOWN_HOSTS]
        if came:
            text += f" ({', '.join(came)} came with another token: ALGORUN_TOKEN, or the training job's ARN)"
        return Failure("gate", self.hosts[0], ExitCode.GATE, text)

    def _compare(self, newest: str, statements: Mapping[str, Hello] | Mapping[str, Ready]) -> Failure | None:
        leader = self.hosts[0]
        if leader not in statements or newest not in statements:
            return None
        mine = statements[leader].digest
        for host in statements if newest == leader else (newest,):
            digest = statements[host].digest
            if digest == mine:
                continue
            for key in sorted({*mine, *digest}):
                ours, theirs = mine.get(key, "absent"), digest.get(key, "absent")
                if ours != theirs:
                    text = f"{key} differs: {ours} on {leader}, {theirs} on {host}"
                    return Failure("mismatch", host, ExitCode.CONFIGURATION, text)
        return None
