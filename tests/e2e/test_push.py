"""`build.sh push`: what was pushed comes back, tags move, and a push that does not end leaves nothing.

Real: the AWS CLI, docker login and push, the registry, every HTTP answer. What is not real: push_cloud.py.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from containers import docker
from push_cloud import ACCOUNT, PASSWORD, Cloud, silent_behind
from pushing import Push, refusal, remove_images, repository

pytestmark = pytest.mark.docker


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


def test_a_tag_that_can_move_moves(push: Push, cloud: Cloud) -> None:
    name = repository()
    for options in ((), ("--account", ACCOUNT)):
        done = push("--repository", name, "--create", *options)
        assert done.returncode == 0, done.stderr
        assert f"image_uri: {cloud.registry}/{name}:small\n" in done.stdout, "the tag of the image"


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


def has_ended(group: int) -> bool:
    """True if the group has no process any more."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_push_that_is_interrupted_ends_and_leaves_nothing(push: Push, cloud: Cloud) -> None:
    """Control-C reaches the whole group; the fixture looks for the folder with the password."""
    with silent_behind(cloud.registry) as host:
        process = push.start("--repository", repository(), "--create", registry=host)
        push.until_it_pushes(process)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=20)
        deadline = time.monotonic() + 20
        while not has_ended(process.pid):  # docker ends by the same signal, and may take longer than the script
            assert time.monotonic() < deadline
            time.sleep(0.05)
        done = push.end(process)
    assert done.returncode != 0
    assert "image_uri" not in done.stdout
