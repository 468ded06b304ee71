"""A job of any program that stands still ends with 67, whatever the engine; one that works in silence goes on."""

from __future__ import annotations

import importlib.util
import re
from functools import partial

import pytest

from tests.conftest import algorun, needs_mpi

from .running import PROGRAMS, busy

PHASES = ("import", "data", "compile", "collective", "end")
# Engines that the kind runs on; what has to be installed. tests/frameworks has JAX and TensorFlow, test_ray_standstill.py Ray.
KINDS = {
    "plain": (("native", "torchrun", "mpirun"), None),
    "torch": (("native", "torchrun"), "torch"),
    "mpi4py": (("mpirun",), "mpi4py"),
}
QUICK = "native plain collective"
WORKS = ("compute", "threads", "children", "index", "download", "closed", "reports", "shells")
QUICK_WORKS = ("index", "download")


def simulate(*words, folder, marker, layout="2x1", engine="native", hang_s="3", **environ):
    return algorun(
        "simulate", "-j", layout, "--engine", engine, *map(str, words),
        cwd=folder, ALGORUN_TEST=marker, ALGORUN_HANG_S=hang_s, timeout=480, **environ,
    )  # fmt: skip


def standing(engine, kind, phase, folder, marker):
    # A framework's import may sleep for seconds on a busy machine, until its pages are read.
    hang_s = "2" if kind == "plain" else "6"
    return simulate(PROGRAMS / "standing.py", kind, phase, folder=folder, marker=marker, engine=engine, hang_s=hang_s)


def cases():
    for kind, (engines, package) in KINDS.items():
        absent = package is not None and importlib.util.find_spec(package) is None
        marks = [pytest.mark.skipif(absent, reason=f"needs {package}")]
        for engine in engines:
            more = [needs_mpi] if engine == "mpirun" else []
            for phase in PHASES:
                run = partial(standing, engine, kind, phase)
                yield pytest.param(run, id=f"{engine} {kind} {phase}", marks=[*marks, *more])


@pytest.mark.slow(but=[QUICK])
@pytest.mark.parametrize("begun", [*cases()], indirect=True)
def test_the_rank_that_sleeps_is_named_with_its_line_on_every_host(begun):
    assert begun.code == 67, begun.text
    (failure,) = {begun.failure(host) for host in ("algo-1", "algo-2")}
    named = r"hang: rank 1 on algo-2, exit 67, attempt 1: no sign of progress for \d+ s: stuck at standing.py:\d+: time.sleep"
    assert re.match(named, failure), failure
    kept = (begun.folder / "algo-2" / "output" / "data" / "stacks-rank-00001.txt").read_text()
    assert "in stuck" in kept


def working(kind, folder, marker):
    return simulate(PROGRAMS / "working.py", kind, 8, folder=folder, marker=marker, layout="1x1", hang_s="2")


@pytest.mark.slow(but=[*QUICK_WORKS])
@pytest.mark.parametrize("begun", [pytest.param(partial(working, kind), id=kind) for kind in WORKS], indirect=True)
def test_a_program_that_works_in_silence_is_no_hang(begun):
    assert begun.code == 0, begun.text
    assert "stand still" not in begun.text


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["compute", "threads", "children"])
def test_a_busy_machine_makes_no_hang_of_work(kind, tmp_path, nothing_left):
    with busy(8):
        done = working(kind, tmp_path, nothing_left)
    assert done.code == 0, done.text


def apart(folder, marker):
    return simulate(PROGRAMS / "working.py", "waits_for_rank_0", 14, folder=folder, marker=marker, hang_s="2")


@pytest.mark.slow
@pytest.mark.parametrize("begun", [apart], indirect=True)
def test_a_part_that_stands_while_another_works_is_one_warning(begun):
    assert begun.code == 0, begun.text
    warned = re.findall(r"warning: no sign of progress for \d+ s: (.*)", begun.out)
    assert warned == ["rank 1 stands still, but rank 0 computes; the job goes on"]


def silenced(folder, marker):
    return simulate(PROGRAMS / "working.py", "closed_asleep", 0, folder=folder, marker=marker, hang_s="2")


@pytest.mark.slow
@pytest.mark.parametrize("begun", [silenced], indirect=True)
def test_a_program_that_has_closed_its_output_and_sleeps_hangs(begun):
    assert begun.code == 67, begun.text
    assert "closed_asleep at working.py" in begun.err


# A loop that prints and gets nowhere after its second step, and one without any step.
NOISY = """
import sys, time
print("step 1", flush=True)
for number in range(int(sys.argv[1])):
    print("still waiting for", number, flush=True)
    time.sleep(0.5)
"""


def noisy(regex, turns, folder, marker):
    (folder / "noisy.py").write_text(NOISY)
    return simulate("noisy.py", turns, folder=folder, marker=marker, hang_s="2", ALGORUN_PROGRESS=regex)


@pytest.mark.slow
@pytest.mark.parametrize("begun", [partial(noisy, "^step [0-9]+$", 1000)], indirect=True)
def test_lines_that_are_no_progress_by_the_user_s_rule_keep_no_job_alive(begun):
    assert begun.code == 67, begun.text
    assert "no sign of progress for" in begun.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "begun", [partial(noisy, "epoch [0-9]+", 14), partial(noisy, "(a+)+$|.*.*.*.*.*.*x", 14)], indirect=True
)
def test_a_rule_that_matches_no_line_is_one_warning(begun):
    assert begun.code == 0, begun.text
    assert begun.out.count("warning: ALGORUN_PROGRESS has matched no line of any rank so far; until it does,") == 1


def unmatchable(folder, marker):
    (folder / "noisy.py").write_text("print('a' * 400 + 'b')\n")
    return simulate("noisy.py", folder=folder, marker=marker, ALGORUN_PROGRESS="(a+)+$")


@pytest.mark.slow
@pytest.mark.parametrize("begun", [unmatchable], indirect=True)
def test_a_rule_that_takes_for_ever_is_switched_off(begun):
    assert begun.code == 0, begun.text
    assert begun.out.count("warning: ALGORUN_PROGRESS takes more than 1 s on a few lines, so it is switched off") == 2


def test_a_rule_that_is_no_expression_is_refused_on_every_host(tmp_path, nothing_left):
    (tmp_path / "quick.sh").write_text("true\n")
    done = simulate("quick.sh", folder=tmp_path, marker=nothing_left, ALGORUN_PROGRESS="step [0-9")
    assert done.code == 64, done.text
    assert "ALGORUN_PROGRESS: 'step [0-9' is no regular expression: unterminated character set" in done.err
