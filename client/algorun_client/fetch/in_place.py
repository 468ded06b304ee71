"""A folder that was made aside takes the place of the one before."""

from __future__ import annotations

import os
from pathlib import Path

from algorun.common.errors import UserError


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
