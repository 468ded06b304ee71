"""A folder that was made aside takes the place of the one before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from algorun.common.errors import UserError
from algorun.common.written import written


def put_in_place(made: Path, folder: Path, aside: Path) -> None:
    """Makes `made` the folder. The one before moves to `aside`, which the caller removes; after an error it is back."""
    old = aside / "old"
    try:
        if os.path.lexists(folder):  # a link is replaced, wherever it leads
            folder.rename(old)
        made.rename(folder)
    except BaseException:  # Ctrl-C between the two: the user would be left with neither
        if os.path.lexists(old) and not os.path.lexists(folder):
            old.rename(folder)
        raise


def refuse_link(folder: Path) -> None:
    """Raises UserError if the folder is a link: what is brought home stays where the user has asked for it."""
    if folder.is_symlink():
        raise UserError(
            str(folder),
            f"is a link to {os.readlink(folder)}, and nothing is written through it",
            fix="remove the link, or name another folder by --to",
        )


def refuse_own(folder: Path, names: Iterable[str]) -> None:
    """Raises UserError if one of these entries of the folder holds something that algorun has not written.

    `fetch --to .` in a code folder would replace the user's own `model/`.
    """
    known = written(folder)
    for path in (folder / name for name in sorted(set(names) - known)):
        if os.path.lexists(path) and not _is_empty(path):
            raise UserError(
                str(path),
                "was not fetched by algorun, and would be replaced",
                fix="name another folder by --to, or move it away",
            )


def fetched(folder: Path, names: Iterable[str]) -> list[Path]:
    """Those of these entries of the folder that algorun has brought home."""
    paths = [folder / name for name in sorted(written(folder).intersection(names))]
    return [path for path in paths if os.path.lexists(path) and not _is_empty(path)]


def remove(path: Path) -> bool:
    """Removes a file or a folder. Returns False if there is none."""
    if not os.path.lexists(path):
        return False
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
    return True


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())
