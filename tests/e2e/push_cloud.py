"""What stands for AWS in the tests of `build.sh push`: registries that ask for a password, and moto's server.

ECR's registry and its API know of each other, these two do not, so a test that needs ECR to know an image tells it
(PutImage with the pushed manifest)."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from algorun.common.free_ports import free_ports

START_LIMIT_S = 60.0
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
ACCOUNT = "123456789012"  # moto's
PASSWORD = f"{ACCOUNT}-auth-token"  # moto's GetAuthorizationToken
REGION = "eu-west-1"


@contextmanager
def server(argv: list[str], url: str, log: Path, **environ: str) -> Iterator[None]:
    """Runs a server until it answers at `url` with any status, and ends it, with its children, afterwards."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv,
            stdout=out,
            stderr=out,
            env={**os.environ, **environ},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                direct.open(url, timeout=5).close()
                break
            except urllib.error.HTTPError:
                break
            except OSError:
                assert process.poll() is None, f"{argv[0]} left:\n{log.read_text()[-2000:]}"
                assert time.monotonic() < deadline, f"{argv[0]} does not answer:\n{log.read_text()[-2000:]}"
                time.sleep(0.05)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)


# A proxy of this machine has no way to its loopback.
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextmanager
def registry(folder: Path, password: str) -> Iterator[str]:
    """A registry on loopback for the user AWS with this password; HOST:PORT."""
    import bcrypt

    folder.mkdir()
    host = f"127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"
    hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
    (folder / "htpasswd").write_text(f"AWS:{hashed}\n")
    settings = {
        "version": "0.1",
        "log": {"level": "warn"},
        "http": {"addr": host},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "auth": {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}},
    }
    (folder / "config.yml").write_text(json.dumps(settings))  # JSON is YAML too
    with server(["docker-registry", "serve", str(folder / "config.yml")], f"http://{host}/v2/", folder / "log"):
        yield host


@dataclass(frozen=True, slots=True)
class Cloud:
    """What stands for AWS."""

    registry: str
    """HOST:PORT that takes ECR's password"""
    stranger: str
    """HOST:PORT of a registry that takes another one"""
    api: str
    """URL of the API"""

    def client(self, service: str) -> Any:
        import boto3

        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        return boto3.client(service, endpoint_url=self.api, region_name=REGION, **keys)

    def manifest(self, repository: str, tag: str) -> str | None:
        """What the registry has under this tag."""
        request = urllib.request.Request(f"http://{self.registry}/v2/{repository}/manifests/{tag}")
        request.add_header("Authorization", f"Basic {base64.b64encode(f'AWS:{PASSWORD}'.encode()).decode()}")
        kinds = ("application/vnd.docker.distribution.manifest.v2+json", "application/vnd.oci.image.manifest.v1+json")
        request.add_header("Accept", ", ".join(kinds))
        try:
            with direct.open(request, timeout=30) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise


def check_keys(cloud: Cloud, after: str) -> None:
    """Lets moto look at keys and rights as AWS does, after so many calls."""
    text = {"Content-Type": "text/plain"}
    request = urllib.request.Request(f"{cloud.api}/moto-api/reset-auth", data=after.encode(), headers=text)
    direct.open(request, timeout=30).close()


@contextmanager
def silent_behind(host: str) -> Iterator[str]:
    """HOST:PORT that passes on questions about /v2/ itself, which is what a login asks, and answers no other."""
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    ending = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/v2/":
                ending.wait(60)
                return
            request = urllib.request.Request(f"http://{host}/v2/")
            if "Authorization" in self.headers:
                request.add_header("Authorization", self.headers["Authorization"])
            try:
                with direct.open(request, timeout=30) as answer:
                    status, headers = answer.status, answer.headers
            except urllib.error.HTTPError as error:
                status, headers = error.code, error.headers
            self.send_response(status)
            for name in ("WWW-Authenticate", "Docker-Distribution-Api-Version"):
                if name in headers:
                    self.send_header(name, headers[name])
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_POST = do_GET

        def log_message(self, *_: object) -> None:
            return

    front = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    front.daemon_threads = True
    thread = threading.Thread(target=front.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{front.server_port}"
    finally:
        ending.set()
        front.shutdown()
        front.server_close()
        thread.join(timeout=10)


def missing() -> list[str]:
    """The programs that this needs and the machine lacks, each with the package that has it."""
    programs = {"docker-registry": "docker-registry", "aws": "awscli", "moto_server": "pip install -e '.[test]'"}
    return [f"{program} ({name})" for program, name in programs.items() if not shutil.which(program, path=PATH)]


@contextmanager
def started(folder: Path) -> Iterator[Cloud]:
    """All of it, with its files below the folder."""
    port = free_ports("127.0.0.1", 1)[0]
    moto = [str(shutil.which("moto_server", path=PATH)), "-H", "127.0.0.1", "-p", str(port)]
    with ExitStack() as stack:
        ours = stack.enter_context(registry(folder / "registry", PASSWORD))
        stranger = stack.enter_context(registry(folder / "stranger", "another password"))
        stack.enter_context(server(moto, f"http://127.0.0.1:{port}/moto-api/", folder / "moto.log"))
        yield Cloud(ours, stranger, f"http://127.0.0.1:{port}")
