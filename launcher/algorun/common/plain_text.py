"""Text of other programs without what a terminal takes for a command. Pure.

A rank's message may hold colours, cursor movements, a bell or a carriage return: beside the launcher's own lines they could
hide or imitate one.
"""

from __future__ import annotations

import re

# CSI (colours, cursor), OSC (titles, links), DCS and the like, two-character escapes. A body holds no other command's
# beginning: else a line of beginnings without ends takes time by its length squared.
ESCAPES = (
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x80-\x9f\n]*(?:\x07|\x1b\\|\x9c)"
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x80-\x9f\n]*(?:\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)


def plain(text: str) -> str:
    """The lines of a text, without escapes and control characters. A carriage return, and what Unicode takes for a line's
    end, becomes a space: only a newline ends a line."""
    if text.isprintable():
        return text
    text = re.sub(ESCAPES, "", text.replace("\r\n", "\n"))
    return "".join(c if c.isprintable() or c in "\n\t" else " " if c.isspace() else "" for c in text)


def first_line(text: str) -> str:
    """The first line of a text that is not empty, "" without one."""
    return next((line.strip() for line in plain(text).split("\n") if line.strip()), "")
