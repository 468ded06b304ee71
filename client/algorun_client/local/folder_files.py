"""The files of a folder as S3 holds them: also those behind links, which S3 does not have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path


def files_below(folder: Path, failed: Callable[[OSError], object]) -> Iterator[tuple[str, Path]]:
    """The files by their names below the folder. A loop of links is entered once. `failed` gets the error of a folder that
    cannot be listed; one that is gone has no files."""
    pending: list[tuple[Path, tuple[str, ...]]] = [(folder, (os.path.realpath(folder),))]
    while pending:
        top, chain = pending.pop()
        try:
            with os.scandir(top) as entries:
                found = list(entries)
        except FileNotFoundError:
            continue
        except OSError as error:
            failed(error)
            continue
        for entry in found:
            path = Path(entry.path)
            if path.is_dir():
                real = os.path.realpath(path) if entry.is_symlink() else f"{chain[-1]}/{entry.name}"
                if real not in chain:
                    pending.append((path, (*chain, real)))
            elif path.is_file():
                yield str(path.relative_to(folder)), path
