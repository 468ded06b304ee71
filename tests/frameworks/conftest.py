"""Jobs of programs with other frameworks, each under the interpreter of its environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome, algorun
from tests.frameworks.environments import FOLDER, interpreter
from tests.launcher.whole.running import Running

PROGRAMS = Path(__file__).parent / "programs"
RUN_S = 300
Run = Callable[..., Outcome]


def of_framework(name: str) -> str:
    """The interpreter that has this framework; skips the test where there is none."""
    python = interpreter(name)
    if python is None:
        pytest.skip(f"needs {FOLDER.parent.name}/{FOLDER.name}/{name}: make test-frameworks")
    return str(python)


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path, nothing_left: str) -> Run:
    """Runs a program to its end; `FRAMEWORK` of the test's module names the environment."""
    python = of_framework(request.module.FRAMEWORK)

    def job(engine: str, layout: str, *program: object, **environ: str) -> Outcome:
        argv = ("simulate", "-j", layout, "--engine", engine, *map(str, program))
        return algorun(*argv, cwd=tmp_path, timeout=RUN_S, python=python, ALGORUN_TEST=nothing_left, **environ)

    return job


@pytest.fixture
def begin(request: pytest.FixtureRequest, tmp_path: Path, nothing_left: str) -> Callable[..., Running]:
    """Begins a program that goes on until it is stopped."""
    python = of_framework(request.module.FRAMEWORK)

    def job(layout: str, *program: object, **environ: str) -> Running:
        return Running(
            "native", *program, folder=tmp_path, marker=nothing_left, layout=layout, python=python, **environ
        )

    return job


def same_failure(done: Outcome) -> str:
    """The headline of the failure, which all hosts have in common."""
    (text,) = {done.failure(host).splitlines()[0] for host in ("algo-1", "algo-2")}
    return text
