"""build.sh and the files it uses, with docker clients that only write down how they were called."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build.sh"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docker" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


host_settings, hosts = load("host_settings"), load("hosts")


def client(folder: Path, version: str, *, buildx: bool, images: tuple[str, ...] = ()) -> Path:
    """A docker client that writes its arguments, one JSON list a line, to `calls` beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "docker"
    path.write_text(
        f"""#!{shutil.which("python3")}
import json, os, sys
words = sys.argv[1:]
if words == ["--version"]:
    print("Docker version {version}, build 0")
elif words[:1] == ["buildx"]:
    sys.exit({0 if buildx else 1})
elif words[:2] == ["image", "inspect"] and "--format" not in words:
    sys.exit(0 if words[2] in {images!r} else 1)
else:
    with open({str(folder / "calls")!r}, "a") as out:
        out.write(json.dumps([os.environ.get("DOCKER_BUILDKIT", ""), *words]) + "\\n")
"""
    )
    path.chmod(0o755)
    return path


def calls(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


def build(*argv: str, docker: Path | None = None, path: str = "") -> subprocess.CompletedProcess[str]:
    environ = dict(os.environ, PATH=f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"])
    environ.pop("DOCKER", None)
    if docker:
        environ["DOCKER"] = str(docker)
    return subprocess.run([BUILD, *argv], env=environ, capture_output=True, text=True, timeout=60, check=False, cwd="/")


# ---- what is run ----------------------------------------------------------------------------------------------------


def test_a_plain_docker_gets_a_plain_build(tmp_path: Path) -> None:
    docker = client(tmp_path, "28.0.0", buildx=True)
    done = build("build", "--no-host-settings", docker=docker)
    assert done.returncode == 0, done.stderr
    words = calls(tmp_path)[0]
    assert words[:4] == ["1", "build", "--build-arg", "VARIANT=cuda"]
    assert words[-3:] == ["--tag", "algorun:cuda", str(ROOT)]
    assert not {"--secret", "--network"} & set(words)
    assert not any(word.startswith("BASE_IMAGE") for word in words), "the Dockerfile's own default"


def test_cpu_builds_on_plain_ubuntu_or_on_the_local_base(tmp_path: Path) -> None:
    for images, base in (((), "ubuntu:24.04"), (("algorun-base:bookworm",), "algorun-base:bookworm")):
        docker = client(tmp_path / base, "28.0.0", buildx=True, images=images)
        assert build("build", "--variant", "cpu", "--no-host-settings", docker=docker).returncode == 0
        assert f"BASE_IMAGE={base}" in calls(tmp_path / base)[0]


def test_settings_travel_as_secrets_and_as_an_image(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    (folder / "ca.pem").write_text("certificate")
    (folder / "pip.conf").write_text("[global]\nindex-url = https://user:secret@mirror.example/simple\n")
    docker = client(folder, "20.10.24+dfsg1", buildx=False)
    options = ("--ca", f"{folder}/ca.pem", "--pip-conf", f"{folder}/pip.conf", "--wheelhouse", str(wheels))
    done = build("build", "--variant", "cpu", "--no-host-settings", "--network", "host", *options, docker=docker)
    assert done.returncode == 0, done.stderr
    imported, words = calls(folder)[:2]
    assert imported[1:] == ["import", "-", "algorun-wheelhouse:build"]
    assert f"id=ca,src={folder}/ca.pem" in words
    assert f"id=pip_conf,src={folder}/pip.conf" in words
    assert "WHEELHOUSE_IMAGE=algorun-wheelhouse:build" in words
    assert words[words.index("--network") + 1] == "host"
    assert "secret@mirror" not in done.stdout + done.stderr + json.dumps(words)


@pytest.mark.parametrize("command", ["build", "run", "test"])
def test_what_is_printed_is_what_runs(tmp_path: Path, command: str) -> None:
    options = [command, "--no-host-settings", "--tag", "a$(touch x)'b:c d"]
    options += ["--opt-ml", str(tmp_path)] if command == "run" else []
    options += ["--build-arg", "EXTRA_PACKAGES=git make"] if command == "build" else []
    docker = client(tmp_path, "28.0.0", buildx=True, images=("a$(touch x)'b:c d",))
    printed = build(*options, "--dry-run", docker=docker)
    assert printed.returncode == 0, printed.stderr
    assert not (tmp_path / "calls").exists()
    ran = build(*options, docker=docker)
    assert ran.stdout == printed.stdout
    pasted = [shlex.split(line.removeprefix("+ ")) for line in printed.stdout.splitlines()]
    executed = [["env", "DOCKER_BUILDKIT=1", str(docker), *words] if flag else [str(docker), *words]
                for flag, *words in calls(tmp_path)]  # fmt: skip
    assert [words for words in pasted if str(docker) in words] == executed


def test_words_behind_two_dashes_replace_train(tmp_path: Path) -> None:
    docker = client(tmp_path, "28.0.0", buildx=True)
    done = build("run", "--dry-run", "--opt-ml", str(tmp_path), "--", "plan", "--json", docker=docker)
    assert done.stdout.splitlines()[-1].endswith("algorun:cuda plan --json")
    assert build("run", "--dry-run", "--opt-ml", str(tmp_path), docker=docker).stdout.endswith("algorun:cuda train\n")


def test_a_client_that_cannot_use_buildkit_is_passed_over(tmp_path: Path) -> None:
    first = client(tmp_path / "new", "28.2.2", buildx=False)
    second = client(tmp_path / "old", "20.10.24+dfsg1", buildx=False)
    done = build("test", "--dry-run", path=f"{first.parent}:{second.parent}")
    assert f"+ {second} run" in done.stdout
    alone = build("test", docker=first)
    assert alone.returncode == 64
    assert "buildx" in alone.stderr


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["bulid"], ["'bulid'", "build, run, test, base"]),
        (["build", "--variant", "rocm"], ["--variant 'rocm'", "cuda, cpu"]),
        (["build", "--variant"], ["--variant", "takes a value"]),
        (["build", "--ca", "/no/such"], ["--ca '/no/such'", "no such file"]),
        (["build", "--wheelhouse", "/no/such"], ["--wheelhouse '/no/such'", "no such folder"]),
        (["build", "--build-arg", "X"], ["--build-arg 'X'", "NAME=VALUE"]),
        (["build", "--push"], ["'--push'", "-h"]),
        (["test", "--tag", "none:none"], ["image 'none:none'", "build --variant cuda"]),
    ],
)
def test_errors_name_option_value_and_fix(tmp_path: Path, argv: list[str], parts: list[str]) -> None:
    done = build(*argv, docker=client(tmp_path, "28.0.0", buildx=True))
    assert done.returncode == 64
    assert done.stdout == ""
    for part in parts:
        assert part in done.stderr


def test_help() -> None:
    assert "usage: ./build.sh" in build("-h").stdout
    assert build().returncode == 64


# ---- what this machine's settings become ------------------------------------------------------------------------------


def test_pip_settings_that_mean_something_inside_a_build() -> None:
    listing = "\n".join(
        [
            ":env:.index-url='https://mirror.example/simple'",
            "global.index-url='https://older.example/simple'",
            "global.extra-index-url='file:///srv/index\\nhttps://more.example/simple'",
            "global.cert='/etc/company.pem'",
            "global.find-links='/srv/wheels'",
            "list.format='columns'",
        ]
    )
    values = host_settings.pip_values(listing)
    text = host_settings.pip_conf(values)
    assert "index-url = https://mirror.example/simple" in text
    assert "https://more.example/simple" in text
    assert "/srv" not in text
    assert "/etc" not in text
    assert host_settings.pip_conf({"find-links": "/srv/wheels"}) == ""


def test_apt_settings_that_mean_something_inside_a_build() -> None:
    dump = "\n".join(
        [
            'APT::Sandbox::User "_apt";',
            'Acquire::http "";',
            'Acquire::http::Proxy "http://proxy.example:3128";',
            'Acquire::https::CaInfo "/etc/company.pem";',
            'Acquire::Check-Valid-Until "false";',
            'DPkg::Post-Invoke:: "/usr/bin/something";',
        ]
    )
    kept = ['Acquire::http::Proxy "http://proxy.example:3128";', 'Acquire::Check-Valid-Until "false";']
    assert host_settings.apt_conf(dump).splitlines() == kept


def test_certificates_and_wheels_only_where_they_exist(tmp_path: Path) -> None:
    pem = tmp_path / "ca.pem"
    pem.write_text("x")
    assert host_settings.ca_file({"PIP_CERT": "/no/such", "SSL_CERT_FILE": str(pem)}, {}) == pem
    assert host_settings.ca_file({}, {"cert": str(pem)}) == pem
    assert host_settings.ca_file({}, {}) is None
    assert host_settings.wheelhouse({"find-links": str(tmp_path)}) is None
    (tmp_path / "a-1-py3-none-any.whl").touch()
    assert host_settings.wheelhouse({"find-links": f"/no/such {tmp_path}"}) == tmp_path


# ---- /opt/ml of the compose hosts -------------------------------------------------------------------------------------


def test_hosts_get_their_own_trees_and_keep_what_sagemaker_keeps(tmp_path: Path) -> None:
    argv = ["python3", "-I", str(ROOT / "docker/hosts.py"), str(tmp_path), "--hosts", "algo-2,algo-10"]
    argv += ["--hyperparameters", "epochs=3 'name=a b'", "--channel", "train"]
    for _ in range(2):
        subprocess.run(argv, check=True, capture_output=True, timeout=60)
        (tmp_path / "algo-10/model/old.pt").touch()
        (tmp_path / "algo-10/checkpoints/kept").touch()
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    config = tmp_path / "algo-10/input/config"
    assert json.loads((config / "resourceconfig.json").read_text()) == {
        "current_host": "algo-10",
        "hosts": ["algo-2", "algo-10"],
        "network_interface_name": "eth0",
    }
    assert json.loads((config / "hyperparameters.json").read_text()) == {"epochs": "3", "name": "a b"}
    assert list(json.loads((config / "inputdataconfig.json").read_text())) == ["train"]
    assert not (tmp_path / "algo-10/model/old.pt").exists()
    assert (tmp_path / "algo-10/checkpoints/kept").exists()


@pytest.mark.parametrize("argv", [["--hosts", ""], ["--hosts", "a,a"], ["--hosts", "a", "--hyperparameters", "x"]])
def test_hosts_refuses_what_cannot_be_meant(tmp_path: Path, argv: list[str]) -> None:
    command = ["python3", "-I", str(ROOT / "docker/hosts.py"), str(tmp_path / "out"), *argv]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 2
    assert not (tmp_path / "out").exists()


# ---- the files themselves -------------------------------------------------------------------------------------------


def test_the_dockerfile_needs_no_more_than_an_old_buildkit() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert not re.search(r"(?i)^#\s*syntax\s*=", text, re.MULTILINE)
    assert "<<" not in text
    assert "--link" not in text
    assert not re.search(r"PYTHON(SAFE)?PATH=", text)


def test_locks_have_hashes_and_name_no_index() -> None:
    locks = sorted((ROOT / "docker").glob("requirements-*.lock"))
    assert len(locks) == 5
    for lock in locks:
        text = lock.read_text()
        assert "://" not in text
        assert "--index" not in text
        pins = re.findall(r"^[a-z0-9-]+==", text, re.MULTILINE)
        hashed = re.findall(r"^[a-z0-9-]+==[^\n]*\\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
        assert len(hashed) == len(pins) > 0, lock.name
        assert f"docker/{lock.name}" in (ROOT / "Dockerfile").read_text()


def test_torch_keeps_its_own_nccl_and_its_torchvision() -> None:
    pins = "\n".join(lock.read_text() for lock in (ROOT / "docker").glob("requirements-*.lock"))
    for pin in ("torch==2.10.0 ", "torchvision==0.25.0 ", "nvidia-nccl-cu12==2.27.5 "):
        assert pin in pins


def test_compose_needs_no_version_and_no_rights() -> None:
    text = (ROOT / "docker/compose.yaml").read_text()
    for word in ("version:", "ulimits:", "privileged:", "build:"):
        assert word not in text


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shell_scripts_are_clean() -> None:
    scripts = [str(BUILD), str(ROOT / "docker/train"), *map(str, (ROOT / "docker").glob("*.sh"))]
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
