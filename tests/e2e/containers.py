"""Drives Docker for the tests: argv lists, a deadline on every wait, everything labelled and removed afterwards."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
IMAGE = os.environ.get("ALGORUN_TEST_IMAGE", "algorun:cpu")
LABEL = "org.algorun.test"
COMMAND_LIMIT_S = 120.0
START_S = "90"  # less than any test waits for a job, so that an engine that does not start explains itself


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


opt_ml = _load("algorun_docker_hosts", REPOSITORY / "docker" / "hosts.py")


def docker(*argv: str, limit_s: float = COMMAND_LIMIT_S, ok: bool = True) -> str:
    """Runs a docker command and returns what it printed; a failure shows its error."""
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=limit_s, check=False)
    if ok and done.returncode != 0:
        raise AssertionError(f"docker {' '.join(argv)} -> {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def compose_command() -> list[str]:
    """`docker compose` where the plug-in is, else docker-compose 1.29."""
    probe = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=30, check=False)
    if probe.returncode == 0:
        return ["docker", "compose"]
    found = shutil.which("docker-compose")
    assert found, "neither `docker compose` nor docker-compose is installed"
    return [found]


def why_not() -> str:
    """Why these tests cannot run here; empty if they can."""
    if shutil.which("docker") is None:
        return "no docker client"
    for argv, reason in ((["info"], "no Docker engine answers"), (["image", "inspect", IMAGE], f"no image {IMAGE}")):
        if subprocess.run(["docker", *argv], capture_output=True, timeout=30, check=False).returncode != 0:
            return reason
    return ""


def leftovers(run: str) -> list[str]:
    """Containers and networks of one test that are still there."""
    return [
        *docker("ps", "--all", "--quiet", "--filter", f"label={LABEL}={run}").split(),
        *docker("network", "ls", "--quiet", "--filter", f"label={LABEL}={run}").split(),
    ]


def give_back(folder: Path) -> None:
    """Makes the files that root wrote in containers the caller's, so that the test's folder can be removed."""
    owner = f"{os.getuid()}:{os.getgid()}"
    mount = ("--volume", f"{folder}:/back")
    docker("run", "--rm", "--network", "none", "--entrypoint", "chown", *mount, IMAGE, "-R", owner, "/back", ok=False)


@dataclass(frozen=True, slots=True)
class Left:
    """How one container ended."""

    code: int
    finished: float
    """seconds since the epoch, the kernel's clock that the containers have too"""
    log: str
    failure: str | None
    """content of /opt/ml/output/failure"""

    def first(self, pattern: str) -> str:
        """The last match of a pattern in the log: its group, or all of it."""
        found = re.findall(pattern, self.log)
        assert found, f"{pattern!r} is not in the log:\n{self.log[-4000:]}"
        return str(found[-1])


def left(container: str, root: Path, limit_s: float) -> Left:
    """Waits for a container's end and reads what it left."""
    try:
        code = int(docker("wait", container, limit_s=limit_s))
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{container} still runs after {limit_s:g} s:\n{log(container)[-4000:]}") from None
    stamp = docker("inspect", "--format", "{{.State.FinishedAt}}", container)
    # Nine digits behind the point, Python reads six.
    finished = datetime.fromisoformat(re.sub(r"(\.\d{6})\d*Z$", r"\1+00:00", stamp)).timestamp()
    failure = root / "output" / "failure"
    return Left(code, finished, log(container), failure.read_text() if failure.exists() else None)


def log(container: str) -> str:
    done = subprocess.run(
        ["docker", "logs", container],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )
    return done.stdout


@dataclass(slots=True)
class Hosts:
    """A job on several containers, each with its own /opt/ml below `folder`, as SageMaker starts them."""

    folder: Path
    names: tuple[str, ...]
    slots: int = 2
    environ: Mapping[str, str] = field(default_factory=dict)
    hyperparameters: Mapping[str, str] = field(default_factory=dict)
    channels: Mapping[str, Path] = field(default_factory=dict)
    limits: tuple[str, ...] = ()
    """further options of `docker run`"""
    image: str = IMAGE
    run: str = field(default_factory=lambda: f"algorun-test-{uuid.uuid4().hex[:10]}")

    def prepare(self, *programs: str) -> None:
        """Writes the /opt/ml trees, with these of tests/e2e/programs as the code folder."""
        for name in self.names:
            root = opt_ml.write_host(self.folder, name, self.names, self.hyperparameters, list(self.channels))
            for program in programs:
                shutil.copy(PROGRAMS / program, root / "code" / program)

    def start(self, *command: str) -> None:
        """Starts all containers; without a command they do what the image does by itself."""
        docker("network", "create", "--label", f"{LABEL}={self.run}", self.run)
        for name in self.names:
            self.start_one(name, *command)

    def start_one(self, name: str, *command: str) -> None:
        environ = {"ALGORUN_SLOTS": str(self.slots), "ALGORUN_START_S": START_S, **self.environ}
        options: list[str] = []
        for key, value in environ.items():
            options += ["--env", f"{key}={value}"]
        for channel, source in self.channels.items():
            options += ["--volume", f"{source}:/opt/ml/input/data/{channel}:ro"]
        docker(
            *("run", "--detach", "--name", self.container(name), "--hostname", name, "--label", f"{LABEL}={self.run}"),
            *("--network", self.run, "--network-alias", name, "--shm-size", "256m"),
            *("--volume", f"{self.folder / name}:/opt/ml", *options, *self.limits, self.image, *command),
        )

    def container(self, name: str) -> str:
        return f"{self.run}-{name}"

    def wait_for(self, pattern: str, limit_s: float = 60.0) -> None:
        """Until every host's log has a match."""
        deadline = time.monotonic() + limit_s
        missing = list(self.names)
        while missing:
            missing = [name for name in missing if not re.search(pattern, log(self.container(name)))]
            if missing and time.monotonic() > deadline:
                logs = "\n".join(f"--- {name}\n{log(self.container(name))[-3000:]}" for name in self.names)
                raise AssertionError(f"{pattern!r} is not in the log of {missing} after {limit_s:g} s\n{logs}")
            time.sleep(0.1)

    def end(self, limit_s: float = 180.0) -> dict[str, Left]:
        """How every host ended; `limit_s` is for all together."""
        deadline = time.monotonic() + limit_s
        return {
            name: left(self.container(name), self.folder / name, max(1.0, deadline - time.monotonic()))
            for name in self.names
        }

    def close(self) -> None:
        for name in self.names:
            docker("rm", "--force", "--volumes", self.container(name), ok=False)
        docker("network", "rm", self.run, ok=False)
        give_back(self.folder)


@contextmanager
def jobs(folder: Path) -> Iterator[Callable[..., Hosts]]:
    """Makes jobs of containers below the folder; afterwards they are gone, and that is checked."""
    made: list[Hosts] = []

    def make(*names: str, **options: object) -> Hosts:
        made.append(Hosts(folder / str(len(made)), names, **options))  # type: ignore[arg-type]
        return made[-1]

    try:
        yield make
    finally:
        for job in made:
            job.close()
    assert [left for job in made for left in leftovers(job.run)] == []


def show(hosts: Sequence[str], ends: Mapping[str, Left]) -> str:
    """All logs, for the message of an assertion."""
    return "\n".join(f"--- {name}: exit {ends[name].code}\n{ends[name].log[-3000:]}" for name in hosts if name in ends)
