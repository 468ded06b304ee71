"""Runs one job by a real client in its local mode and collects what its user would see. Nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from algorun.network.addresses import free_ports

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
IMAGE = os.environ.get("ALGORUN_TEST_IMAGE", "algorun:cpu")
PYTHON = {client: REPOSITORY / f".venv-sdk{client[1]}" / "bin" / "python" for client in ("v2", "v3")}
FOLDER_LABEL = "com.docker.compose.project.working_dir"  # both compose 1.29 and 2 set it
NETWORK = "sagemaker-local"  # the one name that the local modes of both SDKs use
PACKAGE = "sdk_row_package-1.0-py3-none-any.whl"


def docker(*argv: str, limit_s: float = 60.0, ok: bool = True) -> str:
    """Runs a docker command and returns what it printed."""
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=limit_s, check=False)
    if ok and done.returncode != 0:
        raise AssertionError(f"docker {' '.join(argv)} -> {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def why_not() -> str:
    """Why no row can run here; empty if they can."""
    if shutil.which("docker") is None:
        return "no docker client"
    for argv, reason in ((["info"], "no Docker engine answers"), (["image", "inspect", IMAGE], f"no image {IMAGE}")):
        if subprocess.run(["docker", *argv], capture_output=True, timeout=30, check=False).returncode != 0:
            return reason
    missing = [str(python) for python in PYTHON.values() if not python.exists()]
    return f"no {', '.join(missing)} (make sdk-test makes them)" if missing else ""


def compose_version() -> str:
    """What `docker compose` or docker-compose calls itself."""
    for argv in (["docker", "compose", "version", "--short"], ["docker-compose", "version", "--short"]):
        with contextlib.suppress(OSError):
            done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
            if done.returncode == 0:
                return f"{argv[0] if argv[0] != 'docker' else 'docker compose'} {done.stdout.strip()}"
    return "no compose"


@contextlib.contextmanager
def alone(limit_s: float = 900.0) -> Iterator[None]:
    """Only one suite on a machine: the SDKs' network and the host names on it have fixed names.

    An abstract socket is the lock; the kernel frees it when the process ends, however it ends.
    """
    with socket.socket(socket.AF_UNIX) as lock:
        deadline = time.monotonic() + limit_s
        while True:
            try:
                lock.bind("\0algorun-sdk-test")
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise AssertionError(f"another run of tests/sdk is still busy after {limit_s:g} s") from None
                time.sleep(0.5)
        yield


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


def containers(folder: Path) -> list[str]:
    """Containers whose compose file lies below the folder."""
    lines = docker("ps", "-a", "--format", f'{{{{.ID}}}} {{{{.Label "{FOLDER_LABEL}"}}}}').splitlines()
    return [line.split(" ", 1)[0] for line in lines if f"{line.partition(' ')[2]}/".startswith(f"{folder}/")]


def clean(folder: Path, network_was_there: bool) -> None:
    """Removes what the client left of a job, and makes the files that root wrote the caller's."""
    left = containers(folder)
    if left:
        docker("rm", "--force", "--volumes", *left)
    if not network_was_there:
        docker("network", "rm", NETWORK, ok=False)
    owner = f"{os.getuid()}:{os.getgid()}"
    mount = ("--volume", f"{folder}:/back")
    docker("run", "--rm", "--network", "none", "--entrypoint", "chown", *mount, IMAGE, "-R", owner, "/back", ok=False)


def has_network() -> bool:
    return NETWORK in docker("network", "ls", "--format", "{{.Name}}").split()


def environment(work: Path, client: str) -> dict[str, str]:
    """Offline and reproducible: keys that are no keys, no metadata service, no telemetry, no settings of the user."""
    bin_folder, home, temporary = work / "bin", work / "home", work / "tmp"
    for folder in (bin_folder, home, temporary):
        folder.mkdir(parents=True, exist_ok=True)
    settings = work / "sagemaker.yaml"
    settings.write_text("SchemaVersion: '1.0'\nSageMaker:\n  PythonSDK:\n    Modules:\n      TelemetryOptOut: true\n")
    if shutil.which("docker-compose") is None:
        # SDK v2 takes `docker compose` only if its version begins with v2; both take a docker-compose.
        shim = bin_folder / "docker-compose"
        shim.write_text('#!/bin/sh\nexec docker compose "$@"\n')
        shim.chmod(0o755)
    return {
        "PATH": f"{PYTHON[client].parent}:{os.environ['PATH']}:{bin_folder}",
        "HOME": str(home),
        "DOCKER_CONFIG": os.environ.get("DOCKER_CONFIG", str(Path.home() / ".docker")),
        **({"DOCKER_HOST": os.environ["DOCKER_HOST"]} if "DOCKER_HOST" in os.environ else {}),
        "TMPDIR": str(temporary),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "AWS_ACCESS_KEY_ID": "test-key",
        "AWS_SECRET_ACCESS_KEY": "test-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(home / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(home / "none"),
        "SAGEMAKER_USER_CONFIG_OVERRIDE": str(settings),
        "SAGEMAKER_ADMIN_CONFIG_OVERRIDE": str(settings),
    }


def write_package(folder: Path) -> None:
    """A wheel of one module beside a requirements.txt that names it: installable without an index."""
    name, info = "sdk_row_package", "sdk_row_package-1.0.dist-info"
    with zipfile.ZipFile(folder / PACKAGE, "w") as wheel:
        wheel.writestr(f"{name}.py", "ANSWER = 42\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: algorun\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(
            f"{info}/RECORD",
            "".join(f"{at},,\n" for at in (f"{name}.py", f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD")),
        )
    (folder / "requirements.txt").write_text(f"--no-index\n./{PACKAGE}\n")


@contextlib.contextmanager
def s3(work: Path) -> Iterator[str]:
    """moto's server on the address of Docker's bridge, where both the client and its containers reach it."""
    routes = docker("run", "--rm", "--entrypoint", "cat", IMAGE, "/proc/net/route").splitlines()[1:]
    gateway = next(fields[2] for fields in map(str.split, routes) if fields[1] == "00000000")
    address = socket.inet_ntoa(bytes.fromhex(gateway)[::-1])
    port = free_ports(address, 1)[0]
    endpoint = f"http://{address}:{port}"
    with (work / "moto.log").open("wb") as log:
        server = subprocess.Popen(
            [PYTHON["v2"].parent / "moto_server", "-H", address, "-p", str(port)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "HOME": str(work), "LANG": "C.UTF-8"},
        )
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                bucket = urllib.request.Request(f"{endpoint}/algorun", method="PUT")
                urllib.request.build_opener(urllib.request.ProxyHandler({})).open(bucket, timeout=5).close()
                break
            except OSError:
                if time.monotonic() > deadline or server.poll() is not None:
                    raise AssertionError(f"moto's server: {(work / 'moto.log').read_text()[-2000:]}") from None
                time.sleep(0.1)
        yield endpoint
    finally:
        server.terminate()
        server.wait(timeout=10)


def run(
    work: Path,
    client: str,
    kind: str,
    hosts: int,
    options: Mapping[str, Any],
    *,
    with_s3: bool = False,
    requirements: bool = False,
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
    if requirements:
        write_package(source)
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
