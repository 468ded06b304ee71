"""The launcher's errors say what helps: each names the allowed values, or a fix."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

LAUNCHER = Path(__file__).parents[2] / "launcher" / "algorun"
# It passes on the error of a bundled entrypoint, whose text has both already.
PASSED_ON = ("host/preparing/entrypoint_options.py", "UserError(where, what)")


def made(path: Path) -> list[ast.Call]:
    """The calls in a file that make a UserError."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return [call for call in calls if ast.unparse(call.func).endswith("UserError")]


@pytest.mark.parametrize("room", sorted({path.parent for path in LAUNCHER.rglob("*.py")}), ids=lambda path: path.name)
def test_each_error_names_the_allowed_values_or_a_fix(room):
    bare = [
        f"{path.name}:{call.lineno}: {ast.unparse(call)}"
        for path in sorted(room.glob("*.py"))
        for call in made(path)
        if not {"allowed", "fix"} & {keyword.arg for keyword in call.keywords}
        and (path.relative_to(LAUNCHER).as_posix(), ast.unparse(call)) != PASSED_ON
    ]
    assert bare == []
