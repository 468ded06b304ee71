"""Docker as the SDKs' local modes use it: their containers and their network, and who may use these now."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

IMAGE = os.environ.get("ALGORUN_TEST_IMAGE", "algorun:cpu")
FOLDER_LABEL = "com.docker.compose.project.working_dir"  # both compose 1.29 and 2 set it
NETWORK = "sagemaker-local"  # the one name that the local modes of both SDKs use


def docker(*argv: str, limit_s: float = 60.0, ok: bool = True) -> str:
    """Runs a docker command and returns what it printed."""
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=limit_s, check=False)
    if ok and done.returncode != 0:
        raise AssertionError(f"docker {' '.join(argv)} -> {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


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
