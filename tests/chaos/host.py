"""One host: namespaces, a control group, folders and disks of its own, and the supervisor that runs in them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import ROOT

from .cgroup import Cgroup
from .network import Network

GONE_S = 1.0  # for the kernel to take down what has been killed
SHM_MB = 256
MIB = 1 << 20
TORCHS_OWN = "torchinductor_"  # in /tmp, whoever starts it


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What one host has of its own."""

    command: Sequence[str] | None = None
    """instead of the job's; empty where this host waits for another one to start something on it"""
    environ: Mapping[str, str] = field(default_factory=dict)
    shm_mb: int = SHM_MB
    disk_mb: int = 0
    """size of the checkpoint disk; 0 for the machine's own"""
    memory_mb: int = 0
    memlock: int = 0
    efa: bool = False
    knows: tuple[str, ...] = ()
    """hosts whose names resolve; empty for all"""
    instead: Mapping[str, str] = field(default_factory=dict)
    """contents of files of this machine as this host has them"""


class Host:
    """One host: its folders below `base`, and its supervisor once that is started."""

    def __init__(self, network: Network, name: str, base: Path, setup: Setup) -> None:
        self.name, self.base, self.setup, self._network = name, base, setup, network
        network.add(name)
        self.ml, self.tmp, self.shm, self.home = (base / part for part in ("ml", "tmp", "shm", "home"))
        for folder in (self.ml / "checkpoints", self.ml / "input/config", self.tmp, self.shm, self.home):
            folder.mkdir(parents=True)
        self.log = base / "log.txt"
        self.log.touch()
        self.cgroup = Cgroup(f"{network.name}-{name}", setup.memory_mb * MIB)
        self.mounted: list[Path] = []
        self._tmpfs(self.shm, setup.shm_mb)
        if setup.disk_mb:
            self._tmpfs(self.ml / "checkpoints", setup.disk_mb)
        self.process: subprocess.Popen[bytes] | None = None
        self.left_at = 0.0
        self._waiter = threading.Thread(target=self._wait, daemon=True)

    def _tmpfs(self, folder: Path, mib: int) -> None:
        argv = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", self._network.name, str(folder)]
        subprocess.run(argv, check=True, timeout=30)
        self.mounted.append(folder)

    def configure(self, hosts: Sequence[str], hyperparameters: Mapping[str, str]) -> None:
        """Writes the job's files, and those that this host has instead of the machine's."""
        config = self.ml / "input/config"
        resources = {"hosts": list(hosts), "current_host": self.name, "network_interface_name": "eth0"}
        (config / "resourceconfig.json").write_text(json.dumps(resources))
        if hyperparameters:
            (config / "hyperparameters.json").write_text(json.dumps(dict(hyperparameters)))
        (self.base / "hosts").write_text("127.0.0.1 localhost\n")
        (self.base / "resolv.conf").write_text("")
        for name in self.setup.knows or hosts:
            self.learn(name)
        binds = [(self.tmp, "/tmp"), (ROOT, str(ROOT))]  # the checkout may lie in /tmp or /mnt
        binds += [(self.ml, "/mnt/ml"), (self.shm, "/dev/shm"), (self.home, "/mnt/home")]
        binds += [(self.base / "hosts", "/etc/hosts"), (self.base / "resolv.conf", "/etc/resolv.conf")]
        if self.setup.disk_mb:
            binds += [(self.ml / "checkpoints", "/mnt/ml/checkpoints")]
        if (seen := self.cgroup.as_seen_inside) is not None:
            binds += [seen]
        for index, (target, content) in enumerate(self.setup.instead.items()):
            (self.base / f"instead-{index}").write_text(content)
            binds += [(self.base / f"instead-{index}", target)]
        settings = {
            "cgroups": [str(folder) for folder in self.cgroup.folders],
            "hostname": self.name,
            "binds": [[str(source), target] for source, target in binds],
            "memlock": self.setup.memlock,
            "efa": self.setup.efa,
        }
        (self.base / "settings.json").write_text(json.dumps(settings))

    def learn(self, name: str) -> None:
        """From now on this name resolves here (the file is written in place: it is mounted)."""
        with open(self.base / "hosts", "a") as file:
            file.write(f"{self._network.addresses[name]} {name}\n")

    def forget(self) -> None:
        """From now on no name resolves here."""
        (self.base / "hosts").write_text("127.0.0.1 localhost\n")

    def argv(self, command: Sequence[str]) -> list[str]:
        """The command line that runs a command as this host."""
        own = ["unshare", "--mount", "--uts", "--ipc", "--propagation", "private", sys.executable, "-I"]
        mine = f"--mount=/proc/{os.getpid()}/ns/mnt"  # other hosts may run this too: out of theirs first
        network = f"--net=/run/netns/{self._network.namespace(self.name)}"
        return [
            "nsenter", mine, network, *own, str(Path(__file__).parent / "inside.py"),
            str(self.base / "settings.json"), *command,
        ]  # fmt: skip

    def start(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        with open(self.log, "ab") as out:
            self.process = subprocess.Popen(
                self.argv(command), env=dict(environ), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        self._waiter.start()

    def _wait(self) -> None:
        assert self.process is not None
        self.process.wait()
        self.left_at = time.monotonic()

    def joined(self, timeout_s: float) -> bool:
        """True once the supervisor has left."""
        if self.process is None:
            return True
        self._waiter.join(max(0.0, timeout_s))
        return not self._waiter.is_alive()

    @property
    def code(self) -> int:
        assert self.process is not None
        code = self.process.returncode
        return 128 - code if code < 0 else code

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def failure(self) -> str:
        path = self.ml / "output/failure"
        return path.read_text() if path.exists() else ""

    @property
    def closing_line(self) -> str:
        lines = self.text.strip().splitlines()
        return lines[-1] if lines else ""

    def listeners(self) -> list[tuple[str, int, str]]:
        return self._network.listeners(self.name)

    def leftovers(self) -> list[str]:
        """What stays of a host that has left: processes, ports, files in /tmp, shared memory."""
        deadline = time.monotonic() + GONE_S
        while (found := self._leftovers()) and time.monotonic() < deadline:
            time.sleep(0.02)  # a killed process of many threads ends one by one, and its ports with the last
        return [f"{self.name}: {each}" for each in found]

    def _leftovers(self) -> list[str]:
        found = [f"process {command[:150]}" for command in self.cgroup.commands()]
        found += [f"port {address}:{port}" for address, port, _ in self.listeners()]
        known = (TORCHS_OWN, ROOT.parts[2]) if ROOT.is_relative_to("/tmp") else (TORCHS_OWN,)
        found += [f"/tmp/{name}" for name in os.listdir(self.tmp) if not name.startswith(known)]
        return found + [f"/dev/shm/{name}" for name in os.listdir(self.shm)]

    def close(self) -> None:
        self.cgroup.remove()
        for folder in self.mounted:
            with contextlib.suppress(subprocess.CalledProcessError):
                subprocess.run(["umount", str(folder)], check=True, timeout=30)
