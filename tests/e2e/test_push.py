"""`build.sh push` against a real registry that asks for a password, and moto's server as the API of ECR and IAM.

Real: the AWS CLI, docker login and push, the registry, every HTTP answer. Not real: ECR's registry and its API know of
each other, these two do not, so a test that needs ECR to know an image tells it (PutImage with the pushed manifest).
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from containers import LABEL, REPOSITORY, docker

from algorun.network.addresses import free_ports

pytestmark = pytest.mark.docker

START_LIMIT_S = 60.0
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
ACCOUNT = "123456789012"  # moto's
PASSWORD = f"{ACCOUNT}-auth-token"  # moto's GetAuthorizationToken
REGION = "eu-west-1"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
RUN = f"push-{uuid.uuid4().hex[:10]}"


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


@pytest.fixture(scope="module")
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    programs = {"docker-registry": "docker-registry", "aws": "awscli", "moto_server": "pip install -e '.[test]'"}
    missing = [f"{program} ({name})" for program, name in programs.items() if not shutil.which(program, path=PATH)]
    if missing:
        # As for Docker itself: `make compose-test` fails, a plain `pytest` skips.
        stop = pytest.fail if "docker" in (request.config.option.markexpr or "") else pytest.skip
        stop(f"not installed: {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("cloud")
    port = free_ports("127.0.0.1", 1)[0]
    moto = [str(shutil.which("moto_server", path=PATH)), "-H", "127.0.0.1", "-p", str(port)]
    with ExitStack() as stack:
        ours = stack.enter_context(registry(folder / "registry", PASSWORD))
        stranger = stack.enter_context(registry(folder / "stranger", "another password"))
        stack.enter_context(server(moto, f"http://127.0.0.1:{port}/moto-api/", folder / "moto.log"))
        yield Cloud(ours, stranger, f"http://127.0.0.1:{port}")


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
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


@pytest.fixture
def push(cloud: Cloud, image: str, tmp_path: Path) -> Iterator[Push]:
    """Afterwards the user's docker configuration is as before, no helper was asked, and no folder is left."""
    bin_, config = tmp_path / "bin", tmp_path / ".docker" / "config.json"
    bin_.mkdir()
    config.parent.mkdir()
    config.write_text('{"credsStore": "test", "credHelpers": {"a.example": "test"}, "auths": {"b.example": {}}}\n')
    before = config.read_bytes()
    # `pass` and `secretservice` are those that docker chooses by itself on Linux where it finds them.
    for helper in ("docker-credential-test", "docker-credential-pass", "docker-credential-secretservice"):
        (bin_ / helper).write_text(f'#!/bin/sh\necho {helper} "$@" >> {tmp_path}/helpers\nexit 1\n')
    (bin_ / "pass").write_text("#!/bin/sh\nexit 0\n")
    (bin_ / "docker").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nexec {shutil.which("docker")} "$@"\n')
    for program in bin_.iterdir():
        program.chmod(0o755)
    yield Push(cloud, image, tmp_path)
    assert config.read_bytes() == before
    assert [path.name for path in config.parent.iterdir()] == ["config.json"]
    assert not (tmp_path / "helpers").exists()
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


def test_what_was_pushed_comes_back_by_its_digest(push: Push, cloud: Cloud, tmp_path: Path) -> None:
    name = repository()
    identity = docker("image", "inspect", "--format", "{{.Id}}", push.image)
    done = push("--repository", f"{name}:1.0", "--create", "--scan-on-push", "--immutable-tags")
    assert done.returncode == 0, done.stdout + done.stderr
    uri, by_digest = done.stdout.splitlines()[-2:]
    assert uri == f"image_uri: {cloud.registry}/{name}:1.0"
    found = re.fullmatch(rf"by digest: ({re.escape(cloud.registry)}/{name}@sha256:[0-9a-f]{{64}})", by_digest)
    assert found, by_digest

    made = cloud.client("ecr").describe_repositories(repositoryNames=[name])["repositories"][0]
    assert made["imageTagMutability"] == "IMMUTABLE"
    assert made["imageScanningConfiguration"] == {"scanOnPush": True}

    # The password is ECR's, it went through a pipe, and nobody wrote it down.
    assert any(call.startswith("login --username AWS --password-stdin") for call in push.docker_calls())
    assert PASSWORD not in "\n".join([done.stdout, done.stderr, *push.docker_calls()])

    auth = base64.b64encode(f"AWS:{PASSWORD}".encode()).decode()
    reader = tmp_path / "reader"
    reader.mkdir()
    (reader / "config.json").write_text(json.dumps({"auths": {cloud.registry: {"auth": auth}}}))
    kept = tmp_path / "image.tar"
    docker("save", "--output", str(kept), push.image)
    remove_images()
    try:
        assert (
            subprocess.run(
                ["docker", "image", "inspect", identity], capture_output=True, timeout=60, check=False
            ).returncode
            != 0
        )
        docker("--config", str(reader), "pull", found[1])
        assert docker("image", "inspect", "--format", "{{.Id}}", found[1]) == identity
    finally:
        docker("load", "--input", str(kept))


def test_a_tag_that_cannot_move_is_refused_before_anything_is_sent(push: Push, cloud: Cloud) -> None:
    name = repository()
    options = ("--create", "--immutable-tags")
    assert push("--repository", f"{name}:1.0", *options).returncode == 0
    manifest = cloud.manifest(name, "1.0")
    assert manifest is not None
    cloud.client("ecr").put_image(repositoryName=name, imageManifest=manifest, imageTag="1.0")
    before = len(push.docker_calls())
    line = refusal(push("--repository", f"{name}:1.0", *options))
    assert f"tag '1.0': repository '{name}' has it already, and its tags are immutable" in line
    assert f"--repository {name}:NEW-TAG" in line
    assert not [call for call in push.docker_calls()[before:] if call.startswith(("login", "push", "tag"))]
    again = push("--repository", f"{name}:1.1")
    assert again.returncode == 0, again.stderr
    assert cloud.manifest(name, "1.1") == manifest


def test_a_tag_that_can_move_moves(push: Push, cloud: Cloud) -> None:
    name = repository()
    for options in ((), ("--account", ACCOUNT)):
        done = push("--repository", name, "--create", *options)
        assert done.returncode == 0, done.stderr
        assert f"image_uri: {cloud.registry}/{name}:small\n" in done.stdout, "the tag of the image"


def test_an_absent_repository_is_made_only_if_asked(push: Push, cloud: Cloud) -> None:
    name = repository()
    line = refusal(push("--repository", name))
    assert f"--repository '{name}': ECR in {REGION} has no such repository. Add --create" in line
    names = [found["repositoryName"] for found in cloud.client("ecr").describe_repositories()["repositories"]]
    assert name not in names
    assert cloud.manifest(name, "small") is None


@pytest.mark.parametrize(
    ("option", "words"),
    [("--immutable-tags", "its tags are MUTABLE"), ("--scan-on-push", "does not scan")],
)
def test_a_repository_that_exists_otherwise_is_not_changed_in_silence(
    push: Push, cloud: Cloud, option: str, words: str
) -> None:
    name = repository()
    cloud.client("ecr").create_repository(repositoryName=name)
    line = refusal(push("--repository", name, "--create", option))
    assert f"{option}: repository '{name}' exists" in line
    assert words in line
    assert cloud.manifest(name, "small") is None


def test_a_registry_that_refuses_the_password(push: Push, cloud: Cloud) -> None:
    line = refusal(push("--repository", repository(), "--create", registry=cloud.stranger))
    assert f"registry '{cloud.stranger}': it does not take ECR's password" in line
    assert "401" in line


def test_without_credentials(push: Push) -> None:
    line = refusal(push("--repository", repository(), keys={}))
    assert "AWS credentials: none found. Set AWS_PROFILE" in line


def test_keys_that_are_wrong_and_keys_without_rights(push: Push, cloud: Cloud) -> None:
    iam = cloud.client("iam")
    user = f"user-{uuid.uuid4().hex[:8]}"
    iam.create_user(UserName=user)
    key = iam.create_access_key(UserName=user)["AccessKey"]
    own = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
    check_keys(cloud, "0")
    try:
        assert "AWS credentials: not valid (" in refusal(push("--repository", repository()))
        line = refusal(push("--repository", repository(), "--create", keys=own))
        assert f"ECR in {REGION}: access denied (" in line
        assert "ecr:DescribeRepositories" in line
    finally:
        check_keys(cloud, "inf")


def check_keys(cloud: Cloud, after: str) -> None:
    """Lets moto look at keys and rights as AWS does, after so many calls."""
    text = {"Content-Type": "text/plain"}
    request = urllib.request.Request(f"{cloud.api}/moto-api/reset-auth", data=after.encode(), headers=text)
    direct.open(request, timeout=30).close()


@pytest.mark.parametrize("what", ["registry", "api"])
def test_nobody_answers(push: Push, what: str) -> None:
    nobody = "127.0.0.1:40100"  # a port that looks like a status code
    if what == "api":
        line = refusal(push("--repository", repository(), api=f"http://{nobody}"))
        assert f"ECR in {REGION} at http://{nobody}: no answer (" in line
    else:
        line = refusal(push("--repository", repository(), "--create", registry=nobody))
        assert f"registry '{nobody}': not reachable (" in line


def test_an_upload_that_does_not_end(push: Push, cloud: Cloud) -> None:
    """A registry that takes the password and then keeps silent, as a broken network does."""
    name = repository()
    with silent_behind(cloud.registry) as host:
        process = push.start("--repository", name, "--create", "--limit", "3", registry=host)
        push.until_it_pushes(process)
        started = time.monotonic()
        line = refusal(push.end(process))
        assert f"registry '{host}': not done after 3 s" in line
        assert time.monotonic() - started < 15


def test_a_push_that_is_interrupted_ends_and_leaves_nothing(push: Push, cloud: Cloud) -> None:
    """Control-C reaches the whole group; the fixture looks for the folder with the password."""
    with silent_behind(cloud.registry) as host:
        process = push.start("--repository", repository(), "--create", registry=host)
        push.until_it_pushes(process)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=20)
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
        done = push.end(process)
    assert done.returncode != 0
    assert "image_uri" not in done.stdout


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


def test_an_image_for_other_machines(push: Push) -> None:
    line = refusal(push("--repository", repository(), "--platform", "linux/s390x"), code=64)
    assert f"image '{push.image}': made for linux/" in line
    assert "--platform is linux/s390x" in line
