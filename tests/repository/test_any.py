"""Each `Any` of the launcher, the client and the report has its reason in a comment, on its line or on the line above."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

UNCHECKED = ("fast_dataclasses.py",)  # type checkers see the standard library's names in its place
ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "launcher" / "algorun", ROOT / "client" / "algorun_client", ROOT / "client" / "algorun_report")
ROOMS = sorted({path.parent for package in PACKAGES for path in package.rglob("*.py")})


@pytest.mark.parametrize("room", ROOMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_any_has_its_reason(room):
    bare = []
    for path in sorted(room.glob("*.py")):
        if path.name in UNCHECKED:
            continue
        lines = ["", *path.read_text().splitlines()]
        uses = {node.lineno for node in ast.walk(ast.parse(path.read_text())) if getattr(node, "id", "") == "Any"}
        bare += [
            f"{path.name}:{n}: {lines[n].strip()}"
            for n in sorted(uses)
            if "  # " not in lines[n] and not lines[n - 1].lstrip().startswith("# ")
        ]
    assert bare == []
