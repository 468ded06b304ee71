"""Hosts of a Ray job: containers whose main process is a launcher, of the image with Ray on top. Needs Docker."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from bench.containers import IMAGE, docker, signals_wait
from bench.jobs import job_folder

TOP = Path(__file__).resolve().parent.parent
DOWNLOAD_S = 900.0
BUILD_S = 900.0
SHM = "4g"
BUILD = "FROM {image}\nCOPY wheels /tmp/wheels\nRUN pip install --no-index --find-links /tmp/wheels {wish} && rm -r /tmp/wheels\n"
# No instance's metadata, no statistics to Ray's makers: both launchers run without a network to the outside.
ENVIRON = {"AWS_EC2_METADATA_DISABLED": "true", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Launcher:
    """What a host's container runs."""

    name: str
    words: tuple[str, ...]
    files: Mapping[str, Path]
    """by their names in the code folder, besides the driver"""


OURS = Launcher("algorun", ("algorun", "run", "--engine", "ray", "driver.py"), {})


def sample(launcher: Path) -> Launcher:
    """AWS's sample without its dashboard and its Prometheus, which algorun does not have either."""
    options = ("--entrypoint", "driver.py", "--include-dashboard", "false", "--launch-prometheus", "false")
    return Launcher("AWS's sample", ("python", "launcher.py", *options), {"launcher.py": launcher})


def wheels(ray: str, name: str = IMAGE) -> Path:
    """A folder with Ray of this version and what it needs, for the Python of the image `name`."""
    folder = TOP / ".build" / f"ray-wheels-{ray}"
    if not (folder / "ready").exists():
        show = "import sys; print('%d.%d' % sys.version_info[:2])"
        python = docker("run", "--rm", "--network", "none", "--entrypoint", "python3", name, "-c", show)
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)]
        subprocess.run(
            [*pip, "--only-binary", ":all:", "--python-version", python, wish(ray)], check=True, timeout=DOWNLOAD_S
        )
        (folder / "ready").touch()
    return folder


def wish(ray: str) -> str:
    return f"ray[data,train]=={ray}"


def image(ray: str) -> str:
    """The name of an image with Ray of this version on top of the project's."""
    name, folder = f"algorun-bench-ray:{ray}", TOP / ".build" / f"ray-image-{ray}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "wheels").mkdir()
    for wheel in wheels(ray).glob("*.whl"):
        (folder / "wheels" / wheel.name).hardlink_to(wheel)
    (folder / "Dockerfile").write_text(BUILD.format(image=IMAGE, wish=wish(ray)))
    argv = ["docker", "build", "--quiet", "--network", "none", "--tag", name, str(folder)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, timeout=BUILD_S)
    return name


@dataclass
class Job:
    """The hosts of one job. A host may be absent: it has a name and a place in the job, and no container."""

    folder: Path
    hosts: list[str]
    image: str
    launcher: Launcher
    environ: Mapping[str, str]
    options: tuple[str, ...] = ()
    """further options of `docker run`"""
    hyperparameters: Mapping[str, str] = field(default_factory=dict)
    run: str = field(default_factory=lambda: f"algorunray{uuid.uuid4().hex[:8]}")

    @property
    def leader(self) -> str:
        return self.hosts[0]

    def container(self, host: str) -> str:
        return f"{self.run}-{host}"

    def start(self, hosts: list[str], late_s: float = 0.0) -> None:
        """Starts these hosts at the same time, or the last one `late_s` seconds after the others."""
        docker("network", "create", self.run)
        for host in self.hosts:
            root = job_folder(self.folder / host, host, self.hosts, dict(self.hyperparameters))
            for name, path in {"driver.py": TOP / "bench" / "ray_driver.py", **self.launcher.files}.items():
                shutil.copy(path, root / "code" / name)
        variables = {**ENVIRON, "FOLLOWER": self.hosts[-1], **self.environ}
        settings = [word for key, value in variables.items() for word in ("--env", f"{key}={value}")]
        for host in hosts:
            docker(
                "create", "--name", self.container(host), "--hostname", host, "--network", self.run,
                "--network-alias", host, "--shm-size", SHM, "--volume", f"{self.folder / host}:/opt/ml",
                "--workdir", "/opt/ml/code", *settings, *self.options, "--entrypoint", "/usr/bin/tini", self.image,
                "-g", "--", *self.launcher.words,
            )  # fmt: skip
        with ThreadPoolExecutor(len(hosts)) as pool:
            first = [pool.submit(docker, "start", self.container(host)) for host in hosts[: -1 if late_s else None]]
            if late_s:
                time.sleep(late_s)
                docker("start", self.container(hosts[-1]))
            for each in first:
                each.result()

    def close(self) -> None:
        with signals_wait():
            names = [self.container(host) for host in self.hosts]
            for argv in (["rm", "-f", "-v", *names], ["network", "rm", self.run]):
                subprocess.run(["docker", *argv], capture_output=True, timeout=120, check=False)

    def mark(self, name: str) -> float | None:
        """The time at which something happened, the latest of all hosts; None if it has not."""
        files = [self.folder / host / "marks" / name for host in self.hosts]
        return max((float(file.read_text()) for file in files if file.exists()), default=None)

    def wait_for(self, name: str, limit_s: float) -> float:
        """The time of a mark. Raises TimeoutError if the job has ended, or the time is over, without."""
        deadline = time.monotonic() + limit_s
        while (found := self.mark(name)) is None:
            if time.monotonic() > deadline or self.code(self.leader) is not None:
                raise TimeoutError(f"no {name} of {self.launcher.name}:\n{self.log(self.leader)[-3000:]}")
            time.sleep(0.1)
        return found

    def code(self, host: str) -> int | None:
        """The exit code of a host, None while it runs or if it has no container."""
        argv = ["docker", "inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", self.container(host)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        state, _, code = done.stdout.strip().partition(" ")
        return int(code) if state in ("exited", "dead") else None

    def at(self, host: str, what: str) -> float:
        """StartedAt or FinishedAt of a host, in seconds of the clock that the containers have too."""
        stamp = docker("inspect", "--format", f"{{{{.State.{what}}}}}", self.container(host))
        # Nine digits behind the point, Python reads six.
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*Z$", r"\1+00:00", stamp)).timestamp()

    def ends(self, hosts: list[str], limit_s: float) -> dict[str, tuple[int, float] | None]:
        """Code and time of each host's end; None for a host that still runs when the time is over."""
        deadline, found = time.monotonic() + limit_s, {}
        while len(found) < len(hosts) and time.monotonic() < deadline:
            for host in hosts:
                if host not in found and (code := self.code(host)) is not None:
                    found[host] = (code, self.at(host, "FinishedAt"))
            time.sleep(0.2)
        return {host: found.get(host) for host in hosts}

    def log(self, host: str) -> str:
        argv = ["docker", "logs", self.container(host)]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False)
        return done.stdout.decode(errors="replace")

    def failure(self, host: str) -> str:
        """The first line of output/failure of a host, "" without."""
        file = self.folder / host / "output" / "failure"
        return next(iter(file.read_text(errors="replace").splitlines()), "") if file.exists() else ""


@contextmanager
def job(*words: object, **options: object) -> Iterator[Job]:
    """A job whose containers and network are gone afterwards."""
    made = Job(*words, **options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()
