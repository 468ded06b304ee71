"""What decides never touches the world; the launcher needs nothing but the standard library."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

LAUNCHER = Path(__file__).resolve().parents[2] / "launcher" / "algorun"
ROOMS = ("plan", "control")
SINGLE = (
    "codec", "host/tail", "job/hyperparameters", "job/values", "machine/cuda_driver", "machine/finding", "machine/openmpi",
    "machine/preflight", "machine/preflight_gpus", "machine/visible_gpus", "outcome/hints",
)  # fmt: skip
PURE = [
    *SINGLE,
    *(
        f"{path.relative_to(LAUNCHER).with_suffix('')}"
        for room in ROOMS
        for path in sorted((LAUNCHER / room).rglob("*.py"))
    ),
]
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
    name = f"algorun.{module.replace('/', '.')}"
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
    """Scripts of `inside` run with that folder first on the module path."""
    names = {path.stem for path in (LAUNCHER / "inside").glob("*.py")}
    assert not names & set(sys.stdlib_module_names) - {"__init__"}


def test_a_plan_imports_neither_torch_nor_boto3():
    code = (
        "import sys; from algorun.cli import main; main(['plan', '-j', '2x2', 'ddp']);"
        "heavy = {'torch', 'boto3', 'numpy', 'asyncio', 'multiprocessing'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "world_size 4" in done.stdout
