"""A line of a host as it is shown: one mark that names the host, and a text that moves no terminal and is no command to a CI
system, in whose log it may stand. Pure."""

from __future__ import annotations

import re

from algorun.common.plain_text import uncommanding, uncommanding_inside

LONGEST_MARK = 80  # characters
# What terminals take for a command: CSI (colours, cursor), OSC (titles, links), DCS and the like, two-character escapes.
# A body holds no other command's beginning: else a line of beginnings without ends takes time by its length squared.
ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x80-\x9f]*(?:\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)


def shown(text: str) -> str:
    """A text without colours and without what would move a terminal's cursor: of a progress bar only its last state."""
    return uncommanding(_still(text))


def _still(text: str) -> str:
    text = text.rstrip("\r\n")
    if text.isprintable():
        return text
    text = ESCAPES.sub("", text).rsplit("\r", 1)[-1]
    return "".join(c if c.isprintable() or c == "\t" else " " if c == "\n" else "" for c in text)


def marked(host: str, text: str) -> tuple[str, str]:
    """The mark of a host's line, and its text, shown.

    The launcher marks the lines of its ranks itself, as `[3 algo-2]`: that is the mark then. Else it is `[algo-2]`.
    """
    text = uncommanding_inside(_still(text))
    if text.startswith("["):
        end = text.find("]", 1, LONGEST_MARK)
        if text[1:end].partition(" ")[2] == host:
            return text[: end + 1], text[end + 1 :].removeprefix(" ")
    return f"[{host}]", text
