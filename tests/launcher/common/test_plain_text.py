"""What of another program's text may stand in a line of the launcher's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common.plain_text import first_line, plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("boom \x1b]0;owned\x07\x1b[2J\x1b[1A\rok nnodes=1", "boom  ok nnodes=1"),
        ("a\r\nb\nc\td", "a\nb\nc\td"),
        ("a\u2028b\x85c\x0bd", "a b c d"),
        ("\u202eabc\u2066", "abc"),
        ("\x1b[1;31mred\x1b[0m \x9b2Kx", "red x"),
        ("\x1bPq#0\x1b\\sixel", "sixel"),
        ("Größe 試験 ✓", "Größe 試験 ✓"),
    ],
)
def test_escapes_and_control_characters_go_and_lines_stay(text, shown):
    assert plain(text) == shown


@given(st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from("\x1b\x07\r\x9b[];m\n"), max_size=80))
def test_nothing_is_left_that_moves_a_terminal(text):
    told = plain(text)
    assert all(c.isprintable() or c in "\n\t" for c in told)
    assert told.count("\n") <= text.count("\n")
    assert plain(told) == told
    assert "\n" not in first_line(text)
