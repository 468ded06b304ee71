"""Tracebacks as text: whose line it was, what a group holds, and what stays of a long one."""

from __future__ import annotations

import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.control.failures import peer_errors, tracebacks
from algorun.control.failures.failure import SHOWN, Failure
from algorun.control.failures.peer_errors import Distance

HEADER = "Traceback (most recent call last):\n"
TORCH = "".join(
    f'  File "/opt/conda/lib/python3.11/site-packages/torch/nn/modules/m{number}.py", line {number}, in _call_impl\n'
    f"    return forward_call(*args, **kwargs)  # {'x' * 60}\n"
    for number in range(20)
)
SHAPES = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x7 and 8x4)"
# A wrong shape inside a model under DistributedDataParallel: twenty frames of torch around one of the user's.
DDP = (
    f'{HEADER}  File "/opt/ml/code/train.py", line 9, in <module>\n    net(torch.ones(2, 7))\n{TORCH}'
    f'  File "/opt/ml/code/nets/small.py", line 6, in forward\n    return self.fc(x)\n{TORCH}{SHAPES}'
)
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/opt/ml/code/train.py", line 10, in <module>
  |     asyncio.run(main())
  |   File "/usr/lib/python3.11/asyncio/taskgroups.py", line 145, in __aexit__
  |     raise me from None
  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/opt/ml/code/train.py", line 4, in read
    |     raise OSError(28, "No space left on device")
    | OSError: [Errno 28] No space left on device
    +---------------- 2 ----------------
    | Exception Group Traceback (most recent call last):
    |   File "/opt/ml/code/train.py", line 5, in read
    | ExceptionGroup: deeper (1 sub-exception)
    +-+---------------- 1 ----------------
      | ValueError: shard 2 is empty
      +------------------------------------
"""
MEMBERS = (
    f'{HEADER}  File "/opt/ml/code/train.py", line 10, in <module>\nExceptionGroup: readers (2 sub-exceptions)\n\n'
    f'member 1 of 2: {HEADER}  File "/opt/ml/code/io.py", line 3, in read\nValueError: shard 1 is empty\n\n'
    f"member 2 of 2: {HEADER}{{}}"
)


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        (DDP, "/opt/ml/code", "nets/small.py:6"),
        (DDP, "/home/me", "/opt/ml/code/nets/small.py:6"),
        (f"{HEADER}{TORCH}{SHAPES}", "/opt/ml/code", ""),
        (DDP.replace("/opt/ml/code/nets", "/opt/mylib"), "/opt/ml/code", "train.py:9"),  # the code folder comes first
        (f'{HEADER}  File "/code/.venv/bin/torchrun", line 6, in <module>\nE: x', "/code", ""),
        (f'{HEADER}  File "<string>", line 1, in <module>\nE: x', "/opt/ml/code", "<string>:1"),
        (f'  File "/opt/ml/code/train.py", line 2\n    def f(:\n          ^\n{HEADER}SyntaxError: x', "/opt/ml/code", ""),
        (f'{HEADER}  File "/opt/ml/code/a.py", line 2\n    def f(:\n          ^\nSyntaxError: x', "/opt/ml/code", "a.py:2"),
        (GROUP, "/opt/ml/code", "train.py:4"),
        (MEMBERS.format("E: x"), "/opt/ml/code", "io.py:3"),
        ("no traceback at all", "/opt/ml/code", ""),
    ],
)  # fmt: skip
def test_the_place_is_the_innermost_line_of_the_users_own(text, code, place):
    assert tracebacks.place(text, code) == place


def test_a_long_traceback_keeps_the_users_frames_and_the_exception():
    failure = Failure("exception", "algo-1", 1, SHAPES, rank=0, traceback=DDP, place="nets/small.py:6")
    text = failure.text()
    assert len(text) <= SHOWN
    assert text.splitlines()[0] == f"exception: rank 0 on algo-1, exit 1, attempt 1: {SHAPES} (at nets/small.py:6)"
    for line in ("    net(torch.ones(2, 7))", "    return self.fc(x)", "  ..", SHAPES):
        assert line in text.splitlines()


def test_a_message_that_fills_the_text_leaves_room_for_its_place():
    failure = Failure(
        "exception", "algo-1", 1, "KeyError: " + "x" * 3000, rank=0, place="train.py:6", hint="look there"
    )
    lines = failure.text().splitlines()
    assert lines[0].endswith("x .. (at train.py:6)")
    assert lines[1] == "hint: look there"


def test_the_members_of_a_group_are_told_in_its_first_line():
    assert tracebacks.told(GROUP) == "OSError: [Errno 28] No space left on device; ValueError: shard 2 is empty"
    assert (
        tracebacks.told(MEMBERS.format("ValueError: shard 1 is empty")) == "ValueError: shard 1 is empty (and 1 more)"
    )
    assert tracebacks.told(DDP) == ""


PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:1234"


@pytest.mark.parametrize(("other", "distance"), [(PEER, Distance.PEER), ("KeyError: 'x'", Distance.CAUSE)])
def test_a_group_is_a_peer_error_if_all_its_members_are(other, distance):
    text = MEMBERS.format(other).replace("ValueError: shard 1 is empty", PEER)
    assert peer_errors.nearest(peer_errors.own_words("exception", "", text)) is distance
    assert Failure("exception", "a", 1, "ExceptionGroup: x", rank=0, traceback=text).distance is distance


def test_a_group_that_a_program_has_printed_is_read_without_its_margin():
    words = peer_errors.chain(GROUP, mixed=True)
    assert "OSError: [Errno 28] No space left on device" in words
    assert words[0] == "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)"


@given(
    st.lists(st.sampled_from([*DDP.split("\n"), *GROUP.split("\n"), "", "x" * 300]), max_size=60), st.integers(0, 2000)
)
def test_a_shorter_text_never_takes_more_room_than_there_is(lines, room):
    text = "\n".join(lines)
    short = tracebacks.shortened(text, room)
    assert len(short) <= room or len(text) <= room
    assert set(short.split("\n")) <= {*lines, tracebacks.GAP} or short == text[len(text) - room :]


@given(st.recursive(st.text(max_size=5), lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=8))
def test_what_python_prints_of_groups_has_the_same_exceptions_as_their_tree(tree):
    def raised(each):
        return ExceptionGroup("g", [raised(one) for one in each]) if isinstance(each, list) else ValueError(repr(each))

    def leaves(each):
        return [leaf for one in each for leaf in leaves(one)] if isinstance(each, list) else [f"ValueError: {each!r}"]

    try:
        raise raised([tree])
    except ExceptionGroup as group:
        text = "".join(traceback.format_exception(group))
    shown = tracebacks.lines_of(text)
    for leaf in leaves([tree]):
        assert leaf in shown
