"""Real jobs whose rank fails again: which ends are final at once, and which get a third attempt."""

from __future__ import annotations

import pytest

from tests.conftest import FAILS_ALONE, algorun

from .running import PROGRAMS


def simulate(how, folder, marker, layout="1x2", **environ):
    return algorun(
        "simulate", "-j", layout, "--restarts", "9", str(PROGRAMS / "same.py"), how, cwd=folder,
        ALGORUN_TEST=marker, **{**FAILS_ALONE, **environ},
    )  # fmt: skip


def line(words: str) -> int:
    """The line of the program that has these words."""
    return 1 + next(at for at, text in enumerate((PROGRAMS / "same.py").read_text().splitlines()) if words in text)


def ended_alike(what: str) -> str:
    return f"budget: algo-1, exit 68: {what} has ended attempts 1 and 2 in the same way, so another one would fail too; the last"


# Without steps, and where torch is imported at a step: 2 s of CPU in each attempt.
@pytest.mark.slow(but=["raise", "exit"])
@pytest.mark.parametrize(
    ("how", "what"),
    [
        pytest.param("raise", "ValueError at {0}:{1} on algo-1", id="raise"),
        pytest.param("step", "ValueError at {0}:{1} on algo-1 after step 3", id="step"),
        pytest.param("exit", "exit 7 on algo-1", id="exit"),
        pytest.param("crash", "exit 139 on algo-1", id="crash"),
    ],
)
def test_the_same_failure_twice_ends_with_68_at_once(how, what, tmp_path, nothing_left):
    done = simulate(how, tmp_path, nothing_left)
    assert done.code == 68, done.text
    assert done.failure("algo-1").startswith(ended_alike(what.format(PROGRAMS / "same.py", line("raise ValueError"))))
    assert "attempt 2/10 follows" in done.out
    assert "attempt 3/10" not in done.out


@pytest.mark.slow
def test_the_same_hang_twice_ends_with_68(tmp_path, nothing_left):
    done = simulate("hang", tmp_path, nothing_left, ALGORUN_HANG_S="1")
    assert done.code == 68, done.text
    assert done.failure("algo-1").startswith(
        ended_alike(f"a hang at same.py:{line('sleep(1000)')} on algo-1 after step 3")
    )


@pytest.mark.slow(but=["killed", "saving"])
@pytest.mark.parametrize("how", ["killed", "network", "saving", "moving"])
def test_a_failure_that_moves_on_or_is_not_the_program_s_gets_a_third_attempt(how, tmp_path, nothing_left):
    done = simulate(how, tmp_path, nothing_left)
    assert done.code == 0, done.text
    assert done.last == "ok nnodes=1 world_size=2 restarts=2"


def test_a_failure_of_all_hosts_is_the_same_whichever_tells_first(tmp_path, nothing_left):
    (tmp_path / "train.py").write_text("import absent_module\n")
    done = algorun("simulate", "-j", "2x1", "--restarts", "5", "train.py", cwd=tmp_path, ALGORUN_TEST=nothing_left)
    assert done.code == 68, done.text
    assert "has ended attempts 1 and 2 in the same way" in done.failure("algo-1")
    assert done.failure("algo-1") == done.failure("algo-2")
