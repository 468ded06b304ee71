"""Reads small files and folders of /dev, /proc, /sys and /etc. An absent one is no error: it is empty."""

from __future__ import annotations

import os
from pathlib import Path


def read_text(path: str) -> str:
    """A small file's text, stripped; "" if it cannot be read."""
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def listing(path: str) -> tuple[str, ...]:
    """The names in a folder, sorted; none if it cannot be read."""
    try:
        return tuple(sorted(os.listdir(path)))
    except OSError:
        return ()
