"""`build.sh push`: what it asks ECR, how it hands over the password, and what it prints.

tests/e2e/test_push.py pushes to a real registry.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from tests.image.ecr import ABSENT, DIGEST, FREE, HOST, PASSWORD, Pushes, folders_of


def commands(printed: str) -> list[list[str]]:
    """The printed command lines without what only surrounds them; a pipe is two."""
    found = []
    for line in printed.splitlines():
        if line.startswith("+ "):
            for part in line.removeprefix("+ ").split(" | "):
                words = shlex.split(part)
                start = next((i for i, word in enumerate(words) if word == "aws" or word.endswith("/docker")), None)
                found += [[Path(words[start]).name, *words[start + 1 :]]] if start is not None else []
    return found


def test_push_prints_what_it_runs_and_hides_the_password(tmp_path: Path) -> None:
    programs = Pushes(tmp_path)
    done = programs.push("--repository", "algorun:1.0", "--region", "cn-north-1", "--account", "123456789012")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    uri, by_digest = done.stdout.splitlines()[-2:]
    assert (uri, by_digest) == (f"image_uri: {HOST}/algorun:1.0", f"by digest: {HOST}/algorun@{DIGEST}")
    ran = [call.argv for call in programs.printed_calls()]
    assert commands(done.stdout) == [words for words in ran if words[:3] != ["docker", "image", "inspect"]]
    assert PASSWORD not in done.stdout + json.dumps(ran)
    login, push = (next(call for call in programs.calls() if call.words[0] == name) for name in ("login", "push"))
    assert login.words == ["login", "--username", "AWS", "--password-stdin", HOST]
    assert login.read.strip() == PASSWORD
    assert push.words == ["push", f"{HOST}/algorun:1.0"]
    for call in (login, push):
        assert json.loads(call.config) == {"auths": {HOST: {}}}
        assert call.mode == "700"
        assert call.context == ""
        assert not any(Path(path).exists() for path in call.files.values())
    (folder,) = folders_of(done.stdout)
    assert not folder.exists()
    assert list(tmp_path.glob(".docker")) == []


def test_push_dry_run_asks_nobody_and_prints_everything(tmp_path: Path) -> None:
    programs = Pushes(tmp_path)
    options = ["--create", "--scan-on-push", "--immutable-tags", "--repository", "team/algorun", "--variant", "cpu"]
    done = programs.push(*options, "--limit", "60", "--endpoint-url", "https://vpce.example", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert [call.words for call in programs.calls()] == [["context", "inspect", "--format", "{{.Name}}"]]
    (folder,) = folders_of(done.stdout)
    assert not folder.exists()
    run = commands(done.stdout)
    assert [words[words.index("ecr") + 1] if words[0] == "aws" else words[1] for words in run] == [
        "describe-repositories", "create-repository", "describe-images", "get-login-password", "login", "tag", "push",
    ]  # fmt: skip
    assert all("--endpoint-url https://vpce.example ecr" in " ".join(words) for words in run[:4])
    assert "--image-scanning-configuration scanOnPush=true --image-tag-mutability IMMUTABLE" in " ".join(run[1])
    assert run[-1][1:] == ["push", "REGISTRY/team/algorun:cpu"]
    assert " timeout --foreground --kill-after 5 60 " in done.stdout.splitlines()[-1]
    named = programs.push("--dry-run", "--registry", "a.example:8443", "--tag", "mine@sha256:1")
    assert commands(named.stdout)[-1][1:] == ["push", "a.example:8443/algorun:latest"]
    assert "create-repository" not in named.stdout


def test_push_asks_the_engine_that_the_user_chose(tmp_path: Path) -> None:
    programs = Pushes(tmp_path, {"docker context inspect": (0, "desktop-linux\n", "")})
    contexts = tmp_path / ".docker" / "contexts"
    contexts.mkdir(parents=True)
    assert programs.push().returncode == 0
    push = next(call for call in programs.calls() if call.words[0] == "push")
    assert push.context == "desktop-linux"
    assert push.files["contexts"] == str(contexts)
    assert contexts.is_dir(), "the link went, not what it names"


def test_push_makes_the_repository_once(tmp_path: Path) -> None:
    programs = Pushes(tmp_path / "new", {"aws describe-repositories": ABSENT, "aws describe-images": FREE})
    done = programs.push("--create", "--immutable-tags", "--scan-on-push")
    assert done.returncode == 0, done.stderr
    assert [call for call in programs.calls() if "create-repository" in call.words]
    programs = Pushes(tmp_path / "old")
    assert programs.push("--create").returncode == 0
    assert not [call for call in programs.calls() if "create-repository" in call.words]


def test_push_asks_ecr_where_docker_knows_two_digests(tmp_path: Path) -> None:
    two = f"{HOST}/algorun@sha256:{'0' * 64}\n{HOST}/algorun@sha256:{'1' * 64}\n"
    programs = Pushes(tmp_path, {"docker image inspect --format {{range": (0, two, "")})
    assert programs.push().stdout.endswith(f"by digest: {HOST}/algorun@{DIGEST}\n")
