"""`build.sh push` refuses what it cannot do: one line that says why, before anything is sent."""

from __future__ import annotations

import uuid

import pytest
from push_cloud import REGION, Cloud, check_keys
from pushing import Push, refusal, repository

pytestmark = pytest.mark.docker


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


@pytest.mark.parametrize("what", ["registry", "api"])
def test_nobody_answers(push: Push, what: str) -> None:
    nobody = "127.0.0.1:40100"  # a port that looks like a status code
    if what == "api":
        line = refusal(push("--repository", repository(), api=f"http://{nobody}"))
        assert f"ECR in {REGION} at http://{nobody}: no answer (" in line
    else:
        line = refusal(push("--repository", repository(), "--create", registry=nobody))
        assert f"registry '{nobody}': not reachable (" in line


def test_an_image_for_other_machines(push: Push) -> None:
    line = refusal(push("--repository", repository(), "--platform", "linux/s390x"), code=64)
    assert f"image '{push.image}': made for linux/" in line
    assert "--platform is linux/s390x" in line
