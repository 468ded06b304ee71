"""The rules for terminals that the launcher and the client share."""

from __future__ import annotations

import pytest

from algorun.common import terminal


@pytest.mark.parametrize(
    ("environ", "moves", "colours"),
    [
        ({"TERM": "xterm"}, True, True),
        ({}, True, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, False, False),
        ({"TERM": "UNKNOWN"}, False, False),
    ],
)
def test_the_launcher_decides_as_the_clients_library_does(environ, moves, colours):
    console = pytest.importorskip("rich.console").Console(force_terminal=True, _environ=environ)
    assert terminal.can_move(environ) is moves is not console.is_dumb_terminal
    assert terminal.has_colours(environ) is colours
    assert (console.color_system is not None and not console.no_color) is colours


def test_a_host_has_the_colour_of_its_number():
    assert [terminal.host_colour(f"algo-{number}") for number in (1, 2, 7, 12)] == [
        "magenta",
        "green",
        "magenta",
        "cyan",
    ]
    assert terminal.host_colour("localhost") == "cyan"
