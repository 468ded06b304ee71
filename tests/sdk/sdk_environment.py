"""What a client runs in: its own Python, variables without the user's settings, a package to install, an S3."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

from sdk_docker import IMAGE, docker

from algorun.common.free_ports import free_ports

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON = {client: REPOSITORY / f".venv-sdk{client[1]}" / "bin" / "python" for client in ("v2", "v3")}
PACKAGE = "sdk_row_package-1.0-py3-none-any.whl"
RAY = "2.60.0"
TENSORFLOW = "2.21.0"
DOWNLOAD_S = 900.0
NOT_FOR_TASKS = ("pandas", "pyarrow", "numpy", "tensorboard")  # large, and for Ray's libraries only


def ray_wheels() -> Path:
    """A folder with Ray and what it needs, for the Python of the image."""
    return _wheels(f"ray-wheels-{RAY}", [[f"ray[data,train]=={RAY}"]])


def tensorflow_wheels() -> Path:
    """A folder with TensorFlow for CPUs, what it needs, and legacy Keras, for the Python of the image."""
    # tf_keras requires TensorFlow for GPUs.
    return _wheels(
        f"tensorflow-wheels-{TENSORFLOW}",
        [[f"tensorflow-cpu=={TENSORFLOW}"], ["--no-deps", f"tf_keras=={TENSORFLOW}"]],
    )


def _wheels(name: str, requirements: list[list[str]]) -> Path:
    """The folder .build/NAME with what each list of pip's arguments downloads."""
    folder = REPOSITORY / ".build" / name
    if not (folder / "ready").exists():
        show = "import sys; print('%d.%d' % sys.version_info[:2])"
        python = docker("run", "--rm", "--network", "none", "--entrypoint", "python3", IMAGE, "-c", show)
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), "--only-binary", ":all:"]
        for each in requirements:
            subprocess.run([*pip, "--python-version", python, *each], check=True, timeout=DOWNLOAD_S)
        (folder / "ready").touch()
    return folder


def why_not() -> str:
    """Why no row can run here; empty if they can."""
    if shutil.which("docker") is None:
        return "no docker client"
    for argv, reason in ((["info"], "no Docker engine answers"), (["image", "inspect", IMAGE], f"no image {IMAGE}")):
        if subprocess.run(["docker", *argv], capture_output=True, timeout=30, check=False).returncode != 0:
            return reason
    missing = [str(python) for python in PYTHON.values() if not python.exists()]
    return f"no {', '.join(missing)} (make test-all PART=sdk makes them)" if missing else ""


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
    _write_wheel(folder / PACKAGE, "sdk_row_package", "1.0", {"sdk_row_package.py": "ANSWER = 42\n"})
    (folder / "requirements.txt").write_text(f"--no-index\n./{PACKAGE}\n")


def _write_wheel(path: Path, name: str, version: str, files: dict[str, str], requires: str = "") -> None:
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    content = files | {
        f"{info}/METADATA": metadata + (f"Requires-Dist: {requires}\n" if requires else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: algorun\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for each, text in content.items():
            wheel.writestr(each, text)
        wheel.writestr(f"{info}/RECORD", "".join(f"{each},,\n" for each in (*content, f"{info}/RECORD")))


def write_tensorflow(folder: Path) -> None:
    """Wheels beside a requirements.txt that names TensorFlow and legacy Keras. The package tensorflow is the one for CPUs."""
    wheels = folder / "wheels"
    shutil.copytree(tensorflow_wheels(), wheels, ignore=shutil.ignore_patterns("ready"))
    name = f"tensorflow-{TENSORFLOW}-py3-none-any.whl"
    _write_wheel(wheels / name, "tensorflow", TENSORFLOW, {}, f"tensorflow-cpu=={TENSORFLOW}")
    names = "".join(f"{each}=={TENSORFLOW}\n" for each in ("tensorflow", "tf_keras"))
    (folder / "requirements.txt").write_text(f"--no-index\n--find-links ./wheels\n{names}")


def write_announced(folder: Path) -> None:
    """TensorFlow, and AWS's announced script as tf2.py, with its data."""
    write_tensorflow(folder)
    tests = REPOSITORY / "tests" / "frameworks"
    shutil.copy(tests / "programs" / "announced_smp.py", folder / "tf2.py")
    (folder / "tests" / "frameworks").mkdir(parents=True)
    shutil.copy(tests / "digits.py", folder / "tests" / "frameworks")


def write_ray(folder: Path) -> None:
    """Ray's wheels beside a requirements.txt that names Ray: the job's containers have no index."""
    (folder / "wheels").mkdir()
    for wheel in ray_wheels().glob("*.whl"):
        if not wheel.name.startswith(NOT_FOR_TASKS):
            shutil.copy(wheel, folder / "wheels" / wheel.name)
    (folder / "requirements.txt").write_text(f"--no-index\n--find-links ./wheels\nray=={RAY}\n")


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
