"""Runs one job by a real client in its local mode and collects what its user would see. Nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdk_docker import IMAGE, NETWORK, clean, containers, docker, has_network
from sdk_environment import PYTHON, environment, s3

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Seen:
    """What the user of the client got."""

    ok: bool
    """the client raised nothing"""
    error: str
    log: str
    model: Mapping[str, bytes]
    """files of model.tar.gz"""
    output: Mapping[str, bytes]
    """files of output.tar.gz, or those of the outputs of a Processing job"""
    seconds: float
    versions: Mapping[str, str]

    @property
    def code(self) -> int | None:
        """The exit code that the client's exception tells."""
        found = re.search(r"exited with code: (\d+)", self.error)
        return int(found[1]) if found else None

    @property
    def facts(self) -> list[dict[str, Any]]:
        """What the job's processes wrote by scripts/facts.py, by rank."""
        names = [name for name in self.output if re.fullmatch(r"data/.*-\d+\.json", name)]
        return sorted((json.loads(self.output[name]) for name in names), key=lambda fact: (fact["rank"], fact["host"]))

    @property
    def failure(self) -> str:
        """What /opt/ml/output/failure held."""
        return self.output.get("failure", b"").decode()


@dataclass
class Running:
    """A job whose client waits; for rows that do something meanwhile."""

    folder: Path
    hosts: int
    process: subprocess.Popen[bytes]
    noted: dict[str, float] = field(default_factory=dict)

    def containers(self) -> list[str]:
        """Identifiers of this job's containers, the dead ones included."""
        return containers(self.folder)

    def wait_for(self, pattern: str, limit_s: float = 300.0) -> list[str]:
        """Until every host's log has a match; returns the containers by host name."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and self.process.poll() is None:
            found = self.containers()
            logs = [
                subprocess.run(["docker", "logs", one], capture_output=True, timeout=30, check=False) for one in found
            ]
            matches = [re.search(pattern.encode(), done.stdout + done.stderr) for done in logs]
            if len(found) == self.hosts and all(matches):
                service = '{{index .Config.Labels "com.docker.compose.service"}}'
                return sorted(found, key=lambda one: docker("inspect", "--format", service, one))
            time.sleep(0.2)
        raise AssertionError(f"{pattern!r} is not in the log of every host")


def run(
    work: Path,
    client: str,
    kind: str,
    hosts: int,
    options: Mapping[str, Any],
    *,
    with_s3: bool = False,
    requirements: Callable[[Path], None] | None = None,
    channels: Callable[[Path], list[str]] | None = None,
    during: Callable[[Running], None] | None = None,
    limit_s: float = 400.0,
) -> Seen:
    """Runs the client until it returns; `during` runs beside it. AssertionError when it takes longer than `limit_s`."""
    work = work.resolve()
    source, root, out, data = (work / name for name in ("source", "root", "out", "data"))
    shutil.copytree(HERE / "scripts", source, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (root, out, data):
        folder.mkdir()
    (data / "lines.txt").write_text("one\ntwo\nthree\n")
    if requirements is not None:
        requirements(source)
    inputs = {name: f"file://{data / name}" for name in channels(data)} if channels else None
    environ = environment(work, client)
    network_was_there = has_network()
    try:
        with s3(work) if with_s3 else contextlib.nullcontext("") as endpoint:
            job = {
                "kind": kind,
                "image": IMAGE,
                "hosts": hosts,
                "options": _filled(dict(options), {"SOURCE": str(source), "S3": endpoint}),
                "source": str(source),
                "root": str(root),
                "out": str(out),
                "data": str(data),
                "inputs": inputs,
                "s3": endpoint,
            }
            (work / "job.json").write_text(json.dumps(job))
            if endpoint:
                environ["AWS_ENDPOINT_URL"] = endpoint  # moto answers for every service that the client asks
            seconds, log = _client(work, client, environ, hosts, during, limit_s)
        result = json.loads((work / "result.json").read_text()) if (work / "result.json").exists() else None
        assert result is not None, f"the client itself broke:\n{log[-3000:]}"
        clean(work, network_was_there)
        return Seen(
            ok=result["ok"],
            error=result["error"],
            log=log,
            model=_archive(work, "model.tar.gz"),
            output=_archive(work, "output.tar.gz") or _files(out / "processed"),
            seconds=seconds,
            versions=result["versions"],
        )
    finally:
        clean(work, network_was_there)
        shutil.rmtree(work)
        assert containers(work) == []
        assert network_was_there or not has_network(), f"network {NETWORK} is left"


def _filled(value: Any, words: Mapping[str, str]) -> Any:
    """Options with `@SOURCE` and `@S3` replaced: a row's table does not know folders and addresses."""
    if isinstance(value, str):
        for name, word in words.items():
            value = value.replace(f"@{name}", word)
        return value
    if isinstance(value, Mapping):
        return {key: _filled(item, words) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, words) for item in value]
    return value


def _client(
    work: Path,
    client: str,
    environ: Mapping[str, str],
    hosts: int,
    during: Callable[[Running], None] | None,
    limit_s: float,
) -> tuple[float, str]:
    """Seconds and log of the client's process. It has a session of its own, which ends with the row."""
    began = time.monotonic()
    argv = [str(PYTHON[client]), str(HERE / f"{client}.py"), str(work / "job.json"), str(work / "result.json")]
    with (work / "client.log").open("wb") as log:
        process = subprocess.Popen(
            argv, cwd=work, env=dict(environ), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    faults: list[BaseException] = []

    def beside() -> None:
        try:
            assert during is not None
            during(Running(work, hosts, process))
        except BaseException as fault:
            faults.append(fault)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # nothing is left to wait for

    side = threading.Thread(target=beside)
    if during is not None:
        side.start()
    try:
        process.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        text = (work / "client.log").read_text(errors="replace")
        raise AssertionError(f"the client still waits after {limit_s:g} s:\n{text[-3000:]}") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if during is not None:
            side.join(timeout=60)
    text = (work / "client.log").read_text(errors="replace")
    if faults:
        raise AssertionError(f"{faults[0]}\n{text[-3000:]}")
    return time.monotonic() - began, text


def _archive(work: Path, name: str) -> dict[str, bytes]:
    """The files of the client's archive, wherever it put it."""
    found = sorted(work.rglob(name))
    assert len(found) <= 1, f"several {name}: {found}"
    files: dict[str, bytes] = {}
    if found:
        with tarfile.open(found[0]) as archive:
            for member in archive.getmembers():
                stream = archive.extractfile(member)
                if stream is not None:
                    files[member.name.removeprefix("./")] = stream.read()
    return files


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
