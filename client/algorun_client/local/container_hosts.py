"""The hosts of a job as containers of its image: one for each, on a network of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from algorun_client.common.errors import ApiError
from algorun_client.request.model import Kind

from . import container_guard, gpus
from .containers import (
    GIVE_BACK,
    Containers,
    container_name,
    first_process,
    give_back,
    has_foreign_files,
    labels,
    mount,
    name_of,
    remove,
)
from .environment import of_job
from .host_processes import HostProcesses, ProcessStart
from .inputs import SUBMITTED
from .job_description import BASE, JobDescription
from .job_folder import JobFolder

CODE = "/opt/algorun-submitted"  # where a container has the code; SageMaker has no such folder, its containers download
REMOVE_S = 120.0
ASK_FOR_PROCESS = 10  # times: a container that is just being started has no process yet
NEVER_BEGAN = "created"  # the state of a container whose program could not be started
NO_TOOLKIT = "; install the NVIDIA Container Toolkit, or set CUDA_VISIBLE_DEVICES= to use no GPU"
NOT_STARTED = (126, 127)  # the exit codes of a program that is missing, or is none


class ContainerHosts:
    """As Hosts. The guard removes the containers, also if this process is killed."""

    interface = "eth0"  # as Docker names it in every container
    can_follow_links = False  # the objects are outside of the container

    def __init__(self, folder: JobFolder, job: JobDescription, containers: Containers, stop_grace_s: float) -> None:
        self._folder, self._job, self._containers = folder, job, containers
        self._stop_grace_s = stop_grace_s
        self._engine, self._name = containers.engine, name_of(folder)
        self._clients = HostProcesses()  # `docker start --attach`, which prints the container's output
        self._codes: dict[str, int] = {}
        self._trees: Mapping[str, Path] = {}
        self._guard: subprocess.Popen[bytes] | None = None
        self._first: dict[str, int] = {}  # the first process of each host, where this machine shows it
        self._asked: dict[str, int] = {}  # how often it was asked for

    @property
    def codes(self) -> Mapping[str, int]:
        return self._codes

    @property
    def have_ended(self) -> bool:
        return self._clients.have_ended

    def opt_ml(self, tree: Path) -> Path:
        return Path(BASE)

    def code(self, folder: Path) -> Path:
        return Path(CODE)

    def start(self, trees: Mapping[str, Path], streams: Mapping[str, Path]) -> None:
        self._guard = container_guard.start(self._engine, self._folder.path)
        inside = ["--internal"] if self._job.is_isolated else []
        self._engine.call("network", "create", *labels(self._folder), *inside, self._name)
        shares = gpus.divided(gpus.visible(os.environ), len(trees))
        for (host, tree), share in zip(trees.items(), shares, strict=True):
            self.create(host, tree, share)
        self._trees = trees
        for host, stream in streams.items():
            words = self._engine.words("start", "--attach", self._container(host))
            self._clients.start(host, words, os.environ, ProcessStart(self._folder.path, stream))

    def create(self, host: str, tree: Path, share: str) -> None:
        """Makes the container of a host. Variables reach Docker by a file, or by its own environment: a process list shows neither."""
        environ = {**self._job.program.environment, **of_job(self._job)}
        of_many_lines = {name: value for name, value in environ.items() if "\n" in value or "\r" in value}
        file = self._folder.path / f"environment-{host}"
        lines = (f"{name}={value}\n" for name, value in environ.items() if name not in of_many_lines)
        try:
            file.write_text("".join(lines), encoding="utf-8")
            own = ["--env-file", str(file), *(word for name in of_many_lines for word in ("--env", name))]
            self._engine.call("create", *own, *self.words(host, tree, share), added=of_many_lines)
        finally:
            file.unlink(missing_ok=True)

    def words(self, host: str, tree: Path, share: str) -> list[str]:
        """The words of `docker create`, without those for variables. `share`: the host's GPUs."""
        job = self._job
        options = [
            *("--name", self._container(host), "--hostname", host, *labels(self._folder)),
            *("--network", self._name, "--network-alias", host),
            *("--shm-size", str(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)),  # as a machine has it
            *("--stop-signal", "SIGTERM", "--stop-timeout", f"{self._stop_grace_s:.0f}"),
            *("--log-driver", "none"),  # the lines are in the job's log streams
            *mount(tree, BASE),
        ]
        if (self._folder.hosts / SUBMITTED).is_dir():
            options += mount(self._folder.hosts / SUBMITTED, CODE, read_only=True)
        for each in job.inputs:
            if each.link:  # FastFile cannot be written to
                options += mount(tree / each.folder, f"{BASE}/{each.folder}", read_only=True)
            if each.mounted is not None:
                source = (self._folder.file_systems / each.mounted.path).resolve()
                options += mount(source, f"{BASE}/{each.folder}", read_only=each.mounted.read_only)
        if share:
            options += ["--gpus", f'"device={share}"']
        words = [*job.program.entrypoint[1:], *job.program.arguments]
        if job.program.entrypoint:
            options += ["--entrypoint", job.program.entrypoint[0]]
        elif not words and job.kind is Kind.TRAINING:
            words = ["train"]
        return [*options, self._containers.image, *words]

    def _container(self, host: str) -> str:
        return container_name(self._folder, host)

    @property
    def _running(self) -> list[str]:
        return [host for host in self._trees if host not in self._codes]

    def pump(self, timeout_s: float) -> None:
        self._clients.pump(timeout_s)
        for host in self._running:
            if host in self._clients.codes:
                self._codes[host] = self._exit_code(host)

    def _exit_code(self, host: str) -> int:
        """The engine knows it; docker's client has codes of its own. Raises ApiError if the container never ran."""
        asked = "{{.State.Status}}/{{.State.ExitCode}}/{{.State.Error}}"
        try:
            text = self._engine.call("container", "inspect", "--format", asked, self._container(host))
        except ApiError as error:
            if "no such container" in error.message.lower():  # somebody has removed it
                return 128 + signal.SIGKILL
            raise
        status, code, why = text.strip().split("/", 2)
        if status == "running":
            raise ApiError("DockerError", f"docker's client has lost {self._container(host)}", "docker start")
        if status == NEVER_BEGAN and int(code) not in NOT_STARTED:
            fix = NO_TOOLKIT if "device driver" in why else ""
            raise ApiError("DockerError", f"{host}: {why}{fix}", "docker start")
        return int(code)

    def processes(self) -> Mapping[str, int]:
        for host in self._running:
            if host not in self._first and self._asked.setdefault(host, 0) < ASK_FOR_PROCESS:
                self._asked[host] += 1
                pid = first_process(self._engine, self._container(host))
                if pid is not None:
                    self._first[host] = pid
        return {host: self._first[host] for host in self._running if host in self._first}

    def signal(self, number: int) -> None:
        with contextlib.suppress(ApiError):  # a container may have ended in this moment
            self._engine.call("kill", "--signal", str(number), *map(self._container, self._running))

    def make_readable(self, folder: str) -> None:
        if os.geteuid() == 0:
            return
        for host in self._running:
            if has_foreign_files(self._trees[host] / folder):
                script = ("sh", "-c", GIVE_BACK, "sh", BASE, f"{BASE}/{folder}")
                with contextlib.suppress(ApiError):  # a container may have ended in this moment
                    self._engine.call("exec", "--user", "0", self._container(host), *script)

    def close(self) -> None:
        if self._guard is not None and not container_guard.has_removed(self._guard, REMOVE_S):
            remove(self._engine, self._folder.path)  # somebody has killed it
        self._clients.close()
        give_back(self._folder, self._containers)
