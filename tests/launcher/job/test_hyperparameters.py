"""Hyperparameters: decoding and the command line that a script gets."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common.errors import UserError
from algorun.job import hyperparameters as hp
from algorun.job.hyperparameter_groups import Hyperparameters


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("0.10", 0.1),
        ("1e-3", 0.001),
        ("007", "007"),
        ("True", "True"),
        ("true", True),
        ("null", None),
        ('"x y"', "x y"),
        ("[1, 2]", [1, 2]),
        ("{'k': [1]}", "{'k': [1]}"),
        ("", ""),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_a_value_is_json_or_stays_as_it_is(raw, value):
    assert hp.decode(raw) == value


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"lr": 0.1, "b": 2}, ["-b", "2", "--lr", "0.1"]),
        ({"flag": True, "other": False}, ["--flag", "True", "--other", "False"]),
        ({"none": None, "empty": ""}, ["--empty", "", "--none", ""]),
        ({"list": [1, "a"]}, ["--list", "[1, 'a']"]),
        ({"d": {"b": 1, "a": 2}}, ["-d", "a=2,b=1"]),
        ({"Z": 1, "a": 2, "B": 3}, ["-B", "3", "-Z", "1", "-a", "2"]),
        ({"": 1}, ["", "1"]),
        ({"text": "$(rm -rf /) 'quoted' \"twice\""}, ["--text", "$(rm -rf /) 'quoted' \"twice\""]),
    ],
)
def test_argv_follows_the_rules_of_the_toolkit(values, expected):
    assert hp.argv(values) == expected


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"text": "a\0b"}, "hyperparameter 'text': contains a zero byte"),
        ({"te\0xt": 1}, "zero byte"),
        ({"d": {"k": "\0"}}, "hyperparameter 'd': contains a zero byte"),
        ({"text": "a\ud800"}, "hyperparameter 'text': contains U\\+D800, half of a surrogate pair"),
        ({"text": "ü" * 65536}, "is 131072 bytes long: too long for one argument.*fewer than 131072.*a channel"),
    ],
)
def test_what_no_process_can_be_given_is_refused_by_name(values, says):
    with pytest.raises(UserError, match=says):
        hp.argv(values)


def test_values_keep_the_order_of_the_file_and_arguments_have_their_own():
    raw = {"b": "1", "a": "2", "B": "3"}
    assert list(Hyperparameters.parse(raw).user) == ["b", "a", "B"]
    assert hp.argv(Hyperparameters.parse(raw).user) == ["-B", "3", "-a", "2", "-b", "1"]


def test_platform_keys_never_reach_the_script():
    raw = {"sagemaker_program": '"x"', "_tuning_objective_metric": "loss", "lr": "1", "default_user_module_name": "m"}
    assert Hyperparameters.parse(raw).user == {"lr": 1}


@pytest.mark.parametrize(
    ("raw", "value"),
    [("true", True), ("false", False), ("True", True), ("False", False), ('"true"', True), (True, True)],
)
def test_a_flag_is_read_by_its_value(raw, value):
    assert hp.flag({"sagemaker_mpi_enabled": raw}, "sagemaker_mpi_enabled") is value


def test_a_flag_that_is_neither_yes_nor_no_is_refused_by_name():
    with pytest.raises(UserError, match="sagemaker_mpi_enabled.*'maybe'.*true or false"):
        hp.flag({"sagemaker_mpi_enabled": "maybe"}, "sagemaker_mpi_enabled")


text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(text, json_values, max_size=6))
def test_values_of_an_sdk_come_back_whatever_they_are(values):
    raw = {key: json.dumps(value) for key, value in values.items()}
    expected = {key: value for key, value in values.items() if not hp.is_platform_key(key)}
    assert Hyperparameters.parse(raw).user == expected
    argv = hp.argv(Hyperparameters.parse(raw).user)
    assert len(argv) == 2 * len(expected)
    assert all(isinstance(item, str) for item in argv)
