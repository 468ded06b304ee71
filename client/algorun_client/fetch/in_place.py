"""A folder that was made aside takes the place of the one before."""

from __future__ import annotations

from pathlib import Path


def put_in_place(made: Path, folder: Path, aside: Path) -> None:
    """Makes `made` the folder. The one before moves to `aside`, which the caller removes; after an error it is back."""
    old = aside / "old"
    try:
        if folder.exists():
            folder.rename(old)
        made.rename(folder)
    except BaseException:  # Ctrl-C between the two: the user would be left with neither
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise
