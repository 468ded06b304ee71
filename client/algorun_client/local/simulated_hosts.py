"""Hosts without containers: one launcher for each, with a loopback address and an /opt/ml of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from algorun.common import own_opt_ml, own_python
from algorun.common.free_ports import hold

from . import gpus
from .environment import for_host, of_job
from .host_processes import HostProcesses, ProcessStart
from .job_description import JobDescription, local_text


class SimulatedHosts:
    """As Hosts. They share this machine's files, so a tree's own path stands for /opt/ml."""

    interface = "lo"
    can_follow_links = True

    def __init__(self, job: JobDescription, environments: Path, file_systems: Path) -> None:
        self._job = job
        self._environments = environments  # for the requirements of jobs
        self._file_systems = file_systems
        self._processes = HostProcesses()
        self._control = hold("127.0.0.1")  # no other job on this machine gets the port before the hub listens on it

    @property
    def codes(self) -> Mapping[str, int]:
        return self._processes.codes

    @property
    def have_ended(self) -> bool:
        return self._processes.have_ended

    def opt_ml(self, tree: Path) -> Path:
        return tree

    def code(self, folder: Path) -> Path:
        return folder

    def start(self, trees: Mapping[str, Path], streams: Mapping[str, Path]) -> None:
        meeting = {
            **addresses(self._job.cluster.hosts, self._control.getsockname()[1]),
            **of_job(self._job),
            "ALGORUN_ENVIRONMENTS": str(self._environments),
            "PATH": own_python.path(sys.executable, os.environ.get("PATH", os.defpath)),
        }
        shares = gpus.divided(gpus.visible(os.environ), len(trees))
        shared = own_opt_ml.why_shared(next(iter(trees.values())), [*map(str, trees.values()), sys.prefix])
        for (host, base), share in zip(trees.items(), shares, strict=True):
            own = {"CUDA_VISIBLE_DEVICES": share, "SAGEMAKER_BASE_DIR": str(base)}
            sent = {name: local_text(value, base) for name, value in self._job.program.environment.items()}
            words = command([local_text(word, base) for word in self._job.program.command])
            environ = {**for_host(os.environ), **own, **meeting, **sent}
            binds = self._binds(base)
            enter = None if shared else own_opt_ml.mount(base, binds)
            warning = _warning(base, shared) + (_linked(binds, shared) if shared else "")
            self._processes.start(host, words, environ, ProcessStart(base / "code", streams[host], enter, warning))

    def _binds(self, base: Path) -> list[own_opt_ml.Bind]:
        """The folders that stand for file systems, and where a host sees them."""
        return [
            own_opt_ml.Bind(
                (self._file_systems / each.mounted.path).resolve(), base / each.folder, each.mounted.read_only
            )
            for each in self._job.inputs
            if each.mounted is not None
        ]

    def pump(self, timeout_s: float) -> None:
        self._processes.pump(timeout_s)

    def processes(self) -> Mapping[str, int]:
        return self._processes.processes()

    def signal(self, number: int) -> None:
        self._processes.signal(number)

    def make_readable(self, folder: str) -> None:
        pass  # the hosts are processes of the caller

    def close(self) -> None:
        self._processes.close()
        self._control.close()


def _warning(base: Path, shared: str) -> str:
    """The line for a program with /opt/ml in its text on a machine where hosts share this folder."""
    named = own_opt_ml.named_in("", str(base / "code")) if shared else ""
    return named and (
        f"algorun: warning: {named} names /opt/ml, which this machine's jobs and hosts share ({shared}): they find there what "
        "others have left; fix: use ALGORUN_CHECKPOINT_DIR, SM_MODEL_DIR and SM_OUTPUT_DATA_DIR\n"
    )


def _linked(binds: Sequence[own_opt_ml.Bind], why: str) -> str:
    """Puts links where nothing can be mounted. Returns the lines that say so."""
    text = ""
    for bind in binds:
        bind.target.rmdir()
        bind.target.symlink_to(bind.source)
        if bind.read_only:
            text += (
                f"algorun: warning: {bind.target} is a link to {bind.source}, which the program can change; on AWS it cannot "
                f"(here nothing can be mounted: {why})\n"
            )
    return text


def addresses(hosts: Sequence[str], port: int) -> dict[str, str]:
    """The launcher's settings for hosts on one machine."""
    pairs = ",".join(f"{host}=127.0.0.{number}" for number, host in enumerate(hosts, 1))
    return {"ALGORUN_ADDRESSES": pairs, "ALGORUN_CONTROL_PORT": str(port)}


def command(words: Sequence[str]) -> list[str]:
    """The command of a host. Without words the launcher's `train`, as the image has it."""
    launcher = [sys.executable, "-I", "-m", "algorun"]
    if not words or list(words) == ["train"]:
        return [*launcher, "train"]
    return [*launcher, *words[1:]] if words[0] == "algorun" else list(words)
