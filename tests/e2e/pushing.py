"""Runs `build.sh push` as a user does."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import tarfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from containers import LABEL, REPOSITORY, docker
from push_cloud import PATH, REGION, Cloud

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
RUN = f"push-{uuid.uuid4().hex[:10]}"


def remove_images() -> None:
    found = docker("images", "--all", "--quiet", "--no-trunc", "--filter", f"label={LABEL}={RUN}").split()
    if found:
        docker("rmi", "--force", *sorted(set(found)))


@dataclass(frozen=True, slots=True)
class Push:
    """Runs `build.sh push` as a user whose docker configuration must stay as it is."""

    cloud: Cloud
    image: str
    home: Path

    def start(
        self, *argv: str, keys: Mapping[str, str] = KEYS, registry: str = "", api: str = ""
    ) -> subprocess.Popen[str]:
        """Starts it as the leader of a process group, as a terminal does."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("AWS_") and k != "DOCKER_CONFIG"}
        environ = {**kept, **keys, "HOME": str(self.home), "PATH": f"{self.home}/bin:{PATH}"}
        environ |= {"DOCKER": str(self.home / "bin" / "docker"), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        environ |= {"AWS_EC2_METADATA_DISABLED": "true"}
        machine = docker("version", "--format", "{{.Server.Os}}/{{.Server.Arch}}")
        options = ["--tag", self.image, "--region", REGION, "--platform", machine]
        options += ["--registry", registry or self.cloud.registry, "--endpoint-url", api or self.cloud.api]
        command = [str(REPOSITORY / "build.sh"), "push", *options, *argv]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            cwd="/",
            start_new_session=True,
        )

    def end(self, process: subprocess.Popen[str], limit_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Waits for its end; nothing of its group outlives the limit."""
        try:
            out, err = process.communicate(timeout=limit_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def __call__(self, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.end(self.start(*argv, **options))

    def until_it_pushes(self, process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + 60
        while not any(call.startswith("push ") for call in self.docker_calls()):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def docker_calls(self) -> list[str]:
        calls = self.home / "calls"
        return calls.read_text().splitlines() if calls.exists() else []


@contextmanager
def small_image() -> Iterator[str]:
    """A small image of one file, not the one of this project: what is pushed does not matter."""
    name = f"{RUN}:small"
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        content = os.urandom(100_000)
        entry = tarfile.TarInfo("content")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    argv = ["docker", "import", "--change", f"LABEL {LABEL}={RUN}", "-", name]
    subprocess.run(argv, input=archive.getvalue(), check=True, capture_output=True, timeout=60)
    yield name
    remove_images()


@contextmanager
def as_a_user(cloud: Cloud, image: str, home: Path) -> Iterator[Push]:
    """A `Push` with this home folder. Afterwards the user's docker configuration is as before, no helper was asked, and no folder is left."""
    bin_, config = home / "bin", home / ".docker" / "config.json"
    bin_.mkdir()
    config.parent.mkdir()
    config.write_text('{"credsStore": "test", "credHelpers": {"a.example": "test"}, "auths": {"b.example": {}}}\n')
    before = config.read_bytes()
    # `pass` and `secretservice` are those that docker chooses by itself on Linux where it finds them.
    for helper in ("docker-credential-test", "docker-credential-pass", "docker-credential-secretservice"):
        (bin_ / helper).write_text(f'#!/bin/sh\necho {helper} "$@" >> {home}/helpers\nexit 1\n')
    (bin_ / "pass").write_text("#!/bin/sh\nexit 0\n")
    (bin_ / "docker").write_text(f'#!/bin/sh\necho "$@" >> {home}/calls\nexec {shutil.which("docker")} "$@"\n')
    for program in bin_.iterdir():
        program.chmod(0o755)
    yield Push(cloud, image, home)
    assert config.read_bytes() == before
    assert [path.name for path in config.parent.iterdir()] == ["config.json"]
    assert not (home / "helpers").exists()
    assert list((REPOSITORY / ".build").glob("push.*")) == []


def repository() -> str:
    return f"test/{uuid.uuid4().hex[:10]}"


def refusal(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one line that says why."""
    assert done.returncode == code, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("build.sh: ")]
    assert lines == done.stderr.splitlines(), done.stderr
    assert len(lines) == 1, done.stderr
    assert "image_uri" not in done.stdout
    return lines[0]
