"""What of another program's text may stand in a line of the launcher's."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common.plain_text import first_line, plain, uncommanding_inside, uncommanding_json
from tests.ci_commands import COMMANDS, NONE, TEXTS, is_command


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


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_to_a_ci_system_becomes_text_by_one_space(line):
    assert is_command(line)
    told = plain(line)
    assert not is_command(told)
    assert told.replace(" ", "") == line.replace("\u00a0", " ").replace(" ", "")
    assert not is_command(f"algorun: {plain(f'a{chr(10)}{line}')}")


@pytest.mark.parametrize("line", NONE)
def test_a_line_that_is_no_command_stays(line):
    assert not is_command(line)
    assert plain(line) == uncommanding_inside(line) == line


@given(TEXTS)
def test_no_text_is_left_as_a_command(text):
    assert not is_command(plain(text))
    assert not is_command(f"[0 algo-1] {uncommanding_inside(plain(text))}")
    told = uncommanding_json(json.dumps({"text": text}))
    assert not is_command(told)
    assert json.loads(told) == {"text": text}


@pytest.mark.parametrize("piece", ["#", "##", "::", "##a", " ", ":: "])
def test_a_long_line_takes_no_time(piece):
    begin = time.monotonic()
    plain(piece * (1 << 18))
    assert time.monotonic() - begin < 5
