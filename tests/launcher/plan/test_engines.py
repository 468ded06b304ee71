"""The registry of engines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from algorun.common import codec
from algorun.common.errors import UserError
from algorun.job.engine import Engine
from algorun.plan.engines.registry import starter

LAUNCHER = Path(__file__).resolve().parents[3] / "launcher" / "algorun"
REGISTRY = ("job/engine.py", "plan/engines/registry.py")


def test_every_engine_has_a_plan_of_its_own():
    planned = {engine: starter(engine) for engine in Engine}
    assert len(set(planned.values())) == len(Engine)
    of_a_file = {engine: pieces.__module__.rpartition(".")[2] for engine, pieces in planned.items()}
    assert of_a_file == {engine: str(engine) for engine in Engine} | {Engine.NATIVE: "registry"}


def test_an_unknown_engine_is_refused():
    with pytest.raises(UserError, match=r"--engine: 'slurm' is not an engine; allowed: native, torchrun, mpirun"):
        Engine.of("--engine", "slurm")
    with pytest.raises(ValueError, match="'slurm' is not one of native, torchrun, mpirun"):
        codec.from_json(Engine, "slurm")


def test_nothing_but_the_registry_compares_names_of_engines():
    names = "|".join(Engine)
    comparison = re.compile(rf"""(?:[!=]=|\bin|\bcase)\s*\(?["'](?:{names})["']|engine\S*\s*[!=]=\s""")
    found = {
        f"{path.relative_to(LAUNCHER)}: {line.strip()}"
        for path in LAUNCHER.rglob("*.py")
        if str(path.relative_to(LAUNCHER)) not in REGISTRY
        for line in path.read_text().splitlines()
        if comparison.search(line) and "os.path.basename" not in line  # the name of the program mpirun
    }
    assert found == set()
