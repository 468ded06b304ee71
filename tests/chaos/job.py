"""A job on the hosts of a network: starts them, waits with deadlines, and sees whether anything stayed behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.conftest import clean_environ

from .host import Host, Setup
from .network import Network

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
HOSTS = ("algo-1", "algo-2")
CONTROL_PORT = 29600
START_S = 30.0  # for namespaces and mounts
UP_S = 180.0  # four interpreters with torch for each of the jobs that begin together


class Job:
    """Hosts that are to run one program under one engine."""

    def __init__(
        self,
        base: Path,
        engine: str,
        command: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        setups: Mapping[str, Setup] | None = None,
        hyperparameters: Mapping[str, str] | None = None,
        hosts: Sequence[str] = HOSTS,
    ) -> None:
        self.base, self.engine, self.command = base, engine, list(command)
        self.environ = dict(environ or {})
        self.measured: float | None = None  # seconds, where the end of the last host is not what counts
        self.fault_at = 0.0
        self._helpers: list[subprocess.Popen[bytes]] = []
        self.network = Network()
        self.hosts: dict[str, Host] = {}
        try:
            for name in hosts:
                self.hosts[name] = Host(self.network, name, base / name, (setups or {}).get(name, Setup()))
            for host in self.hosts.values():
                host.configure(hosts, hyperparameters or {})
        except BaseException:
            self.close()
            raise

    def start(self, *names: str) -> float:
        """Starts these hosts, all by default; returns when the last one's launcher began."""
        chosen = [host for name in names or self.hosts if (host := self.hosts[name]).setup.command != []]
        for host in chosen:
            base = {"SAGEMAKER_BASE_DIR": "/mnt/ml", "HOME": "/mnt/home", "ALGORUN_SLOTS": "2"}
            environ = clean_environ(
                **(base | {"ALGORUN_ENGINE": self.engine} | self.environ | dict(host.setup.environ))
            )
            for unwanted in ("TMPDIR", "PYTHONPATH"):
                environ.pop(unwanted, None)
            host.start(host.setup.command or self.command, environ)
        deadline = time.monotonic() + START_S
        while not all((host.ml / "started").exists() for host in chosen):
            assert time.monotonic() < deadline, f"not in {START_S:g} s: all hosts are made\n{self.show()}"
            time.sleep(0.01)
        return max(float((host.ml / "started").read_text()) for host in chosen)

    def wait_for(self, pattern: str, count: int = 4, timeout_s: float = UP_S) -> None:
        """Until the logs together have so many matches."""
        self.until(
            lambda: sum(len(re.findall(pattern, host.text)) for host in self.hosts.values()) >= count,
            f"{count} times {pattern!r}", timeout_s,
        )  # fmt: skip

    def until(self, true: Callable[[], object], what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        started = [host for host in self.hosts.values() if host.process]
        while True:
            left = all(host.joined(0) for host in started)  # asked before: both may come true between the two looks
            if true():
                return
            assert not left, f"all hosts left before: {what}\n{self.show()}"
            assert time.monotonic() < deadline, f"not in {timeout_s:g} s: {what}\n{self.show()}"
            time.sleep(0.02)

    def inject(self, action: str, host: str = "algo-2", local_rank: int = 1) -> float:
        """Asks one rank for a fault; returns the time at which it began it."""
        folder = self.hosts[host].ml
        (folder / ".inject").write_text(f"{local_rank} {action}")
        os.replace(folder / ".inject", folder / "inject")
        self.until((folder / "injected-0").exists, f"rank {local_rank} of {host}: {action}", 30)
        return float((folder / "injected-0").read_text())

    def end(self, limit_s: float, names: Sequence[str] = ()) -> float:
        """Waits for these hosts, all by default, until an absolute time; returns when the last one left."""
        waited = [self.hosts[name] for name in names or self.hosts]
        still = [host.name for host in waited if not host.joined(limit_s - time.monotonic())]
        assert not still, f"still there: {still}\n{self.show()}"
        return max(host.left_at for host in waited)

    def helper(self, host: str, program: str, *arguments: str) -> str:
        """Starts a program of the test in a host's network, no part of the host; returns the first line it prints."""
        argv = [*self.network.enter(host), sys.executable, "-I", "-u", program, *arguments]
        child = subprocess.Popen(argv, env=clean_environ(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self._helpers.append(child)
        assert child.stdout is not None
        return child.stdout.readline().decode()

    def end_helpers(self) -> None:
        for child in self._helpers:
            child.kill()
            child.communicate(timeout=10)
        self._helpers.clear()

    def empty_at(self, names: Sequence[str], deadline: float) -> float | None:
        """When no process was left on these hosts; None if some still are at the deadline."""
        while any(self.hosts[name].cgroup.pids() for name in names):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.02)
        return time.monotonic()

    def leftovers(self) -> list[str]:
        """What stays of all hosts; the test's own helpers end first."""
        self.end_helpers()
        return [each for host in self.hosts.values() for each in host.leftovers()]

    def show(self) -> str:
        return "\n".join(
            f"--- {host.name}: {host.process and host.process.returncode}\n{host.text[-2500:]}"
            for host in self.hosts.values()
        )

    def close(self) -> None:
        """Ends and removes everything."""
        self.end_helpers()
        for host in self.hosts.values():
            host.close()
        self.network.close()


def algorun(*arguments: str) -> list[str]:
    """The command line of algorun."""
    return [sys.executable, "-I", "-m", "algorun", *arguments]


def training(*arguments: str) -> list[str]:
    """algorun runs the training program of this suite."""
    return algorun("run", str(PROGRAMS / "training.py"), *arguments)
