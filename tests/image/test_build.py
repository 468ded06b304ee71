"""`build.sh build`, `run` and `test`: which commands of docker they run, and with which client."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.image.programs import DONE, FAILED, ROOT, Programs

OLD = {"docker --version": (0, "Docker version 20.10.24+dfsg1, build 0\n", ""), "docker buildx": FAILED}
NO_BUILDKIT = {"docker --version": (0, "Docker version 28.2.2, build 0\n", ""), "docker buildx": FAILED}


def test_a_plain_docker_gets_a_plain_build(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    done = programs.run("build", "--no-host-settings")
    assert done.returncode == 0, done.stderr
    call = programs.printed_calls()[0]
    assert call.buildkit == "1"
    assert call.words[:3] == ["build", "--build-arg", "VARIANT=cuda"]
    assert call.words[-3:] == ["--tag", "algorun:cuda", str(ROOT)]
    assert not {"--secret", "--network"} & set(call.words)
    assert not any(word.startswith("BASE_IMAGE") for word in call.words), "the Dockerfile's own default"


@pytest.mark.parametrize(
    ("images", "base"), [((), "ubuntu:24.04@sha256:"), (("algorun-base:bookworm",), "algorun-base:bookworm")]
)
def test_cpu_builds_on_plain_ubuntu_or_on_the_local_base(tmp_path: Path, images: tuple[str, ...], base: str) -> None:
    programs = Programs(tmp_path, images=images)
    assert programs.run("build", "--variant", "cpu", "--no-host-settings").returncode == 0
    (word,) = [word for word in programs.printed_calls()[0].words if word.startswith("BASE_IMAGE=")]
    assert re.fullmatch(rf"BASE_IMAGE={base}([0-9a-f]{{64}})?", word)


def test_each_image_that_the_dockerfile_takes_from_a_registry_has_a_digest() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    stages, defaults = set[str](), dict(re.findall(r"^ARG (\w+)=(\S+)$", text.partition("\nFROM ")[0], re.MULTILINE))
    for image, stage in re.findall(r"^FROM (\S+) AS (\S+)$", text, re.MULTILINE):
        base = re.sub(r"\$\{(\w+)\}", lambda found: defaults[found[1]], image)
        assert base in {*stages, "scratch"} or re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", base), image
        stages.add(stage)
    assert 'org.opencontainers.image.base.name="${BASE_IMAGE}"' in text


@pytest.mark.parametrize("variant", ["cpu", "cuda"])
def test_a_base_image_without_a_digest_is_used_with_a_warning(tmp_path: Path, variant: str) -> None:
    for number, (base, warned) in enumerate((("debian:12", True), (f"debian:12@sha256:{'0' * 64}", False))):
        (tmp_path / str(number)).mkdir()
        programs = Programs(tmp_path / str(number))
        done = programs.run("build", "--variant", variant, "--no-host-settings", "--base-image", base)
        assert done.returncode == 0, done.stderr
        assert f"BASE_IMAGE={base}" in programs.printed_calls()[0].words
        assert ("a name without a digest" in done.stderr) is warned


def test_settings_travel_as_secrets_and_as_an_image(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    (folder / "ca.pem").write_text("certificate")
    (folder / "pip.conf").write_text("[global]\nindex-url = https://user:secret@mirror.example/simple\n")
    programs = Programs(folder, OLD)
    options = ("--ca", f"{folder}/ca.pem", "--pip-conf", f"{folder}/pip.conf", "--wheelhouse", str(wheels))
    done = programs.run("build", "--variant", "cpu", "--no-host-settings", "--network", "host", *options)
    assert done.returncode == 0, done.stderr
    imported, built, removed, _ = (call.words for call in programs.printed_calls())
    assert imported[:2] == ["import", "-"]
    assert re.fullmatch(r"algorun-wheelhouse:build-\d+", imported[2])  # two builds at once don't share it
    assert f"id=ca,src={folder}/ca.pem" in built
    assert f"id=pip_conf,src={folder}/pip.conf" in built
    assert f"WHEELHOUSE_IMAGE={imported[2]}" in built
    assert built[built.index("--network") + 1] == "host"
    assert "secret@mirror" not in done.stdout + done.stderr + json.dumps(built)
    assert removed == ["image", "rm", imported[2]]


@pytest.mark.parametrize("command", ["build", "run", "test"])
def test_what_is_printed_is_what_runs(tmp_path: Path, command: str) -> None:
    tag = "a$(touch x)'b:c d"
    options = [command, "--no-host-settings", "--tag", tag]
    options += ["--opt-ml", str(tmp_path)] if command == "run" else []
    options += ["--build-arg", "EXTRA_PACKAGES=git make"] if command == "build" else []
    programs = Programs(tmp_path, {f"docker image inspect {tag}": DONE})
    printed = programs.run(*options, "--dry-run")
    assert printed.returncode == 0, printed.stderr
    assert programs.printed_calls() == []
    ran = programs.run(*options)
    assert ran.stdout == printed.stdout
    pasted = [shlex.split(line.removeprefix("+ ")) for line in printed.stdout.splitlines()]
    buildkit = ["env", "DOCKER_BUILDKIT=1", "BUILDX_NO_DEFAULT_ATTESTATIONS=1"]
    assert [words for words in pasted if str(programs.docker) in words] == [
        [*(buildkit if call.buildkit else []), str(programs.docker), *call.words] for call in programs.printed_calls()
    ]


def test_words_behind_two_dashes_replace_train(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    done = programs.run("run", "--dry-run", "--opt-ml", str(tmp_path), "--", "plan", "--json")
    assert done.stdout.splitlines()[-1].endswith("algorun:cuda plan --json")
    assert programs.run("run", "--dry-run", "--opt-ml", str(tmp_path)).stdout.endswith("algorun:cuda train\n")


def test_a_client_that_cannot_use_buildkit_is_passed_over(tmp_path: Path) -> None:
    first, second = Programs(tmp_path / "new", NO_BUILDKIT), Programs(tmp_path / "old", OLD)
    done = first.run("test", "--dry-run", DOCKER="", PATH=f"{first.docker.parent}:{second.docker.parent}:/usr/bin:/bin")
    assert f"+ {second.docker} run" in done.stdout
    alone = first.run("test")
    assert alone.returncode == 64
    assert "buildx" in alone.stderr


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_base_is_made_of_a_suite_of_debian(tmp_path: Path, suite: str) -> None:
    options = () if suite == "bookworm" else ("--suite", suite)
    done = Programs(tmp_path).run("base", "--no-host-settings", "--dry-run", *options)
    assert done.returncode == 0, done.stderr
    assert f"docker/base.sh {suite} > " in done.stdout
    assert f"algorun-base:{suite}\n" in done.stdout
