"""The bound of JSON's nesting, which is the same in every Python."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common.codec import DEEPEST, loads
from tests.conftest import examples

LEAVES = st.none() | st.integers() | st.text(st.sampled_from('[]{}"\\a\ud800'), max_size=8)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner), max_leaves=10
)


def nested(levels: int, inside: str = "1") -> str:
    return "[" * levels + inside + "]" * levels


def test_as_deep_as_allowed():
    assert loads(nested(DEEPEST)) == json.loads(nested(DEEPEST))
    assert loads(nested(DEEPEST).encode("utf-16")) == json.loads(nested(DEEPEST))
    beside = f"[{nested(DEEPEST - 1)}, []]"  # more brackets than levels
    assert loads(beside) == json.loads(beside)


@pytest.mark.parametrize(
    "text",
    [
        nested(DEEPEST + 1),
        "[" * 5000,
        '{"a":' * 300,
        nested(100_000),
        '"\\\\",' + nested(300),
        nested(DEEPEST + 1).encode("utf-16"),
        nested(DEEPEST + 1).encode(),
    ],
    ids=["closed", "open", "objects", "for any parser", "behind a string", "utf-16", "utf-8"],
)
def test_deeper_is_told_and_never_parsed(text):
    with pytest.raises(ValueError, match=f"^nested deeper than {DEEPEST} levels$"):
        loads(text)


@pytest.mark.parametrize(
    "text", ["[" * 300 + '"', "[1" * 150 + "}" * 200, '"' + "[" * 300, "1" * 5000, b"\xff" + b"[" * 300]
)
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011 the texts are those of the interpreter
        loads(text)


@pytest.mark.parametrize(
    "text", [nested(100, '"[[[[{{{{"'), "[" + ",".join(["[{}]"] * 500) + "]", '["' + r"\"[" * 300 + '"]']
)
def test_brackets_beside_each_other_and_in_strings_are_no_levels(text):
    assert loads(text) == json.loads(text)


@examples(100)
@given(VALUES)
def test_a_wide_value_is_what_json_reads(value):
    text = json.dumps([value, [[]] * DEEPEST])
    assert loads(text) == loads(text.encode()) == [value, [[]] * DEEPEST]
