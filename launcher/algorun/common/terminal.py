"""What a terminal gets beside the text: the rules that the launcher and the client share."""

from __future__ import annotations

from collections.abc import Mapping

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")  # of hosts, one after the other
DUMB = ("dumb", "unknown")  # values of TERM: neither colours nor movements of the cursor


def host_colour(host: str) -> str:
    """The name of a host's colour, by its number: that of algo-7 is that of algo-1."""
    digits = "".join(filter(str.isdigit, host))
    return COLOURS[int(digits or 0) % len(COLOURS)]


def can_move(environ: Mapping[str, str]) -> bool:
    """True where rows of a terminal can be drawn anew, and text can be bold."""
    return environ.get("TERM", "").lower() not in DUMB


def has_colours(environ: Mapping[str, str]) -> bool:
    """True where a terminal may get colours: NO_COLOR is not set, or is empty (no-color.org)."""
    return can_move(environ) and not environ.get("NO_COLOR")
