"""Real jobs in which something becomes NaN on one of four ranks: what all hosts are told."""

from __future__ import annotations

import importlib.util
import re

import pytest

from tests.conftest import FAILS_ALONE, algorun

from .running import PROGRAMS

FIRST = "algorun: warning: first value that is not finite: "


def simulate(program, *words, folder, marker, layout="2x2", **environ):
    return algorun(
        "simulate", "-j", layout, str(PROGRAMS / program), *map(str, words), cwd=folder, timeout=300,
        ALGORUN_TEST=marker, **FAILS_ALONE, **environ,
    )  # fmt: skip


def told(done):
    """The line, which each of the two hosts has in its log."""
    lines = [line[len(FIRST) :] for line in done.out.splitlines() if line.startswith(FIRST)]
    assert len(lines) == 2, done.text
    assert lines[0] == lines[1]
    return lines[0]


@pytest.mark.slow(but=["alone"])
@pytest.mark.parametrize(
    ("words", "line"),
    [
        pytest.param("loss 2 5 save", "step 5, rank 2 on algo-2: the loss is nan; the newest checkpoint from before it is step-4", id="loss"),
        pytest.param("loss 3 5 sampler", "step 5, rank 3 on algo-2: the loss is nan (epoch 0, samples 64 to 79)", id="sampler"),
        pytest.param("overflow 2 5", "step 5, rank 2 on algo-2: the loss is inf", id="overflow"),
        pytest.param("gradient 1 6", "step 6, rank 1 on algo-1: the ", id="gradient"),
        pytest.param("gradient 1 6 clip", "step 6, rank 1 on algo-1: the gradient of 2.weight is nan", id="clip"),
        pytest.param("weight 3 4", "step 4, rank 3 on algo-2: the weight 2.weight has become nan in step 4", id="state"),
        pytest.param("loss 2 5 shard", "step 5, rank 2 on algo-2: the loss is nan", id="shard-loss"),
        pytest.param("overflow 2 5 shard", "step 5, rank 2 on algo-2: the loss is inf", id="shard-overflow"),
        pytest.param("gradient 1 6 shard clip", "step 6, rank 1 on algo-1: the gradient of 2.weight is nan", id="shard-clip"),
        pytest.param("weight 3 4 shard", "step 4, rank 3 on algo-2: the weight 2.weight has become nan in step 4", id="shard-state"),
        pytest.param("gradient 0 7 alone clip", "step 7, rank 0 on algo-1: the gradient of 2.weight is nan", id="alone"),
    ],
)  # fmt: skip
def test_rank_step_and_parameter_are_right_on_all_hosts(words, line, tmp_path, nothing_left):
    layout = "2x1" if "alone" in words else "2x2"
    done = simulate("nonfinite.py", *words.split(), folder=tmp_path, marker=nothing_left, layout=layout)
    assert done.code == 0, done.text
    assert told(done).startswith(line)
    if words.startswith("gradient 1 6"):
        assert "2.weight" in told(done), "at once, or as the weight that it has broken, where norms were not computed"


@pytest.mark.slow
@pytest.mark.parametrize("words", ["nothing 0 0 clip", "nothing 0 0 shard accumulate"])
def test_a_healthy_job_is_told_nothing(words, tmp_path, nothing_left):
    done = simulate("nonfinite.py", *words.split(), folder=tmp_path, marker=nothing_left)
    assert done.code == 0, done.text
    assert "not finite" not in done.text


@pytest.mark.slow
def test_with_end_the_job_ends_on_all_hosts_with_rank_and_step(tmp_path, nothing_left):
    words = ("loss", 2, 5)
    done = simulate("nonfinite.py", *words, "long", folder=tmp_path, marker=nothing_left, ALGORUN_NONFINITE="end")
    assert done.code == 1, done.text
    assert done.failure("algo-1") == done.failure("algo-2")
    assert done.failure("algo-1").startswith(
        "nonfinite: rank 2 on algo-2, exit 1, attempt 1, step 5: first value that is not finite: step 5, rank 2 on algo-2: the "
        "loss is nan (ALGORUN_NONFINITE=end)"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ALGORUN_NONFINITE", "ALGORUN_HOOKS"])
def test_off_means_that_nobody_looks(name, tmp_path, nothing_left):
    done = simulate("nonfinite.py", "loss", 0, 3, folder=tmp_path, marker=nothing_left, layout="1x1", **{name: "off"})
    assert done.code == 0, done.text
    assert "not finite" not in done.text


# Lightning, which gives each step a closure: tests/frameworks/test_torch_frameworks.py.
OF_TRAINER = {
    "loss": "the loss is nan",
    "gradient": "the gradient of last.weight is nan",
    "overflow": "the loss is inf",
    "weight": "the weight last.weight has become nan in step 3",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", OF_TRAINER)
def test_a_library_that_owns_the_loop_is_seen(what, tmp_path, nothing_left):
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("no transformers in this environment (pip install transformers)")
    done = simulate("nonfinite_trainer.py", "trainer", what, 2, 3, folder=tmp_path, marker=nothing_left)
    assert done.code == 0, done.text
    assert told(done) == f"step 3, rank 2 on algo-2: {OF_TRAINER[what]}"


def weights(done):
    """The weights that each rank has at the end, exactly."""
    found = dict(re.findall(r"\] weights (\d) (.+)", done.out))
    assert len(found) == 2, done.text
    return found


# `make test` leaves out steps in one process: tests/launcher/inside/test_rank_nonfinite.py.
@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        "gradient",
        "loss",
        "overflow",
        "gradient clip",
        "loss accumulate",
        "loss shard",
        "gradient shard clip",
        "loss two",
    ],
)
def test_a_step_is_left_out_on_all_ranks(how, tmp_path, nothing_left):
    """The weights are those of a job in which nobody makes the step, to the bit."""
    what, *more = how.split()
    left_out = simulate(
        "nonfinite.py", what, 1, 6, *more, folder=tmp_path, marker=nothing_left, layout="2x1", ALGORUN_NONFINITE="skip"
    )
    assert left_out.code == 0, left_out.text
    assert told(left_out).startswith(f"step {12 - 1 if 'two' in more else 6}, rank"), left_out.text
    assert left_out.text.count("algorun: warning: step ") == (2 if "two" in more else 1)
    assert "is left out on all ranks, a gradient is not finite (the first one)" in left_out.text
    plain = "overflow" if what == "overflow" else "omit"
    if plain == "omit":
        omitted = simulate("nonfinite.py", "omit", 1, 6, *more, folder=tmp_path, marker=nothing_left, layout="2x1")
        assert weights(left_out) == weights(omitted)
    assert "nan" not in str(weights(left_out))


@pytest.mark.slow
def test_a_job_that_would_leave_out_all_steps_ends_with_its_reason(tmp_path, nothing_left):
    done = simulate(
        "nonfinite.py",
        "weight",
        1,
        2,
        folder=tmp_path,
        marker=nothing_left,
        layout="2x1",
        ALGORUN_NONFINITE="skip",
        STEPS="150",
    )
    assert done.code == 1, done.text
    assert (
        "100 optimizer steps in a row were left out, because gradients were not finite (ALGORUN_NONFINITE=skip)"
        in done.failure("algo-1")
    )
    assert "(64 so far)" in done.text
