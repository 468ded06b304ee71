"""JAX on two hosts of two ranks: one computation over all of them, and its ends."""

from __future__ import annotations

import os
import re

import pytest

from tests.conftest import ENGINES, under
from tests.launcher.whole.running import busy

from . import published
from .conftest import PROGRAMS, RUN_S, STANDING, lose, same_failure

pytestmark = pytest.mark.slow
FRAMEWORK = "jax"
PROGRAM = PROGRAMS / "sum_with_jax.py"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_sum_over_all_ranks_is_the_same_on_each(engine, run):
    done = run(engine, "2x2", PROGRAM)
    assert done.code == 0, done.text
    found = re.findall(r"^\[(\d) \S+\] (sum .*)$", done.out, re.M)
    assert sorted(found) == [(str(rank), "sum 10.0 of 4 processes, 4 devices") for rank in range(4)]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_example_of_the_guide_takes_its_arguments_from_a_shell(engine, run, script):
    """gpu_example.py ADDRESS PROCESS_ID PROCESSES of JAX's guide: a rank's variables are all that it needs."""
    script(published.JAX_GUIDE, "gpu_example.py", "# In file gpu_example.py")
    start = script.folder / "gpu_example.sh"
    start.write_text('exec python gpu_example.py "$JAX_COORDINATOR_ADDRESS" "$RANK" "$WORLD_SIZE"\n')
    done = run(engine, "2x2", start.name)
    assert done.code == 0, done.text
    assert sorted(re.findall(r"^\[(\d) \S+\] process id = (\d)$", done.out, re.M)) == [(each, each) for each in "0123"]
    devices = re.findall(r"^\[\d \S+\] global devices = (.*)$", done.out, re.M)
    assert len(devices) == 4
    assert len(set(devices)) == 1
    assert devices[0].count("CpuDevice") == 4


@pytest.mark.parametrize("engine", ENGINES)
def test_the_program_for_kubernetes_needs_one_other_line(engine, run, script):
    """JAX asks Kubernetes for what `initialize()` lacks; a rank has it in two variables."""
    program = script(published.JAX_KUBERNETES, "program.py", "import jax\n")
    text = program.read_text()
    known = 'num_processes=int(os.environ["WORLD_SIZE"]), process_id=int(os.environ["RANK"])'
    assert text.count("initialize()") == 1
    program.write_text("import os\n" + text.replace("initialize()", f"initialize({known})"))
    done = run(engine, "2x2", program.name)
    assert done.code == 0, done.text  # its own assertions: more than one process, and devices of other ones
    assert len(re.findall(r"^\[\d \S+\] \[(?:CpuDevice\(id=\d+\)(?:, )?){4}\]$", done.out, re.M)) == 4


def test_without_arguments_jax_refuses_to_start(run, script):
    """Once JAX finds the number of processes in a variable, docs/frameworks.md has to say so."""
    done = run("native", "2x2", script(published.JAX_KUBERNETES, "program.py", "import jax\n").name)
    assert done.code == 1, done.text
    assert "ValueError: Number of processes must be defined." in same_failure(done)


def test_the_toy_of_the_guide_finds_the_documented_result(run, script):
    """toy.py names localhost as the coordinator: it is for one host."""
    script(published.JAX_GUIDE, "toy.py", "# call this file toy.py")
    start = script.folder / "toy.sh"
    start.write_text('exec python toy.py "$RANK" "$WORLD_SIZE"\n')
    done = run("native", "1x4", start.name, JAX_NUM_CPU_DEVICES="2")
    assert done.code == 0, done.text
    found = re.findall(r"^\[\d \S+\] process=(\d) got result: (\S+)$", done.out, re.M)
    assert sorted(process for process, _ in found) == ["0", "1", "2", "3"]
    assert [float(result) for _, result in found] == pytest.approx([-0.12398731708526611] * 4, rel=1e-6)


@pytest.mark.parametrize(("lost", "other"), [("algo-1", "algo-2"), ("algo-2", "algo-1")])
def test_a_lost_host_is_named(lost, other, begin):
    """JAX notices it as well, and would end the other processes itself, with words of its own."""
    job = begin("2x2", PROGRAM, "stop", 0)
    job.wait_for("] sum 10.0", 4, timeout=RUN_S)
    lose(job, lost, other)


@pytest.mark.parametrize(
    ("end", "rank", "code", "says"),
    [
        ("raise", 3, 1, "exception: rank 3 on algo-2, exit 1, attempt 1: ValueError: a bad sample"),
        ("kill", 0, 137, "signal: rank 0 on algo-1, exit 137 (SIGKILL), attempt 1: "),
        ("abort", 2, 134, "signal: rank 2 on algo-2, exit 134 (SIGABRT), attempt 1: "),
    ],
)
def test_the_rank_that_fails_is_the_root_cause_on_all_hosts(end, rank, code, says, run):
    """Rank 0 serves JAX's coordination: without it JAX ends the other ranks itself."""
    done = run("native", "2x2", PROGRAM, end, rank)
    assert done.code == code, done.text
    assert same_failure(done).startswith(says)


def test_a_stop_ends_all_ranks_after_the_same_step(begin):
    job = begin("2x2", PROGRAM, "stop", 0)
    job.wait_for("] sum 10.0", 4, timeout=RUN_S)
    job.process.terminate()
    assert job.process.wait(RUN_S) == 0, job.log.read_text()
    steps = re.findall(r"^\[\d \S+\] left after step (\d+)$", job.log.read_text(), re.M)
    assert len(steps) == 4
    assert len(set(steps)) == 1


@pytest.mark.parametrize(
    ("phase", "engine"),
    under(
        "import native",
        "data native",
        "compile native",
        "collective native",
        "collective torchrun",
        "collective mpirun",
        "end native",
    ),
)
def test_a_rank_that_stands_still_is_named_with_its_line(phase, engine, run):
    done = run(engine, "2x1", STANDING, "jax", phase, ALGORUN_HANG_S="8")
    assert done.code == 67, done.text
    assert re.match(
        r"hang: rank 1 on algo-2, exit 67, attempt 1: no sign of progress for \d+ s: stuck at", same_failure(done)
    )


@pytest.mark.parametrize("work", ["compile", "data"])
def test_a_rank_that_works_in_silence_on_a_busy_machine_is_no_hang(work, run):
    """It compiles, or prepares data, for three times the limit; the other rank waits for it. 4 x the cores are asked for."""
    program = (PROGRAMS / "work_in_silence.py", "jax", work, 24)
    with busy(4 * (os.cpu_count() or 1)):
        done = run("native", "2x1", *program, ALGORUN_HANG_S="8")
    assert done.code == 0, done.text
    assert done.out.count("] went through") == 2
