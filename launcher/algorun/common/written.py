"""What algorun has written among a user's files says so itself. So it is not packed as the code of the next job, which would
then be other code each time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from .aside import aside

MARKER = ".algorun-written"  # in a folder: a line for each entry of the folder that algorun wrote
GENERATOR = "algorun report"  # at the beginning of a page, and of a trace
BEGIN = 256  # bytes of a file in which its generator stands


def mark(folder: Path, names: Iterable[str], *, absent: Iterable[str] = ()) -> None:
    """Notes that these entries of the folder come from algorun, and those of `absent` no more. Raises OSError."""
    noted = written(folder)
    known = noted.union(names).difference(absent)
    if known == noted:
        return
    with aside(folder / MARKER) as made:
        made.write_text("".join(f"{name}\n" for name in sorted(known)), encoding="utf-8", errors="surrogateescape")


def written(folder: Path) -> frozenset[str]:
    """The entries of the folder that algorun wrote."""
    try:
        text = (folder / MARKER).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:  # absent, as in most folders
        return frozenset()
    return frozenset(text.split("\n")) - {""}


def is_generated(path: Path) -> bool:
    """True for a page or a trace of `algorun report`, wherever it lies and whatever its name."""
    if path.suffix not in (".html", ".json"):
        return False
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return GENERATOR.encode() in file.read(BEGIN)
    return False
