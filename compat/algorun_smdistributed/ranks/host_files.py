"""Files that may lie on the disk of another host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from algorun_train.common.errors import UserError
from algorun_train.ranks.communicator import Communicator

T = TypeVar("T")


def names(comm: Communicator, folder: Path, pattern: str) -> list[str]:
    """The names of all files in `folder` that match a glob pattern, sorted, on whichever rank's host. On all ranks."""
    own = [file.name for file in folder.glob(pattern)] if folder.is_dir() else []
    return sorted(set().union(*comm.gather(own)))


def read_on_hosts(
    comm: Communicator, file: Path, content: Callable[[Path], T], wanted: bool, missing: str | None
) -> T | None:
    """`content(file)` on each rank where it is `wanted`; if one of these does not see the file, the first rank that does
    reads it for all. On all ranks.

    None where it is not wanted. If no rank sees it: UserError with the text `missing` on all ranks, or None if that is None.
    """
    rows = comm.gather((wanted, file.is_file()))
    holders = [rank for rank, (_, there) in enumerate(rows) if there]
    if not holders:
        if missing is not None:
            raise UserError(missing)
        return None
    if any(wants and not there for wants, there in rows):
        found = comm.from_rank(holders[0], lambda: content(file))
        return found if wanted else None
    return comm.on_all(lambda: content(file) if wanted else None)
