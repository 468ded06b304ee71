"""Whether a job's checkpoints get newer: all that the launcher wants to know about them, whatever their format."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

MOST_ENTRIES = 20_000  # looked at; more are not worth a start's time
UNFINISHED = (".tmp", ".part", ".incomplete")  # how writers call what they will rename


def newest_stamp(*folders: Path) -> float:
    """Modification time of the newest finished file below these folders, by this host's clock; 0.0 without one.

    Names that begin with a dot or end as unfinished ones do are not counted.
    """
    newest = 0.0
    left = MOST_ENTRIES
    for folder in folders:
        for entry in _files(str(folder)):
            left -= 1
            if left < 0:
                return newest
            try:
                newest = max(newest, entry.stat(follow_symlinks=False).st_mtime)
            except OSError:
                continue  # gone in the meantime
    return newest


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    todo = [folder]
    while todo:
        try:
            entries = list(os.scandir(todo.pop()))
        except OSError:
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.name.endswith(UNFINISHED):
                continue
            if entry.is_dir(follow_symlinks=False):
                todo.append(entry.path)
            else:
                yield entry
