"""Copies all objects below a prefix into a folder, several at a time, and only those that are not there yet."""

from __future__ import annotations

import os
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path, PurePosixPath

from algorun.common.errors import UserError
from algorun_client.target.api import ObjectStore, StoredObject

from .progress import Progress

AT_ONCE = 8


def fetch_folder(store: ObjectStore, prefix: str, folder: Path, progress: Progress) -> int:
    """Makes `folder` hold every object below `prefix` (which ends with a slash). Returns the number of objects.

    A file of the same size and time as its object is not fetched again. Other files in the folder stay.
    """
    found = [(each, folder / _relative(each.uri, prefix)) for each in store.list(prefix) if not each.uri.endswith("/")]
    missing = [(each, path) for each, path in found if not _is_there(each, path)]

    def fetch(pair: tuple[StoredObject, Path]) -> None:
        each, path = pair
        path.parent.mkdir(parents=True, exist_ok=True)
        store.download(each.uri, path, progress.moved)
        time = each.modified.timestamp()
        os.utime(path, (time, time))

    progress.begin(folder.name, sum(each.size for each, _ in missing))
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            futures = [pool.submit(fetch, each) for each in missing]
            try:
                for each in wait(futures, return_when=FIRST_EXCEPTION).done:
                    each.result()
            finally:
                for each in futures:
                    each.cancel()  # after an error, or Ctrl-C, none begins any more
    finally:
        progress.end()
    return len(found)


def _is_there(each: StoredObject, path: Path) -> bool:
    if not path.is_file():
        return False
    found = path.stat()
    return found.st_size == each.size and abs(found.st_mtime - each.modified.timestamp()) < 1


def _relative(uri: str, prefix: str) -> str:
    """The path of an object's file below the folder. A key may hold anything, also `..`."""
    key = uri.removeprefix(prefix)
    parts = key.split("/")
    if "" in parts or "." in parts or ".." in parts or PurePosixPath(key).is_absolute() or "\0" in key:
        raise UserError(
            uri, "this key cannot be a file's path here", fix="fetch this object by other means, such as `aws s3 cp`"
        )
    return key
