"""Who has come, who is ready, and whether they agree. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from algorun.errors import ExitCode

from .failure import Failure
from .messages import Go, Hello, Ready

SHOWN_HOSTS = 16  # named in a message


class Gate:
    """What the hosts have said at the gate. `hosts` is the file's order; the first one is the leader."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = tuple(hosts)
        self.hellos: dict[str, Hello] = {}
        self.ready: dict[str, Ready] = {}
        self._unproven: set[str] = set()

    def refusal(self, host: str) -> str:
        """Why this host cannot come, "" if it can."""
        if host not in self.hosts:
            return f"{host} is not one of the job's hosts"
        return f"{host} has said hello already" if host in self.hellos else ""

    def unproven(self, host: str) -> None:
        """Somebody came as this host without the job's token."""
        if host in self.hosts:
            self._unproven.add(host)

    def mismatch(self, newest: str) -> Failure | None:
        """The first difference of what hosts have said, each held against the leader's, once `newest` has spoken."""
        return self._compare(newest, self.hellos) or self._compare(newest, self.ready)

    @property
    def all_came(self) -> bool:
        return len(self.hellos) == len(self.hosts)

    @property
    def all_ready(self) -> bool:
        return len(self.ready) == len(self.hosts)

    @property
    def slots(self) -> int:
        """Of all hosts that are ready."""
        return sum(each.slots for each in self.ready.values())

    def go(self, attempt: int) -> Go:
        """What all hosts need to start: everybody's slots, and where rank 0 will listen."""
        first = next((each for each in map(self.ready.__getitem__, self.hosts) if each.master_port), None)
        return Go(
            attempt=attempt,
            master_addr=first.master_addr if first else "",
            master_port=first.master_port if first else 0,
            slots={host: self.ready[host].slots for host in self.hosts},
            engine_port=first.engine_port if first else 0,
        )

    @property
    def missing(self) -> list[str]:
        """Hosts that have not come."""
        return [host for host in self.hosts if host not in self.hellos]

    def awaited(self) -> str:
        """A line about those that the others wait for, "" where nobody waits: hosts may all prepare for long."""
        missing, what = self.missing, ""
        if not missing and self.ready:
            missing, what = [host for host in self.hosts if host not in self.ready], " to get ready"
        return f"waiting for {listed(missing)}{what} (of {len(self.hosts)} hosts)" if missing else ""

    def absent(self, limit_s: float) -> Failure:
        """The gate has closed: names the hosts that did not come, or did not get ready."""
        missing, what = self.missing, "missing"
        if not missing:
            missing, what = [host for host in self.hosts if host not in self.ready], "not ready"
        text = f"hosts {what} after {limit_s:g} s: {listed(missing)}"
        came = [host for host in missing if host in self._unproven][:SHOWN_HOSTS]
        if came:
            text += f" ({', '.join(came)} came with another token: ALGORUN_TOKEN, or the training job's ARN)"
        return Failure("gate", self.hosts[0], ExitCode.GATE, text)

    def _compare(self, newest: str, said: Mapping[str, Hello] | Mapping[str, Ready]) -> Failure | None:
        leader = self.hosts[0]
        if leader not in said or newest not in said:
            return None
        mine = said[leader].digest
        for host in said if newest == leader else (newest,):
            digest = said[host].digest
            if digest == mine:
                continue
            for key in sorted({*mine, *digest}):
                ours, theirs = mine.get(key, "absent"), digest.get(key, "absent")
                if ours != theirs:
                    text = f"{key} differs: {ours} on {leader}, {theirs} on {host}"
                    return Failure("mismatch", host, ExitCode.CONFIGURATION, text)
        return None


def listed(hosts: Sequence[str]) -> str:
    """Host names for a message; of many the first ones."""
    more = len(hosts) - SHOWN_HOSTS
    return ", ".join(hosts[:SHOWN_HOSTS]) + (f" and {more} more" if more > 0 else "")
