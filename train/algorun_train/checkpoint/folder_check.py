"""Checks before training that a job's folders can take what it will write hours later."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from algorun_train.common.errors import UserError

from . import finished
from .shards import FILE, FOLDER, entries

# Of the files of artifacts, tokenizers and metrics.
WRITTEN = (".pt", ".json", ".jsonl", ".safetensors", ".jinja", ".txt", ".model")


def check_checkpoints(root: Path) -> None:
    """Raises UserError if checkpoints cannot be read from or written to `root`, or if a name that they need is in use for
    something else. Creates nothing: most hosts write no shard."""
    try:
        if os.path.lexists(root) and not root.is_dir():
            raise _in_the_way(str(root), "is to hold checkpoints, but is no folder")
        exists = next(folder for folder in (root, *root.absolute().parents) if folder.is_dir())
        if not os.access(exists, os.W_OK | os.X_OK):
            raise PermissionError(13, "no permission to write, or a disk that is read-only")
        for entry in entries(root):
            if FOLDER.fullmatch(entry.name):
                _check_checkpoint(entry)
            elif entry.name == finished.FILE and entry.is_dir():
                raise _in_the_way(entry.path, "has the name of a file beside checkpoints, but is a folder")
    except OSError as error:
        raise UserError(
            f"checkpoint folder {root} cannot be used: {error.strerror}; allowed: a folder that can be read and written; "
            "fix: its permissions, or another --checkpoint-dir"
        ) from None


def _check_checkpoint(entry: os.DirEntry[str]) -> None:
    if not entry.is_dir():
        raise _in_the_way(entry.path, "has the name of a checkpoint, but is no folder")
    with contextlib.suppress(PermissionError):  # its shards are passed over
        for inside in entries(Path(entry.path)):
            if FILE.fullmatch(inside.name) and not inside.is_file() and os.path.exists(inside.path):
                found = "a folder" if inside.is_dir() else "no file"
                raise _in_the_way(inside.path, f"has the name of a checkpoint's file, but is {found}")


def check_artifacts(folders: Iterable[Path]) -> None:
    """Raises UserError if one of these folders has a folder with a name as artifacts and metrics have."""
    for folder in folders:
        for entry in entries(folder):
            if entry.name.endswith(WRITTEN) and entry.is_dir():
                raise UserError(
                    f"{entry.path} is a folder with the name of a file that the job writes; allowed: a file, or nothing; "
                    "fix: move it away"
                )


def _in_the_way(path: str, why: str) -> UserError:
    return UserError(
        f"{path} {why}; allowed: what ddp or pipeline wrote; fix: move it away, or another --checkpoint-dir"
    )
