"""Which rank, step and value is named first, and that all hosts hear it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common.fast_dataclasses import replace
from algorun.control.failures import non_finite
from algorun.control.failures.non_finite import GRADIENT, LOSS, WEIGHT, WINDOW_S, NonFiniteValue
from algorun.control.hub.hub_messages import receive
from algorun.control.wire.messages import Notice
from algorun.host.ranks.rank_port import parse_non_finite
from tests.conftest import examples
from tests.launcher.jobs import LIMITS, running

FOUND = NonFiniteValue(2, 5, 5, LOSS, "nan", "", 0, 1, "epoch 1, samples 64 to 79", 0.5, "warn", "algo-2", 0, "step-4")
AVERAGED = replace(FOUND, rank=0, of=GRADIENT, name="0.weight", names=6, total=6, host="algo-1", place="")


def test_a_loss_comes_before_the_gradients_that_it_has_made():
    assert non_finite.line([AVERAGED, replace(AVERAGED, rank=1), FOUND]) == (
        "first value that is not finite: step 5, rank 2 on algo-2: the loss is nan (epoch 1, samples 64 to 79); the newest "
        "checkpoint from before it is step-4"
    )


def test_a_weight_of_the_step_before_comes_before_the_loss():
    weight = replace(FOUND, rank=3, of=WEIGHT, step=4, earliest=4, name="a.weight", names=1, total=6)
    assert "step 4, rank 3 on algo-2: the weight a.weight has become nan in step 4" in non_finite.line([FOUND, weight])


def test_gradients_of_several_ranks_are_said_to_be_averaged():
    line = non_finite.line([AVERAGED, replace(AVERAGED, rank=1, host="algo-2")])
    assert "step 5, ranks 0, 1 at once: the gradient of 0.weight (and of 5 more of 6) is nan" in line
    assert non_finite.AVERAGED in line


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (replace(AVERAGED, of=WEIGHT, step=9, earliest=3, names=1), "the weight 0.weight has become nan between steps 3 and 9"),
        (replace(AVERAGED, of=WEIGHT, step=0, earliest=0, names=1), "the weight 0.weight has become nan before the first step"),
        (replace(FOUND, earliest=4), "the loss is nan, unless a weight has become so in step 4"),
    ],
)  # fmt: skip
def test_what_nobody_has_looked_at_is_said(value, words):
    assert words in non_finite.line([value])


@examples(200)
@given(
    st.lists(
        st.builds(
            lambda rank, step, of: replace(FOUND, rank=rank, step=step, earliest=step, of=of, name="w"),
            st.integers(0, 7), st.integers(1, 5), st.sampled_from([LOSS, GRADIENT, WEIGHT]),
        ),
        min_size=1, unique_by=lambda each: each.rank,
    ),
    st.randoms(),
)  # fmt: skip
def test_the_line_does_not_depend_on_who_tells_first(found, random):
    line = non_finite.line(found)
    random.shuffle(found)
    assert non_finite.line(found) == line
    assert f"step {min(each.step for each in found)}, " in line


def told(job):
    return {host: [m.text for m in messages if isinstance(m, Notice)] for host, messages in job.to_host.items()}


def test_all_hosts_hear_it_once_after_other_ranks_had_their_time():
    job = running(2)
    for value, host in ((AVERAGED, "algo-1"), (FOUND, "algo-2"), (replace(FOUND, step=4, earliest=4), "algo-2")):
        assert receive(job.hub, job.now, host, value) == []
    assert job.hub.deadline <= job.now + WINDOW_S
    job.now += WINDOW_S
    job.send(job.hub.tick(job.now))
    assert told(job) == {host: [non_finite.line([AVERAGED, FOUND])] for host in ("algo-1", "algo-2")}
    receive(job.hub, job.now, "algo-1", replace(AVERAGED, rank=1))
    job.send(job.hub.tick(job.now + 2 * WINDOW_S))
    assert len(told(job)["algo-1"]) == 1


def test_with_end_the_job_ends_with_it_on_all_hosts():
    job = running(2)
    receive(job.hub, job.now, "algo-2", replace(FOUND, mode="end"))
    job.pass_time(WINDOW_S + LIMITS.blame_s + 0.2)
    (failure,) = {verdict.failure for verdict in job.verdicts.values()}
    assert set(job.verdicts) == {"algo-1", "algo-2"}
    assert (failure.kind, failure.code, failure.rank, failure.step) == ("nonfinite", 1, 2, 5)
    assert failure.headline().startswith(
        "nonfinite: rank 2 on algo-2, exit 1, attempt 1, step 5: first value that is not"
    )


def test_a_failure_that_comes_before_the_line_has_it_as_its_hint():
    job = running(2)
    receive(job.hub, job.now, "algo-2", FOUND)
    job.act("algo-1", job.members["algo-1"].rank_exited(job.now, 0, 1, "ValueError: nan"))
    job.settle()
    job.pass_time(LIMITS.blame_s + 0.1)
    (failure,) = {verdict.failure for verdict in job.verdicts.values()}
    assert failure.hint == non_finite.line([FOUND])


def test_the_value_of_an_attempt_before_says_nothing():
    job = running(2, restarts=1)
    receive(job.hub, job.now, "algo-2", replace(FOUND, attempt=1))
    assert job.hub.reports.non_finite.take() == ""


DATAGRAM = b"\0".join([b"nonfinite", b"2", b"5", b"5", b"0", b"nan", b"", b"0", b"1", b"epoch 1", b"0.5", b"warn"])


def test_a_datagram_of_a_rank_is_read():
    assert parse_non_finite(DATAGRAM) == NonFiniteValue(2, 5, 5, 0, "nan", "", 0, 1, "epoch 1", 0.5, "warn")


@pytest.mark.parametrize("place", [1, 2, 3, 4, 7, 8, 10])
@pytest.mark.parametrize("word", [b"", b"x", b"-1", b"9" * 30])
def test_another_datagram_is_none(place, word):
    fields = DATAGRAM.split(b"\0")
    fields[place] = word
    assert parse_non_finite(b"\0".join(fields)) is None
    assert parse_non_finite(DATAGRAM[10:]) is None
