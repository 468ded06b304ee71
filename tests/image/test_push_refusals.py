"""How a push that AWS, a registry or Docker refuses ends: with one line that names the cause and the fix."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.image.ecr import ABSENT, HOST, Answer, Pushes, aws_error, folders_of


@pytest.mark.parametrize(
    ("answers", "parts"),
    [
        ({"aws describe-repositories": ABSENT}, ["--repository 'algorun'", "no such repository", "--create"]),
        ({"aws describe-repositories": aws_error("ExpiredTokenException", "The security token included in the request is expired")},
         ["AWS credentials: expired", "security token", "sso login"]),
        ({"aws describe-repositories": (255, "", "Error loading SSO Token: Token for x does not exist\n")}, ["expired", "sso login"]),
        ({"aws describe-repositories": aws_error("UnrecognizedClientException", "The security token included in the request is invalid.")},
         ["AWS credentials: not valid", "Correct"]),
        ({"aws describe-repositories": (253, "", "Unable to locate credentials. You can configure ..\n")}, ["none found", "AWS_PROFILE"]),
        ({"aws describe-repositories": ABSENT, "aws create-repository": aws_error("AccessDeniedException", "User: u is not authorized to perform: ecr:CreateRepository")},
         ["ECR: access denied", "ecr:CreateRepository", "Ask for this right"]),
        ({"aws describe-repositories": (255, "", 'Connect timeout on endpoint URL: "https://api.ecr.x/"\n')}, ["no answer (Connect timeout"]),
        ({"aws describe-repositories": (124, "", "")}, ["ECR: no answer (after 60 s)", "HTTPS_PROXY"]),
        ({"aws describe-repositories": aws_error("ServerException", "boom")}, ["ECR: An error occurred (ServerException)", "boom"]),
        ({"aws get-login-password": aws_error("AccessDeniedException", "not authorized to perform: ecr:GetAuthorizationToken")},
         ["access denied", "ecr:GetAuthorizationToken"]),
        ({"aws describe-repositories": (0, f"{HOST}/algorun\tIMMUTABLE\tTrue\n", "")}, ["tag 'cuda'", "has it already", "algorun:NEW-TAG"]),
        ({"docker login": (1, "", "Error response from daemon: login attempt to https://h/v2/ failed with status: 401 Unauthorized\n")},
         [f"registry '{HOST}'", "does not take ECR's password", "401"]),
        ({"docker push": (1, "", "tag invalid: The image tag 'cuda' already exists in the 'algorun' repository and cannot be overwritten because the repository is immutable.\n")},
         ["tag 'cuda'", "immutable", "algorun:NEW-TAG"]),
        ({"docker push": (1, "", "denied: User: u is not authorized to perform: ecr:InitiateLayerUpload on resource: r\n")},
         [f"registry '{HOST}': access denied", "ecr:InitiateLayerUpload"]),
        ({"docker push": (1, "", 'Get "https://h/v2/": dial tcp: lookup h: no such host\n')}, ["not reachable", "no such host", "proxy"]),
        ({"docker push": (124, "", "")}, ["not done after 7200 s", "--limit"]),
        ({"docker push": (1, "", "unexpected status: 500\n")}, [f"registry '{HOST}': unexpected status: 500"]),
        ({"docker image inspect": (1, "", ""), "docker info": (1, "", "")}, ["no Docker engine answers"]),
    ],
)  # fmt: skip
def test_push_says_in_one_line_what_is_wrong(tmp_path: Path, answers: dict[str, Answer], parts: list[str]) -> None:
    programs = Pushes(tmp_path, answers)
    done = programs.push("--create") if "aws create-repository" in answers else programs.push()
    assert done.returncode == 1, done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("build.sh: ")
    for part in parts:
        assert part in done.stderr
    assert "image_uri" not in done.stdout
    assert not any(folder.exists() for folder in folders_of(done.stdout))


def test_push_needs_a_region_and_the_right_machine(tmp_path: Path) -> None:
    no_region = (
        253,
        "",
        '\nYou must specify a region. You can also configure your region by running "aws configure".\n',
    )
    done = Pushes(tmp_path / "region", {"aws describe-repositories": no_region}).push()
    assert done.returncode == 64
    assert "--region: no region is set. Write --region NAME" in done.stderr
    programs = Pushes(tmp_path / "arm", {"docker image inspect --format {{.Os}}": (0, "linux/arm64\n", "")})
    done = programs.push()
    assert done.returncode == 64
    assert "made for linux/arm64, --platform is linux/amd64" in done.stderr
    assert programs.push("--platform", "linux/arm64").returncode == 0


def test_push_without_the_aws_cli(tmp_path: Path) -> None:
    programs = Pushes(tmp_path)
    (tmp_path / "bin" / "aws").unlink()
    for name in ("bash", "dirname", "cat"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    done = programs.push(PATH=f"{tmp_path}/bin")
    assert done.returncode == 1
    assert done.stderr == "build.sh: aws: not installed. Install the AWS CLI, version 2 or 1.17.10 and later\n"
