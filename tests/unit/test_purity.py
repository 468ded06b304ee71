"""What decides never touches the world; the launcher needs nothing but the standard library."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

LAUNCHER = Path(__file__).resolve().parents[2] / "launcher"
PURE = [
    "agreement", "cluster", "plan", "env", "sm_env", "render", "codec", "hints", "tail", "hyperparameters", "preflight", "preflight_gpus", "finding", "visible", "cuda_driver", "values", "engines/base", "engines/native",
    "engines/torchrun", "engines/mpirun", "engines/openmpi", "control/failure", "control/symptoms", "control/hang", "control/gate",
    "control/refusals", "control/waiting", "control/rivals", "control/restarts", "control/blame", "control/inquiry", "control/pulse", "control/rank_failures", "control/session", "control/messages", "control/hub", "control/member",
]  # fmt: skip
WORLD = {
    "subprocess",
    "socket",
    "os",
    "time",
    "threading",
    "selectors",
    "shutil",
    "tempfile",
    "pathlib",
    "ctypes",
    "random",
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_import_nothing_of_the_world(module):
    path = LAUNCHER / f"{module}.py"
    assert not imports(path) & WORLD
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert "open" not in [call.id for call in calls if isinstance(call, ast.Name)]


@pytest.mark.parametrize("module", [name for name in PURE if name.startswith("control/")])
def test_the_state_machines_load_no_socket_either(module):
    """What they import of ours is pure as well."""
    name = f"launcher.{module.replace('/', '.')}"
    code = f"import sys, {name}; sys.exit(str({{'socket', 'subprocess', 'selectors'}} & set(sys.modules) or ''))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.strip() == ""


@pytest.mark.parametrize("path", sorted(LAUNCHER.rglob("*.py")), ids=lambda p: str(p.relative_to(LAUNCHER)))
def test_the_launcher_imports_the_standard_library_only(path):
    """boto3 apart, which only the program that fetches code imports, and only where it lies in S3."""
    allowed = {"boto3", "botocore"} if path.name in ("fetch.py", "prepare.py") else set()
    assert imports(path) <= set(sys.stdlib_module_names) | allowed
    top = {
        alias.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import) for alias in node.names
    }
    assert not top & {"boto3", "botocore"}


def test_no_module_of_ours_has_the_name_of_a_standard_one():
    names = {path.stem for folder in ("launcher", "train") for path in (LAUNCHER.parent / folder).rglob("*.py")}
    assert not names & set(sys.stdlib_module_names) - {"__init__", "__main__"}


def test_a_plan_imports_neither_torch_nor_boto3():
    code = (
        "import sys; from launcher.cli import main; main(['plan', '-j', '2x2', 'ddp']);"
        "heavy = {'torch', 'boto3', 'numpy', 'asyncio', 'multiprocessing'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "world_size 4" in done.stdout
