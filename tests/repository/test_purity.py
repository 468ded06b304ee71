"""What the import contracts in pyproject.toml (`make lint`) cannot say: calls of open(), and "the standard library only"."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = ROOT / "launcher" / "algorun"
# Third-party modules that the launcher may import, inside functions only.
FOREIGN = {
    "commands/client.py": {"algorun_client"},  # installed apart: the commands to SageMaker and back
    "commands/report.py": {"algorun_report"},  # its libraries are installed apart
    "inside/peers.py": {"torch"},  # a rank's own, where the rank uses it
    "inside/tracker_kinds.py": {"wandb", "mlflow", "tensorboard"},  # the job's own, if it asks for them
    "usercode/fetch.py": {"boto3", "botocore"},
    "usercode/prepare.py": {"boto3"},
    "pipeline.py": {"algorun_train"},
    "checkpoints.py": {"algorun_train"},
    "data.py": {"algorun_train"},
}


def contract(name: str) -> dict[str, list[str]]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return next(each for each in contracts if each["name"] == name)


def files(module: str, top: Path = LAUNCHER.parent) -> list[Path]:
    """A module's file, or all files of a package."""
    path = top.joinpath(*module.split("."))
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def imports(nodes: list[ast.stmt] | ast.AST) -> set[str]:
    found = set()
    for node in nodes if isinstance(nodes, list) else ast.walk(nodes):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").split(".")[0])
    return found


def test_pure_modules_open_no_file():
    pure = [path for module in contract("What decides is pure")["source_modules"] for path in files(module)]
    opening = [
        f"{path}:{node.lineno}"
        for path in pure
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open"
    ]
    assert len(pure) > 30
    assert opening == []


def test_no_function_is_passed_into_what_decides():
    """A callable could read a disk or a clock in the middle of a decision. What decides returns what is to be done."""
    passed = [
        f"{path}:{parameter.lineno}"
        for room in ("control", "plan")
        for path in files(f"algorun.{room}")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for parameter in (*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs)
        if parameter.annotation is not None and "Callable" in ast.dump(parameter.annotation)
    ]
    protocols = [
        f"{path}:{node.lineno}"
        for room in ("control", "plan")
        for path in files(f"algorun.{room}")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.dump(base) for base in node.bases)
    ]
    # A type alias would hide a callable: each module that names Callable is known.
    named = {
        str(path.relative_to(LAUNCHER))
        for room in ("control", "plan")
        for path in files(f"algorun.{room}")
        if "Callable" in path.read_text()
    }
    assert (passed, protocols) == ([], [])
    assert named == {"control/hub/host_loads.py", "plan/engines/registry.py"}  # tables of their own functions


def test_the_request_of_the_client_opens_no_file():
    opening = [
        f"{path}:{node.lineno}"
        for module in contract("The client's request is pure")["source_modules"]
        for path in files(module, ROOT / "client")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", getattr(node.func, "attr", "")) in ("open", "read_text", "read_bytes")
    ]
    assert opening == []


def test_the_state_machines_load_no_socket():
    """Nor do the modules of the standard library that they import."""
    names = [".".join(path.relative_to(LAUNCHER.parent).with_suffix("").parts) for path in files("algorun.control")]
    code = f"import sys, {', '.join(names)}; sys.exit(str({{'socket', 'subprocess', 'selectors'}} & set(sys.modules) or ''))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.strip() == ""


def test_the_launcher_imports_the_standard_library_only():
    known = set(sys.stdlib_module_names) | {"algorun", "_sha2", "_sha256"}  # 3.12 has renamed the latter
    strange = {}
    for path in sorted(LAUNCHER.rglob("*.py")):
        name, tree = str(path.relative_to(LAUNCHER)), ast.parse(path.read_text())
        top = (
            tree.body if path.parent != LAUNCHER else []
        )  # algorun.pipeline, .data and .checkpoints are doors to the training
        extra = imports(tree) - known - FOREIGN.get(name, set()) | imports(top) - known
        if extra:
            strange[name] = extra
    assert strange == {}


def test_no_module_of_ours_has_the_name_of_a_standard_one():
    """Scripts of `inside` run with that folder first on the module path."""
    names = {path.stem for path in (LAUNCHER / "inside").glob("*.py")}
    assert not names & set(sys.stdlib_module_names) - {"__init__"}


def test_a_plan_imports_neither_torch_nor_boto3_nor_what_runs_a_host():
    code = (
        "import sys; from algorun.cli import main; main(['plan', '-j', '2x2', 'ddp']);"
        "heavy = {'torch', 'boto3', 'numpy', 'asyncio', 'multiprocessing', 'socket', 'algorun.control.wire.messages'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "world_size 4" in done.stdout
