"""Copies all objects below a prefix into a folder, several at a time, and only those that are not there yet."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from algorun_client.aws.api import ObjectStore, StoredObject
from algorun_client.common import at_once
from algorun_client.common.errors import BucketMissing, NotFound
from algorun_client.common.progress import Progress

LONGEST = 255  # bytes of a file's name on Linux
SHOWN = 5  # objects that are left out, by name


def fetch_folder(store: ObjectStore, prefix: str, folder: Path, progress: Progress, say: Callable[[str], None]) -> int:
    """Makes `folder` hold the objects below `prefix` (which ends with a slash). Returns the number of objects.

    A file of the same size and time as its object is not fetched again. Other files in the folder stay. An object is left out,
    and `say` gets a line about it, if its key cannot be a file's path, if a folder has its place or a file that of a folder above
    it, and if there is a link on the way to it: nothing is written through one. A link in the place of the object itself is
    replaced. An object that was removed after the listing is left out too: a running job removes old checkpoints.
    """
    found = _placed(_paths(store.list(prefix), prefix, say), folder, say)
    missing = [(each, path) for each, path in found if not _is_there(each, path)]

    def fetch(pair: tuple[StoredObject, Path]) -> str:
        """The object's address if it is gone, else ""."""
        each, path = pair
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            store.download(each.uri, path, progress.moved)
        except BucketMissing:
            raise
        except NotFound:
            return each.uri
        time = each.modified.timestamp()
        os.utime(path, (time, time))
        return ""

    calls = at_once.ParallelCalls(at_once.CALLS)
    progress.begin(folder.name, sum(each.size for each, _ in missing))
    try:
        gone = [uri for uri in calls.each(fetch, missing) if uri]
    finally:
        calls.close()  # a file that is half there is removed
        progress.end()
    for uri in gone[:SHOWN]:
        say(f"{uri}: was removed while its folder was fetched: left out")
    if len(gone) > SHOWN:
        say(f"{prefix}: {len(gone) - SHOWN} more objects were removed meanwhile")
    return len(found) - len(gone)


def _placed(
    named: Iterable[tuple[StoredObject, str]], folder: Path, say: Callable[[str], None]
) -> list[tuple[StoredObject, Path]]:
    """The objects that have a place in the folder, and their files."""
    found: list[tuple[StoredObject, Path]] = []
    faults: dict[Path, str] = {}  # of the folders that were looked at; "" for a good one
    count = 0
    for each, name in named:
        path = folder / name
        if fault := _fault(path, folder, faults):
            count += 1
            if count <= SHOWN:
                say(f"{each.uri}: {fault}: left out; remove it, or name another folder")
        else:
            found.append((each, path))
    if count > SHOWN:
        say(f"{folder}: {count - SHOWN} more objects have no place there")
    return found


def _fault(path: Path, top: Path, faults: dict[Path, str]) -> str:
    """Why no file can be written to `path` below `top`; "" if one can."""
    if path.is_dir() and not path.is_symlink():
        return f"{path} is a folder"
    for parent in reversed(path.parents[: len(path.parts) - len(top.parts) - 1]):
        if parent not in faults:
            is_link = parent.is_symlink()
            faults[parent] = (
                f"{parent} is a link"
                if is_link
                else ""
                if parent.is_dir() or not parent.exists()
                else f"{parent} is a file"
            )
        if faults[parent]:
            return faults[parent]
    return ""


def _is_there(each: StoredObject, path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    is_file = stat.S_ISREG(found.st_mode)
    return is_file and found.st_size == each.size and abs(found.st_mtime - each.modified.timestamp()) < 1


def _paths(objects: Iterable[StoredObject], prefix: str, say: Callable[[str], None]) -> list[tuple[StoredObject, str]]:
    """The objects and their paths below the folder. A key may hold anything, also `..`, and may be the folder of another."""
    # The console of S3 marks a folder with an empty object; one with content is a file of somebody.
    named = [(each, each.uri.removeprefix(prefix)) for each in objects if each.size or not each.uri.endswith("/")]
    folders = {parent for _, key in named for parent in PurePosixPath(key).parents}
    wrong = {key for _, key in named if not _is_path(key) or PurePosixPath(key) in folders}
    for key in sorted(wrong)[:SHOWN]:
        say(
            f"{prefix}{key}: this key cannot be a file's path here: left out; `aws s3 cp` fetches it under another name"
        )
    if len(wrong) > SHOWN:
        say(f"{prefix}: {len(wrong) - SHOWN} more objects are left out")
    return [(each, key) for each, key in named if key not in wrong]


def _is_path(key: str) -> bool:
    parts = key.split("/")
    return (
        not ({"", ".", ".."} & set(parts)) and "\0" not in key and all(len(part.encode()) <= LONGEST for part in parts)
    )
