"""A network of hosts on one machine: a network namespace for each, and one more with a bridge that joins them."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
COMMAND_S = 30.0
SUBNET = "10.77.0"
_numbers = itertools.count()


def ip(*argv: str) -> str:
    """Runs iproute2's `ip`; a failure shows its error."""
    return _run("ip", *argv)


def tc(*argv: str) -> str:
    """Runs iproute2's `tc`; a failure shows its error."""
    return _run("tc", *argv)


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr.strip()}"
    return done.stdout


def namespaces() -> list[str]:
    """All named network namespaces of this machine."""
    return [line.split()[0] for line in ip("netns", "list").splitlines() if line.strip()]


class Network:
    """Names are unique on this machine. `close` removes all of it."""

    def __init__(self) -> None:
        self.name = f"algorun-chaos-{os.getpid()}-{next(_numbers)}"
        self.addresses: dict[str, str] = {}
        self.switch = f"{self.name}-switch"
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "br0", "up", "type", "bridge")

    def add(self, host: str) -> None:
        """A host with an interface eth0."""
        index = len(self.addresses) + 1
        self.addresses[host] = f"{SUBNET}.{index}"
        namespace = self.namespace(host)
        ip("netns", "add", namespace)
        ip("-n", namespace, "link", "set", "lo", "up")
        ends = ("name", "eth0", "netns", namespace, "type", "veth", "peer", "name", f"p{index}", "netns", self.switch)
        ip("link", "add", *ends)
        ip("-n", self.switch, "link", "set", f"p{index}", "master", "br0", "up")
        ip("-n", namespace, "address", "add", f"{self.addresses[host]}/24", "dev", "eth0")
        ip("-n", namespace, "link", "set", "eth0", "up")

    def namespace(self, host: str) -> str:
        return f"{self.name}-{host}"

    def enter(self, host: str) -> list[str]:
        """The start of a command line that runs in a host's network."""
        return ["nsenter", f"--net=/run/netns/{self.namespace(host)}"]

    def port(self, host: str) -> str:
        """The bridge's end of a host's cable."""
        return f"p{list(self.addresses).index(host) + 1}"

    def cut(self, host: str) -> None:
        """No frame passes any more; the interface still looks well to the host, as behind a dead switch."""
        ip("-n", self.switch, "link", "set", self.port(host), "nomaster")

    def join(self, host: str) -> None:
        """Frames pass again."""
        ip("-n", self.switch, "link", "set", self.port(host), "master", "br0")

    def move(self, host: str) -> None:
        """This host gets another address. Connections from the old one hear nothing any more."""
        old = self.addresses[host]
        new = old.rpartition(".")[0] + ".2" + old.rpartition(".")[2]
        ip(
            "-n", self.namespace(host), "address", "delete", f"{old}/24", "dev", "eth0"
        )  # first: it takes later ones along
        ip("-n", self.namespace(host), "address", "add", f"{new}/24", "dev", "eth0")
        self.addresses[host] = new

    def bad_cable(self, job_helper: Callable[..., str], *words: str) -> None:
        """The bridge becomes a cable of slow_cable.py. `job_helper` starts programs in a host's network."""
        for host in self.addresses:
            self.cut(host)
            job_helper(host, str(PROGRAMS / "no_offload.py"), "eth0")
        job_helper("switch", str(PROGRAMS / "slow_cable.py"), *map(self.port, self.addresses), *words)

    def side_road(self, one: str, other: str, job_helper: Callable[..., str], *words: str) -> None:
        """Frames between these two hosts, and no others, take a cable of slow_cable.py."""
        for host, peer in ((one, other), (other, one)):
            port = f"s{self.port(host)}"
            ends = ("name", "eth1", "netns", self.namespace(host), "type", "veth", "peer", "name", port)
            ip("link", "add", *ends, "netns", self.switch)
            ip("-n", self.switch, "link", "set", port, "up")
            ip("-n", self.namespace(host), "link", "set", "eth1", "up")
            ip("-n", self.namespace(host), "route", "add", f"{self.addresses[peer]}/32", "dev", "eth1")
            job_helper(host, str(PROGRAMS / "no_offload.py"), "eth1")
        job_helper("switch", str(PROGRAMS / "slow_cable.py"), *(f"s{self.port(host)}" for host in (one, other)), *words)

    def limit_rate(self, one: str, other: str, rate: str) -> None:
        """Between these two hosts at most so many bits a second, such as `20mbit`, leave each of them."""
        for host, peer in ((one, other), (other, one)):
            in_host = ("-n", self.namespace(host))
            tc(*in_host, "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb", "default", "1")
            tc(*in_host, "class", "add", "dev", "eth0", "parent", "1:", "classid", "1:1", "htb", "rate", "100gbit")
            tc(*in_host, "class", "add", "dev", "eth0", "parent", "1:", "classid", "1:2", "htb", "rate", rate)
            match = ("match", "ip", "dst", f"{self.addresses[peer]}/32", "flowid", "1:2")
            tc(*in_host, "filter", "add", "dev", "eth0", "parent", "1:", "protocol", "ip", "u32", *match)

    def narrow(self, host: str, mtu: int) -> None:
        """Larger packets of this host are lost without a word, as where path MTU discovery is filtered out; none is joined up."""
        ip("-n", self.namespace(host), "link", "set", "eth0", "gso_max_segs", "1")
        ip("-n", self.switch, "link", "set", self.port(host), "mtu", str(mtu))

    def listeners(self, host: str) -> list[tuple[str, int, str]]:
        """(address, port, process) of all TCP and UDP sockets that wait for others."""
        argv = [*self.enter(host), "ss", "-Hltunp"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=COMMAND_S, check=True)
        found = []
        for line in done.stdout.splitlines():
            _, _, _, _, local, _, *process = line.split(maxsplit=6)
            address, _, port = local.rpartition(":")
            found.append((address.partition("%")[0].strip("[]"), int(port), "".join(process)))
        return found

    def close(self) -> None:
        for namespace in (*map(self.namespace, self.addresses), self.switch):
            if Path("/run/netns", namespace).exists():
                ip("netns", "delete", namespace)
