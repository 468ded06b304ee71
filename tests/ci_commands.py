"""What CI systems take for a command in the log of their job, as their runners read it."""

from __future__ import annotations

import re

from hypothesis import strategies as st

GITHUB = frozenset(
    ("set-env", "set-output", "save-state", "add-path", "add-mask", "add-matcher", "error", "group", "stop-commands")
)
# Lines that are commands, each in its own way.
COMMANDS = (
    "::set-env name=PATH::/tmp",
    " \t\u00a0::add-mask::secret",
    "::Error file=a.py,line=1::boom",
    "::stop-commands::x",
    "##[add-mask]secret",
    "text before ##[set-env name=PATH;]/tmp",
    "###[group]a",
    "##vso[task.setvariable variable=PATH]/tmp",
    "see ##vso[task.prependpath]/tmp",
    "##teamcity[setParameter name='a' value='b']",
)
# Lines that are none, however near they come.
NONE = (
    "a ::b::",
    "std::vector<int>",
    "::1",
    "## [x]",
    "# #[x]",
    "## heading",
    "[0 algo-1] loss::0.5::",
    "a##b [c]",
    "::",
)


def is_command(line: str) -> bool:
    """True if a runner obeys a line. Lines end where .NET's ReadLine ends them: at \\n, \\r or both."""
    return any(_github(each) or re.search(r"##(vso|teamcity)\[", each) for each in re.split(r"\r\n|\r|\n", line))


def _github(line: str) -> bool:
    """actions/runner, ActionCommand.TryParseV2 and TryParse."""
    line = line.lstrip()
    if line.startswith("::") and (end := line.find("::", 2)) >= 0 and line[2:end].split(" ")[0].lower() in GITHUB:
        return True
    begin = line.find("##[")
    end = line.find("]", begin)
    return begin >= 0 and end >= 0 and line[begin + 3 : end].split(" ")[0].lower() in GITHUB


PIECES = (
    *COMMANDS,
    "::",
    ":",
    "#",
    "##",
    "[",
    "]",
    "error",
    "vso",
    " ",
    "\t",
    "\n",
    "\r",
    "\x00",
    "\u200b",
    "\u0085",
    "\x1b[0m",
    "\x9b",
    "a",
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
