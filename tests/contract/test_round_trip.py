"""A user's Python values through each client's encoding to what the script gets: what comes back, and what is lost.

| encoding | comes back as it was | lost |
|---|---|---|
| json: framework estimators of SDK v2 | every value | nothing |
| v3: ModelTrainer | every value but some strings | a string that is JSON itself: "1" is 1, "null" is None |
| str: SDK v2's plain Estimator | numbers, lists and dictionaries of numbers, strings that are no JSON | the same strings; \
True, None, inf and what holds strings arrive as Python writes them |

SM_HPS carries these values whole. SM_HP_<KEY> writes None and "" alike, and "1" as it writes 1. The command line has
each value as Python writes it, except None (empty) and dictionaries (`k=v,..`): of the three encodings only None and
dictionaries by str() differ there, "None" and "{'k': 'v'}".
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common.fast_dataclasses import replace
from algorun.job import hyperparameters as hp
from algorun.job.hyperparameter_groups import Hyperparameters
from algorun.plan import cluster, plan
from tests.conftest import PROGRAMS, job, machine
from tests.contract.trees import ENCODINGS

SCRIPT = job("script")
MACHINE = machine()
RANKS = cluster.resolve(SCRIPT, cluster.assumed_slots(SCRIPT, cluster.own_slots(SCRIPT, MACHINE)))

text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
looks_like_json = st.sampled_from(
    ["1", "0.10", "1e-3", "true", "True", "null", "None", "NaN", "[1]", '{"a": 1}', '"x"', "007", " 1 "]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text | looks_like_json
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=6
)
keys = st.from_regex(r"[A-Za-z_é][A-Za-z0-9_.é-]{0,8}", fullmatch=True).filter(lambda key: not hp.is_platform_key(key))


@st.composite
def hyperparameters(draw):
    """Keys that differ in more than their case, as variables need them."""
    named = draw(st.lists(keys, unique_by=lambda key: key.upper(), max_size=6))
    return {key: draw(values) for key in named}


def given_to_the_script(raw: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """argv and environment of the only rank."""
    args = tuple(hp.argv(Hyperparameters.parse(raw).user))
    given = replace(SCRIPT.input, hyperparameters=Hyperparameters.parse(raw))
    config = replace(SCRIPT, input=given, entry=replace(SCRIPT.entry, args=args))
    made = plan.make(config, RANKS, MACHINE, PROGRAMS)
    return list(made.argv[-len(args) :] if args else []), made.environ(made.hosts[0], made.hosts[0].ranks[0])


def is_json(value: str) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


def expected(encoding: str, value: object) -> object:
    """What the script finds in SM_HPS for a value of the user's."""
    if encoding == "json" or (encoding == "v3" and not isinstance(value, str)):
        return value
    written = str(value)
    return json.loads(written) if is_json(written) else written


def same(found: object, wanted: object) -> bool:
    """Equal and of one type; NaN, which a string may stand for, equals itself."""
    return type(found) is type(wanted) and (found == wanted or json.dumps(found) == json.dumps(wanted))


@pytest.mark.parametrize("encoding", sorted(ENCODINGS))
@given(user=hyperparameters())
def test_values_come_back_through_the_environment(encoding, user):
    _, environ = given_to_the_script(ENCODINGS[encoding](user))
    found = json.loads(environ["SM_HPS"])
    assert found.keys() == user.keys()
    for key, value in user.items():
        wanted = expected(encoding, value)
        assert same(found[key], wanted), key
        single = environ[f"SM_HP_{key.upper()}"]
        if wanted is None or isinstance(wanted, str):
            assert single == (wanted or "")
        else:
            assert same(json.loads(single), wanted)


@pytest.mark.parametrize("encoding", sorted(ENCODINGS))
@given(user=hyperparameters())
def test_values_come_back_through_the_command_line(encoding, user):
    argv, _ = given_to_the_script(ENCODINGS[encoding](user))
    names, found = argv[::2], argv[1::2]
    assert names == [f"--{key}" if len(key) > 1 else f"-{key}" for key in sorted(user)]
    for key, element in zip(sorted(user), found, strict=True):
        wanted = expected(encoding, user[key])
        if wanted is None:
            assert element == ""
        elif isinstance(wanted, dict):
            assert element == ",".join(f"{k}={wanted[k]}" for k in sorted(wanted))
        else:
            assert element == str(wanted)


@given(user=st.dictionaries(keys, st.booleans() | st.integers() | st.floats(allow_nan=False) | st.lists(st.integers())))
def test_the_encoding_does_not_matter_to_the_command_line_of_scalars_and_lists_of_numbers(user):
    lines = [hp.argv(Hyperparameters.parse(encode(user)).user) for encode in ENCODINGS.values()]
    assert lines[0] == lines[1] == lines[2]
    assert lines[0][1::2] == [str(user[key]) for key in sorted(user)]


@given(user=hyperparameters())
def test_json_loses_nothing(user):
    found = Hyperparameters.parse(ENCODINGS["json"](user)).user
    assert all(same(found[key], value) for key, value in user.items())
    assert found.keys() == user.keys()
