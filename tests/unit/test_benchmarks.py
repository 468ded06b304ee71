"""Benchmarks rot unless something runs them: `make bench-quick` and `make bench-docker` run each once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = "keep_compose.py"  # another benchmark's docker; nobody starts it by hand
PROGRAMS = sorted(
    path.name
    for path in (ROOT / "bench").glob("*.py")
    if 'if __name__ == "__main__":' in path.read_text() and path.name != STAND_IN
)


def recipe(target: str) -> str:
    """The lines below `target:` in the Makefile."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found, target
    return found[1]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_benchmark_is_run_once_by_a_quick_target(program):
    assert f"bench/{program} " in recipe("bench-quick") + recipe("bench-docker")


def test_the_quick_targets_write_nothing_into_the_docs():
    assert "docs/" not in recipe("bench-quick") + recipe("bench-docker")
