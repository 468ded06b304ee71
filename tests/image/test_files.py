"""The Dockerfile and the files around it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from algorun.machine import probe
from tests.image.programs import ROOT


def test_the_dockerfile_needs_no_more_than_an_old_buildkit() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert not re.search(r"(?i)^#\s*syntax\s*=", text, re.MULTILINE)
    assert "<<" not in text
    assert "--link" not in text
    assert not re.search(r"PYTHON(SAFE)?PATH=", text)


def test_the_last_layer_writes_the_id_that_hosts_compare(tmp_path: Path) -> None:
    last = (ROOT / "Dockerfile").read_text().rpartition("\nRUN ")[2]
    command = re.search(r"(cat \S+) > (/etc/\S+)", last)
    assert command is not None
    assert command[2] == probe.IMAGE
    assert f" {probe.IMAGE}\n" in (ROOT / "docker/check-image.sh").read_text()
    ids = []
    for number in ("1", "2"):
        (tmp_path / number / "etc").mkdir(parents=True)
        written = f"{tmp_path}/{number}{probe.IMAGE}"
        subprocess.run(["bash", "-c", f"{command[1]} > {written}"], timeout=60, check=True)
        ids.append(probe.look({}, str(tmp_path / number)).image)
    assert len(set(ids)) == 2
    assert all(re.fullmatch(r"[0-9a-f-]{36}", each) for each in ids)


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


def test_the_build_context_holds_only_what_the_dockerfile_names() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    admitted = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    found = [path.relative_to(ROOT) for pattern in admitted for path in ROOT.glob(pattern)]
    assert len(found) >= len(admitted)
    # A folder is copied whole, or file by file.
    assert [str(path) for path in found if not re.search(rf"[ =]{re.escape(str(path))}[ ,/]", dockerfile)] == []


def test_lint_looks_at_every_shell_script() -> None:
    # With these options shellcheck also looks at the files that a script names in a line of its own.
    line = re.search(
        r"^\tshellcheck --external-sources --check-sourced (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert line is not None
    listed = {path for word in line[1].split() for path in ROOT.glob(word)}
    sourced = {
        ROOT / name for path in listed for name in re.findall(r"(?m)^# shellcheck source=(\S+)$", path.read_text())
    }
    git = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    scripts = {path for path in map(ROOT.joinpath, git.stdout.splitlines()) if path.is_file() and is_shell(path)}
    assert len(scripts) > 10
    assert sorted(map(str, scripts - listed - sourced)) == []


def is_shell(path: Path) -> bool:
    with path.open("rb") as file:
        return path.suffix == ".sh" or re.match(rb"#!.*\b(ba)?sh\b", file.readline(100)) is not None


@pytest.mark.parametrize(("command", "files"), [("build", ["build"]), ("run", ["run"]), ("push", ["push", "ecr"])])
def test_a_command_of_build_sh_uses_no_function_of_another_one(command: str, files: list[str]) -> None:
    texts = {path.stem: path.read_text() for path in (ROOT / "docker/commands").glob("*.sh")}
    assert set(texts) == {"common", "build", "run", "ecr", "push"}
    others = "\n".join(text for name, text in texts.items() if name not in (*files, "common"))
    foreign = set(re.findall(r"(?m)^(\w+)\(\) \{", others))
    assert foreign
    used = set(re.findall(r"\w+", re.sub("#.*", "", "\n".join(texts[name] for name in files))))
    assert used & foreign == set()
