"""A module of the user's that is named like one of the standard library: `algorun` starts, and ranks import theirs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, clean_environ

SCRIPT = str(Path(sys.executable).with_name("algorun"))
DIES = "import os\nos.write(2, b'%s of the user\\n')\nos._exit(9)\n"
LIBRARIES = ("rich", "boto3", "botocore", "jinja2")
FEW = ("json", "logging", "random", "socket", "argparse", "dataclasses", "tempfile")


def started_with() -> set[str]:
    """What every Python has imported before it looks at PYTHONPATH's use for anything of ours."""
    code = "import sys; print(*sys.modules)"
    return set(
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """A folder with a module for each name of the standard library, and for libraries of the client; each ends Python."""
    folder = tmp_path_factory.mktemp("hostile")
    taken = {*started_with(), *sys.builtin_module_names, "sitecustomize"}
    for name in {*sys.stdlib_module_names, *LIBRARIES} - taken:
        if importlib.util.find_spec(name) is not None:  # not one of Windows
            (folder / f"{name}.py").write_text(DIES % name)
    return folder


def run(*argv: str, cwd: Path | str = "/", **environ: str) -> str:
    done = subprocess.run(
        argv, cwd=cwd, env=clean_environ(**environ), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("command", [(SCRIPT,), (sys.executable, "-m", "algorun")], ids=["script", "module"])
def test_the_command_starts_whatever_the_users_folders_hold(hostile, command):
    for words in (("--version",), ("--help",), ("report", "--help"), ("ls", "--where", "local")):
        shown = run(
            *command,
            *words,
            cwd=hostile,
            PYTHONPATH=f"{hostile}:.::/nonexistent",
            ALGORUN_LOCAL_ROOT=str(hostile / "root"),
        )
        assert "algorun" in shown or shown.startswith("no jobs")


def test_ranks_get_the_users_own_modules(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("json", "types_of_mine", "random"):
        (mine / f"{name}.py").write_text("MINE = 1\n")
    program = tmp_path / "entry.py"
    program.write_text(
        "import os, json, random, types_of_mine\nprint('got', json.MINE, random.MINE, os.environ['PYTHONPATH'])\n"
    )
    path = f"{mine}:relative"
    shown = run(SCRIPT, "simulate", "-j", "1x1", str(program), cwd=tmp_path, PYTHONPATH=path, ALGORUN_FIGURES="off")
    assert f"[0 algo-1] got 1 1 {path}\n" in shown


@pytest.mark.parametrize("own_first", [True, False])
def test_a_launcher_that_pythonpath_names_is_the_one_that_runs(tmp_path, own_first):
    """Without site no .pth file helps, as where a colleague runs a checkout."""
    for name in FEW:
        (tmp_path / f"{name}.py").write_text(DIES % name)
    path = ":".join((str(ROOT / "launcher"), str(tmp_path))[:: 1 if own_first else -1])
    assert run(sys.executable, "-S", "-m", "algorun", "--version", cwd=tmp_path, PYTHONPATH=path).startswith("algorun ")
