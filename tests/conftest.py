"""Fixtures that more than one kind of test uses."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import psutil
import pytest

from algorun.job.config import JobConfig, LaunchRequest, read_config
from algorun.job.values import Sourced
from algorun.machine.openmpi import OpenMpi
from algorun.machine.probe import Machine, openmpi
from algorun.plan.engines.base import Programs

pytest_plugins = ["tests.cpu_times"]
ROOT = Path(__file__).resolve().parent.parent
MACHINE_PATH = os.environ.get("PATH", os.defpath)
# As in an activated environment: its own mpirun comes before the machine's, so that ranks load the library of their mpirun.
os.environ["PATH"] = f"{os.path.dirname(sys.executable)}:{MACHINE_PATH}"
MPI = openmpi(os.environ)
START_S = "50"  # less than any test waits for a job, so that an engine that does not start explains itself
RAY = importlib.util.find_spec("ray") is not None
NO_RAY = "needs Ray, in an environment of its own: make test PART=ray"
NO_MPI = "needs Open MPI's mpirun: pip install openmpi, or apt-get install openmpi-bin"
TREES = Path(__file__).parent / "fixtures" / "opt_ml"
PROGRAMS = Programs("python", "/algorun")
OPEN_MPI = {
    4: OpenMpi("/usr/bin/mpirun", True, 4, "/usr/bin/orted"),
    5: OpenMpi("/opt/venv/bin/mpirun", False, 5, "/opt/venv/bin/prted", "/opt/venv"),
}

# How long one example takes is no claim of ours, and says more of what else this machine does.
hypothesis.settings.register_profile("algorun", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=20)  # make test
hypothesis.settings.load_profile("algorun")

# Variables of the machine that runs the tests must not change what they see.
FOREIGN = ("SAGEMAKER_", "SM_", "ALGORUN_", "OMPI_", "NCCL_", "TORCHELASTIC_")
CONTRACT = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


# Where the tests were started in the background of a shell that has no job control, what they start would ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# One rank fails, and no other because of it: nobody's earlier failure is waited for, which would take a second each time.
FAILS_ALONE = {"ALGORUN_BLAME_S": "0.1"}


def clean_environ(**extra: str) -> dict[str, str]:
    """This process's environment without what could steer the launcher."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN) and k not in CONTRACT}
    return {**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "ALGORUN_START_S": START_S, **extra}


def machine(gpus: int = 0, cpus: int = 8, openmpi: OpenMpi | None = None) -> Machine:
    """A machine that nobody looked at."""
    return Machine(
        gpus=Sourced(gpus, "/dev/nvidia*"),
        cpus=Sourced(cpus, "affinity mask"),
        interfaces=("eth0", "lo"),
        default_interface="eth0",
        efa_devices=(),
        memory_bytes=64 * 1024**3,
        shm_bytes=8 * 1024**3,
        python="3.11.7",
        packages={"torch": "2.13.0"},
        openmpi=openmpi,
    )


def job(tree: str, request: LaunchRequest | None = None, **environ: str) -> JobConfig:
    """The job of one of the fixture trees, under the path /opt/ml so that golden files hold on every machine."""
    config = read_config(request or LaunchRequest(from_job=True), {"SAGEMAKER_BASE_DIR": str(TREES / tree), **environ})
    return config


@dataclass(frozen=True)
class Outcome:
    """What a run of the command line left."""

    code: int
    out: str
    err: str
    seconds: float
    folder: Path

    @property
    def text(self) -> str:
        return self.out + self.err

    @property
    def last(self) -> str:
        return self.out.strip().splitlines()[-1] if self.out.strip() else ""

    def failure(self, host: str) -> str:
        return (self.folder / host / "output" / "failure").read_text(encoding="utf-8")

    def result(self, host: str) -> dict:
        return json.loads((self.folder / host / "output" / "data" / "result.json").read_text(encoding="utf-8"))


def algorun(*arguments: str, cwd: Path, timeout: float = 120, python: str = sys.executable, **environ: str) -> Outcome:
    """Runs the command line and waits for it."""
    started = time.monotonic()
    done = subprocess.run(
        [python, "-I", "-m", "algorun", *arguments],
        cwd=cwd,
        env=clean_environ(**environ),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Outcome(
        done.returncode, done.stdout, done.stderr, time.monotonic() - started, Path(cwd) / "algorun-simulate"
    )


def ours(marker: str) -> list[psutil.Process]:
    """Live processes that carry this marker in their environment or command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                marked = process.environ().get("ALGORUN_TEST") == marker
                if marked:
                    found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def commands(marker: str) -> list[list[str]]:
    """The command lines of `ours`, without those of processes that have ended meanwhile."""
    found = []
    for process in ours(marker):
        with contextlib.suppress(psutil.Error, OSError):
            found.append(process.cmdline())
    return found


def examples(number: int) -> hypothesis.settings:
    """So many examples of a property in `make test-all`, and a fifth of them in `make test`."""
    return hypothesis.settings(max_examples=max(number * hypothesis.settings().max_examples // 100, 1))


def like(name: str, pattern: str) -> bool:
    """Whether `*` in the pattern may stand for something that makes it the name."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None


# Folders whose tests take seconds come first: the others, of many short tests, fill the end of a run on several workers. Tests
# of some of them compute and those of the others wait: their files take turns, so that cores are busy all the time.
SECONDS_LONG = (("strict_cuda", "train", "compat"), ("launcher/whole", "client"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--alone", action="store_true", help="only tests with the fixture `nothing_beside`, which -n leaves out"
    )
    parser.addoption(
        "--share", metavar="K/N", default="1/1", help="only the K-th of N shares of the tests, which their names choose"
    )


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Takes `slow(but=[..])` from the cases that it names, tests with the fixture `nothing_beside` from workers, and what --share
    leaves out."""
    found: dict[str, bool] = {}
    for item in items:
        for mark in [mark for mark in item.own_markers if mark.name == "slow" and "but" in mark.kwargs]:
            fits = {pattern: like(item.callspec.id, pattern) for pattern in mark.kwargs["but"]}
            for pattern, fit in fits.items():
                test = f"{item.nodeid.partition('[')[0]}[{pattern}]"
                found[test] = fit or found.get(test, False)
            if any(fits.values()):
                item.own_markers.remove(mark)
    gone = [test for test, fits in found.items() if not fits]
    if gone and not config.getoption("lf", False) and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"slow(but=[..]) names cases that no test has: {', '.join(gone)}")
    numbers = re.fullmatch(r"([0-9]+)/([0-9]+)", config.option.share)
    share, shares = map(int, numbers.groups()) if numbers else (0, 0)
    if not 1 <= share <= shares:
        raise pytest.UsageError(f"--share {config.option.share}: K/N is from 1/N to N/N, such as 1/3")
    left = [item for item in items if zlib.crc32(item.nodeid.encode()) % shares != share - 1]
    others = hasattr(config, "workerinput")  # of pytest-xdist: tests run beside this one
    if others or config.option.alone:
        left += [item for item in items if ("nothing_beside" in item.fixturenames) == others]
    config.hook.pytest_deselected(items=left)
    left_ids = {id(item) for item in left}
    items[:] = [item for item in items if id(item) not in left_ids]
    place = _places({item.nodeid.partition("::")[0] for item in items})
    items.sort(key=lambda item: place[item.nodeid.partition("::")[0]])


def _places(files: set[str]) -> dict[str, float]:
    """Where in the order of all tests those of each file come: between 0 and 1, or last."""
    found = dict.fromkeys(files, 1.0)
    for folders in SECONDS_LONG:
        own = sorted(file for file in files if file.startswith(tuple(f"tests/{folder}/" for folder in folders)))
        found.update({file: number / len(own) for number, file in enumerate(own)})
    return found


def assert_nothing_is_left(marker: str) -> None:
    """Ends live processes with this marker, and fails if there were any."""
    deadline = time.monotonic() + 10  # a machine under load takes its time to end a process
    while commands(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = commands(marker)
    for process in ours(marker):
        with contextlib.suppress(psutil.Error):
            process.kill()
    assert not left


def compile_share(config: pytest.Config) -> None:
    """Imports one worker's share of the test files that are not compiled yet. All workers read all files, at the same time and
    in the same order: without shares each worker would compile every file."""
    number, workers = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
    left = [Path(path).resolve() for path in config.getoption("ignore") or ()]
    for folder in (Path(argument).resolve() for argument in config.args):
        files = [path for path in sorted(folder.rglob("test_*.py")) if not any(map(path.is_relative_to, left))]
        for path in files[number::workers]:
            if not list((path.parent / "__pycache__").glob(f"{path.stem}.*-pytest-*.pyc")):
                with contextlib.suppress(Exception, pytest.skip.Exception):  # pytest reports it when it reads the file
                    importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """What is there once all tests are known stays to the end: garbage is not looked for in it."""
    gc.disable()
    if hasattr(session.config, "workerinput"):
        compile_share(session.config)
    result = yield
    gc.enable()
    gc.freeze()
    return result


@pytest.fixture
def nothing_left(tmp_path: Path):
    """Asserts that no process and no run folder stays behind; the test passes the marker to what it starts."""
    marker = str(tmp_path)
    yield marker
    assert_nothing_is_left(marker)


@pytest.fixture
def nothing_beside() -> None:
    """For a test that bounds the seconds of a documented promise: nothing runs beside it."""


needs_mpi = pytest.mark.skipif(MPI is None, reason=NO_MPI)
needs_ray = pytest.mark.skipif(not RAY, reason=NO_RAY)
ENGINES = ["native", "torchrun", pytest.param("mpirun", marks=needs_mpi)]


def under(*pairs: str) -> list[object]:
    """Cases of a test with the parameters `mode` and `engine`, as "raise mpirun"."""
    split = [pair.split() for pair in pairs]
    return [pytest.param(*pair, marks=needs_mpi if pair[1] == "mpirun" else ()) for pair in split]
