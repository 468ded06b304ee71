"""Tests use what a module offers: its private names may change with it."""

from __future__ import annotations

import ast

from tests.conftest import ROOT

OURS = ("algorun", "bench", "smdistributed")
# Stand-ins for a part of torch and for a module that is loaded in ranks only; the one global of smdistributed's facade.
ELSEWHERE = {"_innermost_mode", "_beside", "_session"}


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in ELSEWHERE


def used(tree: ast.Module) -> list[str]:
    """Private names that a file imports from our modules, reads of them, or replaces in them."""
    ours: set[str] = set()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(OURS):
            ours |= {each.asname or each.name for each in node.names}
            found += [f"{node.module}.{each.name}" for each in node.names if private(each.name)]
        elif isinstance(node, ast.Import):
            ours |= {each.asname for each in node.names if each.asname and each.name.startswith(OURS)}
    modules = {name for name in ours if name.islower()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            found += [f"{node.value.id}.{node.attr}"] if private(node.attr) else []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            match node.args:
                case [ast.Name(id=module), ast.Constant(value=str(name)), *_] if module in modules and private(name):
                    found.append(f"{module}.{name}")
    return found


def test_no_test_uses_a_private_name_of_a_module():
    files = (ROOT / "tests").rglob("*.py")
    assert {str(path): names for path in files if (names := used(ast.parse(path.read_text())))} == {}


def test_every_kind_of_use_is_seen():
    text = "from algorun import a\nfrom algorun.b import _c\na._d()\nmonkeypatch.setattr(a, '_e', 1)\n"
    assert sorted(used(ast.parse(text))) == ["a._d", "a._e", "algorun.b._c"]
