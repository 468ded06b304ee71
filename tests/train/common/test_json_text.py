"""Whatever a JSON text holds, it is a value or one ValueError, on each version of Python."""

import json

import pytest

from algorun_train.common.json_text import DEEPEST, loads


@pytest.mark.parametrize(("opening", "closing", "each"), [("[", "]", 1), ('{"a":', "}", 1), ('[{"a":', "}, 2]", 2)])
def test_nesting_is_bounded_by_a_depth_and_not_by_the_interpreter(opening, closing, each):
    pairs = DEEPEST // each
    whole = opening * pairs + "1" + closing * pairs
    assert loads(whole) == loads(whole.encode()) == json.loads(whole)
    for levels in (pairs + 1, 10 * DEEPEST, 100_000):
        text = opening * levels + "1" + closing * levels
        for given in (text, text.encode()):
            with pytest.raises(ValueError, match="nested deeper than 200 levels"):
                loads(given)


def test_many_brackets_side_by_side_are_not_deep():
    assert loads(json.dumps([[[]]] * 1000)) == [[[]]] * 1000
    assert loads(json.dumps("[" * 1000)) == "[" * 1000


@pytest.mark.parametrize("text", ["", "{", b"\xff", "[1,]", "9" * 5000])
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"\w"):
        loads(text)
