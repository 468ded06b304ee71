"""How new a job's newest checkpoint is, whatever its format. The launcher needs to know nothing else about it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

MOST_ENTRIES = 20_000  # files read at most: reading more would delay the start
UNFINISHED = (".tmp", ".part", ".incomplete")  # usual names of files that are still being written


def newest_stamp(*folders: Path) -> float:
    """Modification time of the newest finished file below these folders, by this host's clock; 0.0 without one.

    Files whose names begin with a dot or have an ending of UNFINISHED do not count.
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
                continue  # deleted since it was listed
    return newest


def newest_before(folder: Path, stamp: float) -> str:
    """What in the folder holds the newest finished file from before `stamp`, by this host's clock; "" where nothing does."""
    newest, name = 0.0, ""
    for entry in islice(_files(str(folder)), MOST_ENTRIES):
        try:
            written = entry.stat(follow_symlinks=False).st_mtime
        except OSError:
            continue  # deleted since it was listed
        if newest < written <= stamp:
            newest, name = written, os.path.relpath(entry.path, folder).partition(os.sep)[0]
    return name


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
