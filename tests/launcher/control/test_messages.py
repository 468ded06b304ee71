"""Control messages: what fits, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.control import messages
from algorun.control.failure import Failure, Left
from algorun.control.messages import Hello, Ready, Verdict


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b'{"type": 3}', b"\xff", b"x" * 70_000, b"[" * 60_000],
)
def test_lines_that_are_no_messages_are_refused(line):
    with pytest.raises(ValueError, match=r"."):
        messages.decode(line)


@given(
    st.dictionaries(
        st.text(max_size=10), st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
    )
)
def test_messages_with_wrong_fields_bring_a_value_error_only(fields):
    for parse in (
        messages.parse_hello,
        messages.parse_ready,
        messages.parse_go,
        messages.parse_failure,
        messages.parse_verdict,
        lambda message: messages.parse_left(message, "algo-1"),
    ):
        with pytest.raises(ValueError, match=r"."):  # all of them need fields that none of these has
            parse({"type": "x", **fields})


def test_a_long_traceback_still_fits_a_message():
    failure = Failure("exception", "algo-1", 1, "E" * 70_000, traceback="x\n" * 60_000)
    line = messages.encode(messages.fail(failure))
    assert len(line) <= messages.LONGEST
    assert messages.parse_failure(messages.decode(line.rstrip(b"\n"))).traceback.endswith("x\n")
    line = messages.encode(messages.end(Verdict("failed", 1, failure)))
    assert len(line) <= messages.LONGEST


def test_texts_that_are_too_long_are_cut_until_a_message_fits():
    """A configuration error may show a whole hyperparameter; the others must hear of it all the same."""
    error = "hyperparameter algorun_args: " + "\U0001f600" * 90_000
    line = messages.encode(Hello("algo-2", {}, error).message("mac"))
    assert len(line) <= messages.LONGEST
    assert messages.parse_hello(messages.decode(line)).error == error[: messages.LONGEST_ERROR]
    long = "\U0001f600" * 20_000
    strange = Failure(kind=long, host=long, code=1, message=long, traceback=long, hint="h" * 60_000)
    assert len(messages.encode(messages.fail(strange))) <= messages.LONGEST


@pytest.mark.parametrize("code", [0, -9, 256])
def test_a_failure_cannot_end_a_job_with_success(code):
    message = messages.decode(messages.encode(messages.fail(Failure("exit", "algo-2", code, ""))))
    with pytest.raises(ValueError, match="code"):
        messages.parse_failure(message)


@pytest.mark.parametrize(("slots", "port"), [(0, 0), (-1, 0), (10**9, 0), (1, -1), (1, 65536)])
def test_slots_that_no_host_can_plan_are_no_message(slots, port):
    message = messages.decode(messages.encode(Ready(slots, {}, "h", port).message()))
    with pytest.raises(ValueError, match="slots|port"):
        messages.parse_ready(message)


def test_a_proof_depends_on_token_nonce_and_host():
    proof = messages.mac("token", "nonce", "algo-1")
    assert messages.same(proof, messages.mac("token", "nonce", "algo-1"))
    for other in (("x", "nonce", "algo-1"), ("token", "x", "algo-1"), ("token", "nonce", "algo-2")):
        assert not messages.same(proof, messages.mac(*other))


def test_a_rank_that_has_left_is_named_by_the_host_that_says_so():
    message = messages.decode(messages.encode(messages.left(Left("algo-2", 3, 20, 1))))
    assert messages.parse_left(message, "algo-2") == Left("algo-2", 3, 20, 1)


@pytest.mark.parametrize("change", [{"rank": -1}, {"step": -1}, {"step": 1.5}, {"attempt": True}, {"host": "algo-1"}])
def test_numbers_that_no_rank_has_are_no_message(change):
    with pytest.raises(ValueError, match=r"."):
        messages.parse_left(messages.left(Left("algo-2", 3)) | change, "algo-2")
