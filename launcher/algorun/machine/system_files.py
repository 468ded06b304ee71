"""Small files and folders of the system, of which nobody knows whether they are there."""

from __future__ import annotations

import os
from pathlib import Path


def read(path: str) -> str:
    """A small file's text without the blanks around it, "" where it cannot be read."""
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def listing(path: str) -> tuple[str, ...]:
    """The names in a folder, sorted; none where it cannot be read."""
    try:
        return tuple(sorted(os.listdir(path)))
    except OSError:
        return ()
