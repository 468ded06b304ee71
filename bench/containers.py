"""Hosts as containers of the image, fresh for every run as they are for every job, on a network of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.rounds import Broken, Run

IMAGE = os.environ.get("ALGORUN_IMAGE", "algorun:cpu")
LIMIT_S = 180.0
LIFE_S = 3600  # of a container whose benchmark was killed
SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def docker(*argv: str) -> str:
    """One docker command; its output. Ends the benchmark where it fails."""
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        sys.exit(f"docker {' '.join(argv)}:\n{done.stderr}")
    return done.stdout.strip()


def has_image() -> bool:
    """True where a Docker engine has the image."""
    if shutil.which("docker") is None:
        return False
    done = subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, timeout=LIMIT_S, check=False)
    return done.returncode == 0


@contextmanager
def signals_wait() -> Iterator[None]:
    """What a docker client is making when a signal ends it would be left behind."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ssh_keys(scratch: Path) -> Path:
    """A ~/.ssh that all hosts share, for every launcher that needs ssh."""
    keys = scratch / "ssh"
    if not keys.exists():
        keys.mkdir()
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / "id_ed25519")]
        subprocess.run(argv, check=True, timeout=LIMIT_S)
        (keys / "authorized_keys").write_text((keys / "id_ed25519.pub").read_text())
        (keys / "config").write_text(
            "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
        )
        for path in (keys, *keys.iterdir()):
            path.chmod(0o700 if path.is_dir() else 0o600)
    return keys


@contextmanager
def containers(scratch: Path, trees: Path, hosts: list[str]) -> Iterator[dict[str, str]]:
    """Idle containers by host name, each with its folder of `trees` as /opt/ml. sshd is up for those who need it."""
    network = f"algorunbench{uuid.uuid4().hex[:8]}"
    names = {host: f"{network}-{host}" for host in hosts}
    keys = ssh_keys(scratch)
    try:
        with signals_wait():
            docker("network", "create", network)
            for host, name in names.items():
                docker(
                    "run", "-d", "--rm", "--name", name, "--hostname", host, "--network", network,
                    "--network-alias", host, "-v", f"{scratch}:{scratch}", "-v", f"{trees / host}:/opt/ml",
                    "-v", f"{keys}:/root/.ssh", "--entrypoint", "/bin/sleep", IMAGE, str(LIFE_S),
                )  # fmt: skip
                docker("exec", name, "bash", "-c", "ssh-keygen -A >/dev/null; exec /usr/sbin/sshd")
        yield names
    finally:
        with signals_wait():
            for argv in (["rm", "-f", *names.values()], ["network", "rm", network]):
                subprocess.run(["docker", *argv], capture_output=True, timeout=LIMIT_S, check=False)


def in_containers(scratch: Path, trees: Path, commands: Mapping[str, str], **extra: str) -> Run:
    """A launch of one shell command on each host at the same time; the times are taken inside."""

    def run(marks: Path) -> tuple[float, float]:
        options = [f"-e{key}={value}" for key, value in {"MARKS": str(marks), "OMP_NUM_THREADS": "1", **extra}.items()]
        children: dict[str, subprocess.Popen[bytes]] = {}
        with containers(scratch, trees, list(commands)) as names:
            try:
                for host, command in commands.items():
                    timed = (
                        f"date +%s.%N > {marks}/start-{host}; {command}; code=$?; date +%s.%N > {marks}/end-{host};"
                        " exit $code"
                    )
                    argv = ["docker", "exec", *options, names[host], "bash", "-c", timed]
                    with (marks / f"log-{host}").open("wb") as log:
                        children[host] = subprocess.Popen(
                            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
                        )
                if fault := _wait(children):
                    logs = [
                        f"--- {host}\n{(marks / f'log-{host}').read_text(errors='replace')[-2000:]}"
                        for host in commands
                    ]
                    raise Broken("\n".join([fault, *logs]))
            finally:
                for child in children.values():
                    child.kill()
                    child.wait()
        starts = [float((marks / f"start-{host}").read_text()) for host in commands]
        ends = [float((marks / f"end-{host}").read_text()) for host in commands]
        return max(starts), max(ends)

    return run


def _wait(children: Mapping[str, subprocess.Popen[bytes]]) -> str:
    """Until all ended well: empty. Otherwise the first host that failed, or those that outlast the limit."""
    deadline = time.monotonic() + LIMIT_S
    while running := [host for host, child in children.items() if child.poll() is None]:
        if time.monotonic() > deadline:
            return f"> {LIMIT_S:g} s: {', '.join(running)} did not leave"
        if failed := [host for host, child in children.items() if child.poll()]:
            return f"{failed[0]} left with {children[failed[0]].returncode}"
        time.sleep(0.1)
    return next((f"{host} left with {child.returncode}" for host, child in children.items() if child.returncode), "")
