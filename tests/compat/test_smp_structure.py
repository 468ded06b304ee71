"""smdistributed.modelparallel: where what scripts share lies."""

from __future__ import annotations

import ast

from tests.conftest import ROOT

PACKAGE = ROOT / "compat/algorun_smdistributed/modelparallel"


def rebound(path):
    """The names that functions of a module assign to its globals."""
    return {
        name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Global) for name in node.names
    }


def test_the_session_is_the_only_global_and_lies_in_the_facade():
    found = {str(path.relative_to(PACKAGE)): names for path in PACKAGE.rglob("*.py") if (names := rebound(path))}
    assert found == {"torch/session.py": {"_session"}, "tensorflow/session.py": {"_session"}}
