"""The codec of control messages: what fits, what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun import __version__
from algorun.common.fast_dataclasses import fields
from algorun.control.failures.failure import Failure, RankLeft
from algorun.control.hang.hang import Stack, StackFrame
from algorun.control.wire import wire
from algorun.control.wire.messages import (
    FROM_HOST,
    FROM_HUB,
    End,
    Fail,
    Go,
    Heartbeat,
    Hello,
    Load,
    NodeAlive,
    Ready,
    Stop,
    Verdict,
)
from algorun.plan import agreement
from tests.conftest import job, machine
from tests.fuzz.readers_control import FROM_HOSTS
from tests.fuzz.readers_control import FROM_HUB as SAMPLES_OF_HUB

SAMPLES = [*FROM_HOSTS, *SAMPLES_OF_HUB]


CHALLENGE = "0" * 32


def edited(message, **changes) -> bytes:
    """The message's line with other values; None takes a field away."""
    values = json.loads(wire.encode(message)) | changes
    return json.dumps({key: value for key, value in values.items() if value is not None}).encode()


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_every_message_arrives_as_it_was_sent(message):
    assert wire.decode(wire.encode(message).rstrip(b"\n")) == message


def test_every_class_is_tried():
    assert {type(message) for message in SAMPLES} | {type(None)} == {
        *FROM_HOST.values(),
        *FROM_HUB.values(),
        type(None),
    }


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_with_another_field_or_without_one_is_refused(message):
    with pytest.raises(ValueError, match="with fields"):
        wire.decode(edited(message, unknown=1))
    for each in fields(message):
        values = json.loads(wire.encode(message))
        del values[each.name]
        with pytest.raises(ValueError, match="with fields"):
            wire.decode(json.dumps(values).encode())


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b'{"type": 3}', b'{"type": "x"}', b"\xff", b"x" * 70_000, b"[" * 60_000],
)
def test_lines_that_are_no_messages_are_refused(line):
    with pytest.raises(ValueError, match=r"."):
        wire.decode(line)


@pytest.mark.parametrize("name", sorted({*FROM_HOST, *FROM_HUB} - {"stop", "ask_stacks", "stacks_sent"}))
@given(values=st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2))
def test_values_of_another_type_bring_a_value_error_only(name, values):
    """No message but `stop` and the like is made of one kind of value that all of these could be."""
    line = json.dumps({"type": name} | {each.name: values for each in fields(wire.CLASSES[name])}).encode()
    try:
        wire.decode(line)
    except ValueError:
        return
    assert all(
        isinstance(getattr(wire.decode(line), each.name), (str, int, float, type(None), tuple))
        for each in fields(wire.CLASSES[name])
    )


@pytest.mark.parametrize(
    "line",
    [
        edited(Stop("x"), why=3),
        edited(Heartbeat(1), heard=True),
        edited(Heartbeat(1), unheard=0),
        edited(Hello("algo-2", {}, challenge=CHALLENGE, session="s"), digest={"a": 1}),
        edited(Go(0, "h", 1, {"algo-1": 1}), slots={"algo-1": "1"}),
        edited(Go(0, "h", 1, {"algo-1": 1}), slots={"algo-1": -1}),
        edited(NodeAlive(0, "algo-2"), attempt="0"),
        edited(Fail(Failure("exit", "algo-2", 1, "")), failure={"kind": "exit"}),
        edited(Stack(1, "algo-2", 3, (StackFrame("f", 1, "g"),)), frames=[{"file": "f"}]),
    ],
)
def test_fields_of_another_type_are_refused(line):
    with pytest.raises(ValueError, match=r"."):
        wire.decode(line)


def test_a_long_traceback_still_fits_a_message():
    failure = Failure("exception", "algo-1", 1, "E" * 70_000, traceback="x\n" * 60_000)
    line = wire.encode(Fail(failure))
    assert len(line) <= wire.LONGEST
    assert wire.decode(line.rstrip(b"\n")).failure.traceback.endswith("x\n")
    assert len(wire.encode(End(Verdict("failed", 1, failure)))) <= wire.LONGEST


def test_texts_that_are_too_long_are_cut_until_a_message_fits():
    """A configuration error may show a whole hyperparameter; the others must hear of it all the same."""
    error = "hyperparameter algorun_args: " + "\U0001f600" * 90_000
    line = wire.encode(Hello("algo-2", {}, error, CHALLENGE, "session"))
    assert len(line) <= wire.LONGEST
    assert wire.decode_hello(line).error == error[: wire.LONGEST_ERROR]
    long = "\U0001f600" * 20_000
    strange = Failure(kind=long, host=long, code=1, message=long, traceback=long, hint="h" * 60_000)
    assert len(wire.encode(Fail(strange))) <= wire.LONGEST


@pytest.mark.parametrize("code", [0, -9, 256])
def test_a_failure_cannot_end_a_job_with_success(code):
    with pytest.raises(ValueError, match="code"):
        wire.decode(wire.encode(Fail(Failure("exit", "algo-2", code, ""))))


@pytest.mark.parametrize("verdict", [Verdict("ok", 1), Verdict("failed", 0, Failure("exit", "algo-2", 1, ""))])
def test_a_verdict_does_not_contradict_itself(verdict):
    with pytest.raises(ValueError, match="a verdict with code"):
        wire.decode(wire.encode(End(verdict)))


@pytest.mark.parametrize(("slots", "port"), [(-1, 0), (10**9, 0), (1, -1), (1, 65536)])
def test_slots_that_no_host_can_plan_are_no_message(slots, port):
    with pytest.raises(ValueError, match="slots|port"):
        wire.decode(wire.encode(Ready(slots, {}, "h", port)))


@pytest.mark.parametrize(
    "change",
    [
        *({"gpus": -1}, {"idle": 5000}, {"cpu": float("nan")}, {"seconds": float("inf")}),
        *({"cores": 10**400}, {"workers": -1}, {"memory_limit_bytes": 10**400}, {"disk_read": 1e300}),
    ],
)
def test_numbers_that_no_host_has_are_no_message(change):
    load = next(message for message in SAMPLES if isinstance(message, Load))
    with pytest.raises(ValueError, match=r"not 0 to|load: "):
        wire.decode(edited(load, load={**json.loads(wire.encode(load))["load"], **change}))


@pytest.mark.parametrize("port", [-1, 65536, 10**9])
def test_ports_that_no_host_has_are_no_message(port):
    with pytest.raises(ValueError, match="tf_port"):
        wire.decode(wire.encode(Ready(1, {}, tf_port=port)))
    for ports in ({"tf_ports": {"algo-1": port}}, {"jax_port": port}):
        with pytest.raises(ValueError, match="tf_port of algo-1|jax_port"):
            wire.decode(edited(Go(0, "h", 1, {"algo-1": 1}), **ports))


def test_the_ports_of_a_thousand_hosts_fit_a_message():
    hosts = [f"algo-{number}" for number in range(1, 1001)]
    line = wire.encode(Go(1000, hosts[0], 65535, dict.fromkeys(hosts, 4096), 65535, 65535, dict.fromkeys(hosts, 65535)))
    assert len(line) < 48 * 1024 < wire.LONGEST


@pytest.mark.parametrize("change", [{"rank": -1}, {"step": -1}, {"step": 1.5}, {"attempt": True}, {"more": 1}])
def test_numbers_that_no_rank_has_are_no_message(change):
    with pytest.raises(ValueError, match=r"."):
        wire.decode(edited(RankLeft("algo-2", 3), **change))


def test_a_hello_of_another_version_is_read_so_that_both_versions_can_be_named():
    hello = Hello("algo-2", {wire.VERSION: "9.9"}, challenge=CHALLENGE, session="s")
    assert wire.decode_hello(edited(hello, later="x", error=None)) == hello
    with pytest.raises(ValueError, match="with fields"):
        wire.decode_hello(
            edited(Hello("algo-2", {wire.VERSION: __version__}, challenge=CHALLENGE, session="s"), later="x")
        )
    with pytest.raises(ValueError, match="without a session"):
        wire.decode_hello(edited(hello, session=""))
    for challenge in ("", "x" * 32, "0" * 31):
        with pytest.raises(ValueError, match="without a challenge"):
            wire.decode_hello(edited(hello, challenge=challenge))


def test_the_version_has_the_key_that_hosts_agree_on():
    assert agreement.at_first(job("script"), machine())[wire.VERSION] == __version__
