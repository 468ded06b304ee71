"""Text of other programs without what a terminal or a CI system takes for a command. Pure.

A rank's message may hold colours, cursor movements, a bell or a carriage return: beside the launcher's own lines they could
hide or imitate one.

A CI system reads commands from the log of its job, which may be the log of `algorun simulate` or `algorun logs`. GitHub's
runner obeys a line that begins with `::name ..::`, whatever white space stands before it, and `##[name ..]` anywhere in a line
(actions/runner, ActionCommand.TryParseV2 and TryParse). Azure's agent obeys `##vso[..]` anywhere in a line, TeamCity
`##teamcity[..]`. One space inside makes text of them.
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

# A mark of two signs, and how its command goes on. Their length is bounded, so that no line takes time by its length squared.
ANYWHERE = r"##(?=[\w.-]{0,40}\[)"
AT_A_START = r"(?m)^([^\S\n]*):(?=:[^\n]+::)"


def plain(text: str) -> str:
    """The lines of a text, without escapes and control characters. A carriage return, and what Unicode takes for a line's
    end, becomes a space: only a newline ends a line. No line is a command to a CI system."""
    if not text.isprintable():
        text = re.sub(ESCAPES, "", text.replace("\r\n", "\n"))
        text = "".join(c if c.isprintable() or c in "\n\t" else " " if c.isspace() else "" for c in text)
    return uncommanding(text)


def uncommanding(text: str) -> str:
    """Lines without commands to a CI system."""
    if "::" in text:
        text = re.sub(AT_A_START, r"\1: ", text)
    return uncommanding_inside(text)


def uncommanding_inside(text: str) -> str:
    """As `uncommanding`, for lines that get something before them: `::` is a command at a line's start only."""
    return re.sub(ANYWHERE, "## ", text) if "##" in text else text


def uncommanding_json(text: str) -> str:
    """JSON of the same value, in which no string is a command to a CI system: the second sign is escaped."""
    return re.sub(ANYWHERE, r"#\\u0023", text)


def first_line(text: str) -> str:
    """The first line of a text that is not empty, "" without one."""
    return next((line.strip() for line in plain(text).split("\n") if line.strip()), "")
