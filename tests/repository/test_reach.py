"""Each module of algorun_train is there for a bundled job, a checkpoint, or the public API; what only AWS's scripts need is in compat."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOPS = ("launcher/algorun", "train/algorun_train", "client/algorun_client", "client/algorun_report")
# A program that runs by its path, and what a setting starts for any script.
STARTED = {
    "algorun_train.data.decode_worker",
    "algorun_train.ranks.cuda_on_cpu",
    "algorun_train.ranks.strict_cuda.import_hook",
}


def modules() -> dict[str, Path]:
    found = {}
    for top in TOPS:
        base = (ROOT / top).parent
        for path in (ROOT / top).rglob("*.py"):
            found[".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


def imported(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules that a file imports, also inside functions, or names in a string."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: -(node.level - 1) or None] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            found |= {base, *(f"{base}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            found.add(node.value)
    return found & known.keys()


def test_training_holds_nothing_that_only_scripts_of_aws_need():
    known = modules()
    imports = {name: imported(name, path, known) for name, path in known.items()}
    reached = {name for name in known if not name.startswith("algorun_train") or name.startswith("algorun_train.jobs")}
    reached |= STARTED
    todo = list(reached)
    while todo:
        name = todo.pop()
        packages = {name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1)}
        new = (imports[name] | (packages & known.keys())) - reached
        reached |= new
        todo += new
    assert sorted(known.keys() - reached) == []


def test_the_parts_that_every_job_needs_are_seen():
    """The test above would pass if it saw no import as well as if it saw too many."""
    known = modules()
    job = "algorun_train.jobs.ddp_job"
    assert "algorun_train.checkpoint.ddp_checkpoints" in imported(job, known[job], known)
    assert len(known) > 300
