"""Jobs of programs with other frameworks, each under the interpreter of its environment."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Outcome, algorun
from tests.frameworks import published
from tests.frameworks.environments import FOLDER, interpreter
from tests.launcher.whole.running import PROGRAMS as LAUNCHER_PROGRAMS
from tests.launcher.whole.running import Running

STANDING = LAUNCHER_PROGRAMS / "standing.py"
PROGRAMS = Path(__file__).parent / "programs"
RUN_S = 300
LOST_S = 5  # until all other hosts have left
Run = Callable[..., Outcome]


def of_framework(name: str) -> str:
    """The interpreter that has this framework; skips the test where there is none."""
    python = interpreter(name)
    if python is None:
        pytest.skip(f"needs {FOLDER.parent.name}/{FOLDER.name}/{name}: make test PART=frameworks")
    return str(python)


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path, nothing_left: str) -> Run:
    """Runs a program to its end; `FRAMEWORK` of the test's module names the environment."""
    python = of_framework(request.module.FRAMEWORK)

    def job(engine: str, layout: str, *program: object, **environ: str) -> Outcome:
        argv = ("simulate", "-j", layout, "--engine", engine, *map(str, program))
        environ = {"ALGORUN_TEST": nothing_left, "PATH": f"{Path(python).parent}:{os.environ['PATH']}", **environ}
        return algorun(*argv, cwd=tmp_path, timeout=RUN_S, python=python, **environ)

    return job


@pytest.fixture
def begin(request: pytest.FixtureRequest, tmp_path: Path, nothing_left: str) -> Callable[..., Running]:
    """Begins a program that goes on until it is stopped."""
    python = of_framework(request.module.FRAMEWORK)

    def job(layout: str, *program: object, engine: str = "native", **environ: str) -> Running:
        environ = {"PATH": f"{Path(python).parent}:{os.environ['PATH']}", **environ}
        return Running(engine, *program, folder=tmp_path, marker=nothing_left, layout=layout, python=python, **environ)

    return job


@dataclass(frozen=True)
class Scripts:
    """Writes published scripts into the folder in which the job runs."""

    folder: Path

    def __call__(self, page: published.Page, name: str, start: str = "") -> Path:
        path = published.save(page, self.folder, name, start)
        if path is None:
            pytest.skip(f"cannot download {published.SITE}/{page.path}")
        return path


@pytest.fixture
def script(tmp_path: Path) -> Scripts:
    """Writes published scripts; skips the test where a script cannot be downloaded."""
    return Scripts(tmp_path)


def lose(job: Running, lost: str, other: str) -> None:
    """Kills all processes of a host at once: the other one leaves in time, with the code and the name of the lost one."""
    supervisor = job.supervisor(lost)
    ended = [supervisor, *supervisor.children(recursive=True)]
    started = time.monotonic()
    for each in ended:
        each.kill()
    assert job.end() == 66, job.log.read_text()
    seconds = time.monotonic() - started
    print(f"seconds after {lost} was killed: {seconds:.1f}")
    assert re.match(f"lost: {lost}, exit 66: (host|hub) lost: connection closed", job.failure(other))
    assert seconds < LOST_S


def same_failure(done: Outcome) -> str:
    """The headline of the failure, which all hosts have in common."""
    (text,) = {done.failure(host).splitlines()[0] for host in ("algo-1", "algo-2")}
    return text
