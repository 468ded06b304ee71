"""What build.sh says to a command line that cannot be meant, and its help."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.image.programs import Programs


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["bulid"], ["'bulid'", "build, run, test, push, base"]),
        (["build", "--variant", "rocm"], ["--variant 'rocm'", "cuda, cpu"]),
        (["build", "--variant"], ["--variant", "takes a value"]),
        (["build", "--ca", "/no/such"], ["--ca '/no/such'", "no such file"]),
        (["build", "--wheelhouse", "/no/such"], ["--wheelhouse '/no/such'", "no such folder"]),
        (["build", "--build-arg", "X"], ["--build-arg 'X'", "NAME=VALUE"]),
        (["base", "--suite", "sid"], ["--suite 'sid'", "bookworm (Debian 12), trixie (Debian 13)"]),
        (["build", "--push"], ["'--push'", "-h"]),
        (["build", "--create"], ["'--create'", "not an option of 'build'", "push"]),
        (["push", "--opt-out"], ["'--opt-out'", "not an option of 'push'", "-h"]),
        (["push", "--repository"], ["--repository", "takes a value"]),
        (["push", "--repository", "Upper"], ["--repository 'Upper'", "a-z 0-9"]),
        (
            ["push", "--repository", "1.dkr.ecr.eu-west-1.amazonaws.com/x"],
            ["--repository '1.dkr", "Leave the host out"],
        ),
        (["push", "--repository", "host.example:5000/x"], ["tag '5000/x'", "--repository NAME:TAG"]),
        (["push", "--repository", "x/y:z/"], ["tag 'z/'", "--repository NAME:TAG"]),
        (["push", "--tag", "x@sha256:0"], ["image 'x@sha256:0'", "not on this machine"]),
        (["push", "--scan-on-push", "--immutable-tags"], ["--scan-on-push --immutable-tags", "only with --create"]),
        (["push", "--account", "1234"], ["--account '1234'", "12 digits"]),
        (["push", "--region", "eu west"], ["--region 'eu west'", "eu-west-1"]),
        (["push", "--registry", "https://a.example"], ["--registry 'https://a.example'", "HOST:PORT", "https://"]),
        (["push", "--endpoint-url", "a.example"], ["--endpoint-url 'a.example'", "https://"]),
        (["push", "--platform", "arm64"], ["--platform 'arm64'", "OS/ARCH", "linux/arm64"]),
        (["push", "--limit", "2h"], ["--limit '2h'", "seconds"]),
        (["push", "--tag", "none:none"], ["image 'none:none'", "build --variant cuda"]),
        (["test", "--tag", "none:none"], ["image 'none:none'", "build --variant cuda"]),
    ],
)
def test_errors_name_option_value_and_fix(tmp_path: Path, argv: list[str], parts: list[str]) -> None:
    done = Programs(tmp_path).run(*argv)
    assert done.returncode == 64
    assert done.stdout == ""
    for part in parts:
        assert part in done.stderr


def test_help(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    assert "usage: ./build.sh" in programs.run("-h").stdout
    assert programs.run().returncode == 64
