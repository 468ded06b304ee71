"""Docker by its own client: argv lists, a deadline for every call, and errors that say what to do."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from algorun.common.errors import UserError
from algorun_client.common.errors import ApiError

PROGRAM = "docker"
CALL_S = 60.0  # the longest that a call may take; containers of large images need some seconds
LOCAL = ("unix://",)  # an engine elsewhere cannot mount folders of this machine
WITHOUT = "or drop --docker: then hosts are simulated"


@dataclass(frozen=True, slots=True)
class Image:
    """An image of the engine."""

    name: str  # as it was given
    identity: str  # sha256:.., which stays the same when a tag moves
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DockerEngine:
    """The Docker engine at this address, such as unix:///var/run/docker.sock."""

    address: str

    @classmethod
    def chosen(cls, environ: Mapping[str, str]) -> DockerEngine:
        """The engine that docker itself would take, from DOCKER_HOST or its context. Raises UserError if none answers."""
        try:
            found = _run([PROGRAM, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"], environ)
        except FileNotFoundError:
            raise UserError(
                "--docker", "there is no program docker on PATH", fix=f"install Docker, {WITHOUT}"
            ) from None
        address = found.stdout.strip()
        if found.returncode:
            raise UserError("--docker", _last_line(found.stderr), fix="correct DOCKER_CONTEXT or `docker context use`")
        if not address.startswith(LOCAL):
            raise UserError(
                "--docker",
                f"the engine {address} is on another machine and cannot mount folders of this one",
                allowed="an engine behind a unix:// socket",
                fix=f"unset DOCKER_HOST and DOCKER_CONTEXT, {WITHOUT}",
            )
        engine = cls(address)
        asked = _run(engine.words("version", "--format", "{{.Server.Version}}"), environ)
        if asked.returncode == 0:
            return engine
        if "permission denied" in asked.stderr.lower():
            raise UserError(
                "--docker",
                f"you may not use {address.removeprefix('unix://')}",
                fix=f"`sudo usermod -aG docker $USER` and log in again, {WITHOUT}",
            )
        raise UserError(
            "--docker",
            f"no Docker engine answers at {address}",
            fix=f"start it (`sudo systemctl start docker`), correct DOCKER_HOST, {WITHOUT}",
        )

    def words(self, *words: str) -> list[str]:
        """The argv of a docker command for this engine."""
        return [PROGRAM, "--host", self.address, *words]

    def image(self, name: str) -> Image:
        """An image that is on this machine; none is pulled. Raises UserError."""
        fix = f"`docker pull {name}`, or build one: ./build.sh build --variant cpu makes algorun:cpu"
        try:
            text = self.call("image", "inspect", "--format", "{{.Id}} {{json .Config.Labels}}", "--", name)
        except ApiError as error:
            if "no such image" in error.message.lower() or "invalid reference" in error.message.lower():
                raise UserError("--image", f"{name!r} is not on this machine", fix=fix) from None
            raise
        identity, _, labels = text.strip().partition(" ")
        return Image(name, identity, json.loads(labels) or {})

    def call(self, *words: str, limit_s: float = CALL_S, added: Mapping[str, str] | None = None) -> str:
        """Runs a docker command and returns what it printed. Raises ApiError with docker's own text.

        `added`: variables of the command beside those of this process.
        """
        operation = f"docker {words[0]}"
        try:
            done = _run(self.words(*words), {**os.environ, **(added or {})}, limit_s)
        except FileNotFoundError:
            raise ApiError("DockerError", "there is no program docker on PATH", operation) from None
        except subprocess.TimeoutExpired:
            raise ApiError("DockerError", f"no answer for {limit_s:g} s", operation) from None
        if done.returncode:
            raise ApiError("DockerError", _last_line(done.stderr), operation)
        return done.stdout


def _run(words: list[str], environ: Mapping[str, str], limit_s: float = CALL_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit_s,
        check=False,
    )


def _last_line(text: str) -> str:
    """The line of docker's stderr that says what is wrong; warnings come before it."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("See 'docker")]
    return lines[-1].removeprefix("Error response from daemon: ") if lines else "docker printed no reason"
