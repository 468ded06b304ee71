"""Hosts of a job as containers that outlive it: the launcher is started in them, so what it leaves behind can be seen."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from containers import LABEL, PROGRAMS, docker, give_back, opt_ml

LIFE_S = 1800  # of a container whose test was killed
# Processes but this one, listening ports, and what a job may leave in files and in shared memory, also in deleted files.
STATE = """
import json, os
shm = os.statvfs("/dev/shm")
def command(pid):
    try:
        return open(f"/proc/{pid}/cmdline").read().replace("\\0", " ").strip()
    except OSError:
        return ""
pids = [pid for pid in os.listdir("/proc") if pid.isdigit() and pid != str(os.getpid())]
rows = [line.split() for file in ("tcp", "tcp6") for line in open(f"/proc/net/{file}").readlines()[1:]]
print(json.dumps({
    "processes": sorted(filter(None, map(command, pids))),
    "listeners": sorted(row[1] for row in rows if row[3] == "0A"),
    "shared memory": [str((shm.f_blocks - shm.f_bfree) * shm.f_frsize)],
    "files": sorted(f"{folder}/{name}" for folder in ("/dev/shm", "/tmp") for name in os.listdir(folder)),
}))
"""


@dataclass(slots=True)
class End:
    """How the launcher ended on one host."""

    code: int
    log: str
    failure: str
    """content of /opt/ml/output/failure, "" without"""


@dataclass(slots=True)
class SleepingHosts:
    """`options` of `docker run`, and the images, by host; what all hosts have is under ""."""

    folder: Path
    image: str
    names: tuple[str, ...] = ("algo-1", "algo-2")
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    """the instance group of each host"""
    run: str = field(default_factory=lambda: f"algorun-test-{uuid.uuid4().hex[:10]}")
    jobs: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def container(self, name: str) -> str:
        return f"{self.run}-{name}"

    def start(self) -> None:
        """Starts the containers, which sleep. Their first process collects orphans."""
        docker("network", "create", "--label", f"{LABEL}={self.run}", self.run)
        for name in self.names:
            root = opt_ml.write_host(self.folder, name, self.names, {})
            shutil.copy(PROGRAMS / "ray_driver.py", root / "code" / "driver.py")
            self._write_groups(root)
            docker(
                *("run", "--detach", "--init", "--name", self.container(name), "--hostname", name),
                *("--label", f"{LABEL}={self.run}", "--network", self.run, "--network-alias", name),
                *("--volume", f"{root}:/opt/ml", "--workdir", "/opt/ml/code", "--entrypoint", "sleep"),
                *self.options.get("", ()), *self.options.get(name, ()), self.images.get(name, self.image), str(LIFE_S),
            )  # fmt: skip

    def _write_groups(self, root: Path) -> None:
        if self.groups:
            file = root / "input" / "config" / "resourceconfig.json"
            groups = [
                {"instance_group_name": group, "instance_type": "ml.c5.xlarge", "hosts": [name]}
                for name, group in self.groups.items()
            ]
            file.write_text(json.dumps({**json.loads(file.read_text()), "instance_groups": groups}))

    def inside(self, name: str, *argv: str, limit_s: float = 120.0) -> str:
        """Runs a command on a host and returns what it printed."""
        return docker("exec", self.container(name), *argv, limit_s=limit_s)

    def launch(self, mode: str, *names: str, **environ: str) -> None:
        """Starts the launcher on these hosts, else on all; its process id is in /opt/ml/pid."""
        settings = [word for key, value in environ.items() for word in ("--env", f"{key}={value}")]
        command = f"echo $$ > /opt/ml/pid; exec algorun run --engine ray driver.py {mode}"
        for name in names or self.names:
            argv = ["docker", "exec", *settings, self.container(name), "sh", "-c", command]
            with (self.folder / f"{name}.log").open("w") as log:
                self.jobs[name] = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def signal(self, name: str, number: int) -> None:
        """A signal to the launcher on one host."""
        self.inside(name, "sh", "-c", f"kill -{number} $(cat /opt/ml/pid)")

    def wait_for(self, text: str, limit_s: float = 120.0) -> None:
        """Until the leader's log has this text."""
        deadline = time.monotonic() + limit_s
        while text not in self.log(self.names[0]):
            if self.jobs[self.names[0]].poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"no {text!r}\n{self.log(self.names[0])[-4000:]}")
            time.sleep(0.1)

    def end(self, limit_s: float = 180.0) -> dict[str, End]:
        """How the launcher ended on every host; `limit_s` is for all together."""
        deadline = time.monotonic() + limit_s
        found = {}
        for name, job in self.jobs.items():
            code = job.wait(max(1.0, deadline - time.monotonic()))
            file = self.folder / name / "output" / "failure"
            found[name] = End(code, self.log(name), file.read_text() if file.exists() else "")
        return found

    def state(self, name: str) -> dict[str, list[str]]:
        """What runs, listens and lies around on a host."""
        found: dict[str, list[str]] = json.loads(self.inside(name, "python3", "-I", "-c", STATE))
        return found

    def states(self) -> dict[str, dict[str, list[str]]]:
        return {name: self.state(name) for name in self.names}

    def close(self) -> None:
        for name in self.names:
            docker("rm", "--force", "--volumes", self.container(name), ok=False)
        for job in self.jobs.values():
            job.kill()
            job.wait()
        docker("network", "rm", self.run, ok=False)
        give_back(self.folder)


@contextlib.contextmanager
def sleeping(hosts: SleepingHosts) -> Iterator[SleepingHosts]:
    """Hosts that are gone afterwards."""
    try:
        hosts.start()
        yield hosts
    finally:
        hosts.close()
