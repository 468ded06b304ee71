"""What ECR, the AWS CLI and docker answer to a push that works, and how the AWS CLI writes an error."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.image.programs import DONE, Answer, Programs

HOST = "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn"
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
PASSWORD = "s3cret-of-ecr"
ANSWERS = {
    "aws describe-repositories": (0, f"{HOST}/algorun\tMUTABLE\tFalse\n", ""),
    "aws create-repository": (0, f"{HOST}/algorun\tIMMUTABLE\tTrue\n", ""),
    "aws describe-images": (0, f"{DIGEST}\n", ""),
    "aws get-login-password": (0, f"{PASSWORD}\n", ""),
    "docker image inspect": DONE,
    "docker image inspect --format {{.Os}}": (0, "linux/amd64\n", ""),
    "docker image inspect --format {{range": (0, f"other.example/algorun@{DIGEST}\n{HOST}/algorun@{DIGEST}\n", ""),
    "docker context inspect": (0, "default\n", ""),
    "docker login": (0, "Login Succeeded\n", "WARNING! Your password will be stored unencrypted\n"),
}


def aws_error(code: str, words: str) -> Answer:
    return (254, "", f"\nAn error occurred ({code}) when calling the X operation: {words}\n")


ABSENT = aws_error("RepositoryNotFoundException", "The repository with name 'algorun' does not exist")
FREE = aws_error("ImageNotFoundException", "The image with imageId {..} does not exist")


class Pushes(Programs):
    """Programs for pushes that work, but for `answers`."""

    def __init__(self, folder: Path, answers: Mapping[str, Answer] = {}) -> None:
        super().__init__(folder, {**ANSWERS, **answers})

    def push(self, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return self.run("push", *argv, **environ)


def folders_of(printed: str) -> list[Path]:
    """The folder of its own that a push makes, for the password; none where it ended before."""
    return [Path(line.split()[-1]) for line in printed.splitlines() if line.startswith("+ mkdir -m 700 ")]
