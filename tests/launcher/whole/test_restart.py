"""Attempts that follow a failed one, with real processes under every engine."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import time

import psutil
import pytest
import torch

from tests.conftest import ENGINES, FAILS_ALONE, algorun
from tests.train.training_runs import Ranks

from .running import PROGRAMS, Running

AGAIN = str(PROGRAMS / "again.py")


def simulate(engine, *words, folder, marker, restarts, layout="2x2", **environ):
    return algorun(
        "simulate", "-j", layout, "--engine", engine, "--restarts", str(restarts), *map(str, words), cwd=folder,
        ALGORUN_TEST=marker, **FAILS_ALONE, **environ,
    )  # fmt: skip


# What the supervisor does is the same under all engines; the part tools runs mpirun.
@pytest.mark.slow(but=["native"])
@pytest.mark.parametrize("engine", ENGINES)
def test_attempts_follow_each_other_until_one_succeeds(engine, tmp_path, nothing_left):
    done = simulate(engine, AGAIN, 2, 3, folder=tmp_path, marker=nothing_left, restarts=2)
    assert done.code == 0, done.text
    assert done.last == "ok nnodes=2 world_size=4 restarts=2"
    ports = re.findall(r"attempt (\d) of 2 port (\d+)", done.out)
    assert sorted(attempt for attempt, _ in ports) == sorted("0001111222" + "02")
    assert len({port for _, port in ports}) == 3, "each attempt has a port of its own, the same on all ranks"
    assert "attempt 2/3 follows" in done.out
    for host in ("algo-1", "algo-2"):
        data = done.folder / host / "output" / "data"
        first = (data / "failure-attempt-1.txt").read_text()
        assert first.startswith(
            "exception: rank 3 on algo-2, exit 1, attempt 1/3: ValueError: bad batch in attempt 0 (at "
        )
        assert 'raise ValueError(f"bad batch' in first
        assert not (data.parent / "failure").exists()


@pytest.mark.slow(but=["1-*"])
@pytest.mark.parametrize(
    ("restarts", "words", "why"),
    [(1, (9, 0), "no restart is left (1 of 1 used)"), (50, (9, 0), "no newer checkpoint in 3 attempts")],
)
def test_a_failure_that_stays_ends_with_68_and_its_traceback(restarts, words, why, tmp_path, nothing_left):
    done = simulate("native", AGAIN, *words, folder=tmp_path, marker=nothing_left, restarts=restarts)
    assert done.code == 68, done.text
    failures = {done.failure(host) for host in ("algo-1", "algo-2")}
    (failure,) = failures
    assert failure.startswith(
        f"budget: algo-1, exit 68: {why}; the last failure: exception: rank 0 on algo-1, exit 1, attempt"
    )
    assert "ValueError: bad batch in attempt" in failure.splitlines()[-1]


def test_newer_checkpoints_allow_more_than_three_attempts(tmp_path, nothing_left):
    done = simulate("native", AGAIN, 5, 1, "save", folder=tmp_path, marker=nothing_left, restarts=9)
    assert done.code == 0, done.text
    assert done.last.endswith("restarts=5")


def test_a_stop_in_a_later_attempt_ends_with_0_and_no_further_attempt(tmp_path, nothing_left):
    job = Running("native", "--restarts", "5", AGAIN, 1, 3, folder=tmp_path, marker=nothing_left, **FAILS_ALONE)
    job.wait_for("attempt 2/6 follows", 1)
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 0
    assert job.log.read_text().strip().splitlines()[-1].startswith(("stopped", "ok"))
    assert "attempt 3/6" not in job.log.read_text()


def beside_a_lost_host(folder, marker):
    (folder / "train.py").write_text(
        "import os, sys, time\n"
        "print('up', flush=True)\n"
        "if os.environ['RANK'] == '0':\n    raise ValueError('bad record 17')\n"
        "time.sleep(60)\n"
    )
    job = Running(
        "native", "--restarts", "3", "train.py", folder=folder, marker=marker, layout="3x1", ALGORUN_BLAME_S="3"
    )
    job.wait_for("ValueError: bad record 17", 1)
    job.supervisor("algo-2").kill()
    assert job.end() == 1, job.log.read_text()
    return job


@pytest.mark.parametrize("begun", [beside_a_lost_host], indirect=True)
def test_a_failure_beside_a_lost_host_says_why_there_is_no_restart(begun):
    assert begun.failure("algo-1") == begun.failure("algo-3")
    lines = begun.failure("algo-1").splitlines()
    assert lines[0] == "exception: rank 0 on algo-1, exit 1, attempt 1/4: ValueError: bad record 17 (at train.py:4)"
    assert lines[-2:] == [
        "no restart: algo-2 was lost",
        "also: lost: algo-2, exit 66: host lost: connection closed",
    ]
    assert "no restart: algo-2 was lost" in begun.log.read_text()


def forestalled(folder, marker):
    """A stop while ranks outlast the end of the first attempt, and hold up the next."""
    (folder / "stubborn.py").write_text(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('up', flush=True)\n"
        "sys.exit('no data') if os.environ['RANK'] == '3' else time.sleep(60)\n"
    )
    job = Running(
        "native", "--restarts", "2", "stubborn.py", folder=folder, marker=marker, ALGORUN_KILL_S="3", **FAILS_ALONE
    )
    job.wait_for("attempt 2/3 follows", 1)
    job.supervisor("algo-2").send_signal(signal.SIGTERM)
    assert job.end() == 0, job.log.read_text()
    return job.log.read_text().splitlines()


@pytest.mark.parametrize("begun", [forestalled], indirect=True)
def test_an_attempt_that_a_stop_forestalls_is_said_not_to_have_started(begun):
    assert begun.count("algorun: attempt 2/3 was not started: SIGTERM on algo-2") == 1
    assert begun[-1] == "stopped nnodes=2 world_size=4 why=SIGTERM on algo-2"


def test_a_rank_whose_first_thread_has_ended_is_gone_before_the_next_attempt(tmp_path, nothing_left):
    """The kernel shows it as a zombie, though another thread of it holds all its memory, and a GPU's."""
    program = tmp_path / "train.py"
    program.write_text(
        "import ctypes, os, signal, sys, threading, time\n"
        "again, rank = os.environ['TORCHELASTIC_RESTART_COUNT'] == '1', os.environ['RANK']\n"
        "if rank == '1' and not again:\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    open('pid', 'w').write(str(os.getpid()))\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "    ctypes.CDLL(None).pthread_exit(None)\n"
        "while not os.path.exists('pid') or (not again and open(f\"/proc/{open('pid').read()}/stat\").read().split()[2] != 'Z'):\n"
        "    time.sleep(0.02)\n"
        "if again:\n"
        "    sys.exit(os.path.exists(f\"/proc/{open('pid').read()}\"))\n"
        "sys.exit('no data')\n"
    )
    done = simulate(
        "native", program, folder=tmp_path, marker=nothing_left, restarts=1, layout="1x2", ALGORUN_RESTART_S="30"
    )
    assert done.code == 0, done.text
    assert done.last == "ok nnodes=1 world_size=2 restarts=1"


def test_a_mistake_is_made_once(tmp_path, nothing_left):
    done = simulate("native", "ddp", "--epohcs", 1, folder=tmp_path, marker=nothing_left, restarts=5, layout="2x1")
    assert done.code == 64
    assert "follows" not in done.out


@pytest.mark.parametrize("word", ["-1", "many", "1001"])
def test_a_budget_that_is_none_is_refused(word, tmp_path):
    done = algorun("simulate", "-j", "1x1", "--restarts", word, AGAIN, cwd=tmp_path)
    assert done.code == 64
    assert f"--restarts: {word!r} is not a whole number from 0 to 1000" in done.err


SMALL = ["--width", "16", "--depth", "1", "--epochs", "3", "--batch-size", "8", "--image-size", "8"]


def weights(host):
    (file,) = (host / "model").glob("*.pt")
    return torch.load(file, weights_only=True)


def flattened(value, name=""):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flattened(item, f"{name}.{key}")
    elif isinstance(value, torch.Tensor):
        yield name, value


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The weights of ranks that nobody disturbs and no launcher starts, by their layout."""

    @functools.cache
    def run(layout):
        folder = tmp_path_factory.mktemp("undisturbed")
        hosts, slots = map(int, layout.split("x"))
        with Ranks(folder, hosts, slots, SMALL) as ranks:
            assert ranks.codes() == [0] * hosts * slots, ranks.text()
        return weights(folder / "host0")

    return run


def trainer(job, rank):
    """The process that is this rank of ddp."""
    for process in psutil.Process(job.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # one that has ended since
            if process.environ().get("RANK") == str(rank) and "algorun_train.jobs.ddp" in " ".join(process.cmdline()):
                return process
    raise AssertionError(rank)


# train/jobs/test_ddp_on_ranks.py resumes after a kill without a launcher; this file has the launcher's attempts.
@pytest.mark.slow
def test_two_ranks_come_out_bit_identical_after_a_killed_one(undisturbed, tmp_path, nothing_left):
    bit_identical_after_a_killed_rank("2x1", 2, "native", undisturbed, tmp_path, nothing_left)


def bit_identical_after_a_killed_rank(layout, world, engine, undisturbed, tmp_path, nothing_left):
    words = ["--restarts", "3", "ddp", *SMALL, "--checkpoint-interval-s", "0.1"]
    job = Running(engine, *words, folder=tmp_path, marker=nothing_left, layout=layout)
    job.wait_for("checkpoint: ", 2)
    os.kill(trainer(job, world - 1).pid, signal.SIGKILL)
    killed_at = time.monotonic()
    assert job.end(300) == 0, job.log.read_text()
    text = job.log.read_text()
    assert f"signal: rank {world - 1} on algo-2, exit 137 (SIGKILL), attempt 1/4" in text
    assert "resumed: " in text
    assert text.strip().splitlines()[-1].startswith(f"ok nnodes=2 world_size={world}")
    assert "restarts=1" in text.splitlines()[-1], f"{time.monotonic() - killed_at:.1f} s"
    ours, theirs = (
        dict(flattened(state)) for state in (weights(tmp_path / "algorun-simulate" / "algo-1"), undisturbed(layout))
    )
    assert ours.keys() == theirs.keys()
    assert len(ours) > 5
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
