"""The table of rows as Markdown, and how rows that ran again get into an earlier one of the same image."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

LINE = re.compile(r"^\| (.+?) \| (\d+) \| (v\d) \| .* \|$", re.MULTILINE)
COUNT = re.compile(r"^\d+ of \d+ rows passed .*$", re.MULTILINE)

Key = tuple[str, str, str]  # a row's name, its number of hosts, its client


def cells(line: str) -> Key | None:
    """What a line of the table is about; None for other lines."""
    found = LINE.fullmatch(line)
    return (found[1], found[2], found[3]) if found else None


def again(earlier: str, lines: Sequence[str], image: str, day: str) -> str:
    """The earlier table with these lines in place of its own. "" if it is of another image, or lacks one of the rows."""
    head = COUNT.search(earlier)
    new: Mapping[Key, str] = {key: line for line in lines if (key := cells(line)) is not None}
    before = [key for line in earlier.splitlines() if (key := cells(line)) is not None]
    if head is None or f"image of revision {image}," not in head[0] or not new or not set(new) <= set(before):
        return ""
    text = "\n".join(new.get(cells(line) or ("", "", ""), line) for line in earlier.splitlines())
    passed = sum(line.endswith("| yes |") for line in text.splitlines() if cells(line))
    sentence = re.sub(r"^\d+ of \d+", f"{passed} of {len(before)}", head[0])
    repeated = (
        f" Run again on {day}: {', '.join(sorted(f'{name} ({client}, {hosts})' for name, hosts, client in new))}."
    )
    return text.replace(head[0], sentence + repeated) + "\n"
