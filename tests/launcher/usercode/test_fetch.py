"""Code from S3, from a real client against an S3 server on loopback; every error in one line with a way out."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from algorun.common import STAGE
from algorun.common.errors import UserError
from algorun.common.free_ports import free_ports
from algorun.job.hyperparameter_groups import Hyperparameters
from algorun.job.paths import Paths
from algorun.job.usercode import Setup, has_files, is_package, named_source, needed
from algorun.usercode.fetch import fetch

boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("moto.server", reason="moto[server] is not installed")

BUCKET = "code-bucket"


def source() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        info = tarfile.TarInfo("train.py")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"x = 1"))
    return out.getvalue()


@pytest.fixture(scope="module")
def endpoint():
    port = free_ports("127.0.0.1", 1)[0]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert server.poll() is None, "moto's server has left"
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def account(endpoint, monkeypatch):
    """Keys that this server takes, and nothing of this machine's own AWS settings."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nowhere", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere", "NO_PROXY": "127.0.0.1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", region_name="us-east-1", endpoint_url=endpoint)
    client.create_bucket(Bucket=BUCKET)
    client.put_object(Bucket=BUCKET, Key="job/source/sourcedir.tar.gz", Body=source())
    for name in ("train.py", "lib/part.py", "lib/"):
        client.put_object(Bucket=BUCKET, Key=f"folder/{name}", Body=b"y = 2")
    client.put_object(Bucket=BUCKET, Key="evil/../../out.py", Body=b"z")
    client.put_object(Bucket=BUCKET, Key="text.tar.gz", Body=b"no archive")
    return client


def setup(tmp_path: Path, key: str, bucket: str = BUCKET) -> Setup:
    return Setup(f"s3://{bucket}/{key}", str(tmp_path / "code"), "train.py", "us-east-1")


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "S3_ENDPOINT_URL"])
def test_an_archive_comes_from_s3_through_the_variables_of_both_sdks(
    variable, account, endpoint, tmp_path, monkeypatch
):
    monkeypatch.setenv(variable, endpoint)
    digest = fetch(setup(tmp_path, "job/source/sourcedir.tar.gz"), os.environ)
    assert len(digest) == 64
    assert (tmp_path / "code" / "train.py").read_text() == "x = 1"


def test_a_prefix_is_a_folder(account, endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    for key in ("folder/", "folder"):
        code = tmp_path / key.replace("/", "-")
        fetch(Setup(f"s3://{BUCKET}/{key}", str(code), "train.py", "us-east-1"), os.environ)
        assert sorted(str(p.relative_to(code)) for p in code.rglob("*.py")) == ["lib/part.py", "train.py"]


@pytest.mark.parametrize(
    ("key", "bucket", "says"),
    [
        ("absent.tar.gz", BUCKET, "S3 answers 404; fix: check bucket and key"),
        ("x.tar.gz", "no-such-bucket-here", "S3 answers (404|NoSuchBucket); fix: check bucket and key"),
        ("", BUCKET, "is not an S3 object"),
        ("absent/", BUCKET, "does not exist"),
        ("evil/", BUCKET, r"object '../../out.py' would lie outside"),
        ("text.tar.gz", BUCKET, "is not a tar file"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(key, bucket, says, account, endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    with pytest.raises(UserError, match=says):
        fetch(setup(tmp_path, key, bucket), os.environ)
    assert list((tmp_path / "code").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["code"]


class Answers:
    """A server that gives one HTTP answer to everything."""

    def __init__(self, status: str, body: str = "") -> None:
        import threading

        self.sock = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.sock.getsockname()[1]}"
        self.answer = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                peer, _ = self.sock.accept()
            except OSError:
                return
            peer.settimeout(5)
            with peer:
                try:
                    peer.recv(65536)
                    peer.sendall(self.answer)
                except OSError:
                    pass


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("403 Forbidden", "S3 answers 403; fix: allow the job's role"),
        ("301 Moved Permanently", "S3 answers 301|region"),
    ],
)
def test_refusals_of_s3_say_what_to_do(status, says, account, tmp_path, monkeypatch):
    server = Answers(status)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
    with pytest.raises(UserError, match=says) as caught:
        fetch(setup(tmp_path, "job/source/sourcedir.tar.gz"), os.environ)
    server.sock.close()
    assert "testing" not in str(caught.value)


def test_no_credentials(account, endpoint, tmp_path, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    with pytest.raises(UserError, match="no AWS credentials; fix: give the job a role"):
        fetch(setup(tmp_path, "job/source/sourcedir.tar.gz"), os.environ)


def test_nobody_listens(account, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setattr("algorun.usercode.fetch.RETRIES", 1)
    with pytest.raises(UserError, match="S3 cannot be reached"):
        fetch(setup(tmp_path, "job/source/sourcedir.tar.gz"), os.environ)


def test_a_silent_server_is_given_up(account, tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr("algorun.usercode.fetch.RETRIES", 1)
        monkeypatch.setattr("algorun.usercode.fetch.READ_TIMEOUT_S", 1)
        with pytest.raises(UserError, match="S3 cannot be reached"):
            fetch(setup(tmp_path, "job/source/sourcedir.tar.gz"), os.environ)


@pytest.mark.parametrize("uri", ["https://example.com/x.tar.gz", "/absent/source.tar.gz", "file:///absent"])
def test_other_addresses_are_refused(uri, tmp_path):
    with pytest.raises(UserError, match="sagemaker_submit_directory"):
        fetch(Setup(uri, str(tmp_path / "code"), "train.py"), {})


@pytest.mark.parametrize(
    "uri", ["https://user:hidden@host/x?X-Amz-Signature=hidden", "s3://hidden:hidden@bucket/key", "s3://[hidden"]
)
def test_an_address_with_a_key_in_it_is_refused_before_any_program_sees_it(uri, tmp_path):
    platform = Hyperparameters.parse({"sagemaker_submit_directory": uri}).platform
    with pytest.raises(UserError, match=r"^sagemaker_submit_directory: ") as refused:
        needed(named_source(platform, {}, Paths(tmp_path), "train.py"))
    assert "hidden" not in str(refused.value)


def test_what_is_no_code_brings_one_clear_error_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "cut.tar.gz").write_bytes(source()[:20])
    code = tmp_path / "code"
    for uri in (tmp_path / "fifo", tmp_path / "cut.tar.gz", tmp_path, "/dev/zero", "/" + "x" * 300, "/a\ud800"):
        with pytest.raises(UserError, match="^sagemaker_submit_directory"):
            fetch(Setup(str(uri), str(code), "train.py"), {})
        assert list(code.iterdir()) == []


def test_a_file_that_does_not_fit_leaves_nothing(tmp_path, monkeypatch):
    def full(source, target):
        Path(target).write_text("half")
        raise OSError(28, "No space left on device")

    (tmp_path / "train.py").write_text("x")
    monkeypatch.setattr("shutil.copy2", full)
    with pytest.raises(UserError, match="No space left"):
        fetch(Setup(str(tmp_path / "train.py"), str(tmp_path / "code"), "train.py"), {})
    assert list((tmp_path / "code").iterdir()) == []


def test_what_a_killed_preparation_has_left_is_not_taken_for_code(tmp_path):
    code = tmp_path / "code"
    (code / f"{STAGE}-1").mkdir(parents=True)
    (code / f"{STAGE}-1" / "half.py").write_text("x")
    assert not has_files(code)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text("x")
    fetch(Setup(str(tmp_path / "source"), str(code), "train.py"), {})
    assert [path.name for path in code.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("files", "program", "expected"),
    [
        ({"pyproject.toml": "a = " + "[" * 100_000}, "pkg", False),
        ({"pyproject.toml": ""}, "x" * 300, False),
        ({"setup.py": ""}, "train.py", True),
        ({"setup.py": ""}, "go.sh", False),
        ({"pyproject.toml": "[tool.ruff]\n"}, "pkg", False),
        ({"pyproject.toml": "[project]\nname = 'pkg'\n"}, "pkg", True),
        ({"pyproject.toml": "[project]\nname = 'pkg'\n", "train.py": ""}, "train.py", False),
        ({"pyproject.toml": "broken ["}, "pkg", False),
        ({}, "train.py", False),
    ],
)
def test_what_counts_as_a_package(files, program, expected, tmp_path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert is_package(tmp_path, program) is expected


def test_a_setup_goes_to_the_program_as_json():
    from algorun.common import codec

    setup = Setup("s3://b/k", "/opt/ml/code", "train.py", "eu-west-1")
    assert codec.from_json(Setup, json.loads(json.dumps(codec.to_json(setup)))) == setup
