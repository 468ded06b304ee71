"""Copies all objects below a prefix into a folder, several at a time, and only those that are not there yet."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path, PurePosixPath

from algorun_client.target.api import ObjectStore, StoredObject

from .progress import Progress

AT_ONCE = 8
SHOWN = 5  # objects that are left out, by name


def fetch_folder(store: ObjectStore, prefix: str, folder: Path, progress: Progress, say: Callable[[str], None]) -> int:
    """Makes `folder` hold the objects below `prefix` (which ends with a slash). Returns the number of objects.

    A file of the same size and time as its object is not fetched again. Other files in the folder stay. An object whose key
    cannot be a file's path is left out, and `say` gets a line about it.
    """
    found = [(each, folder / name) for each, name in _paths(store.list(prefix), prefix, say)]
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


def _paths(objects: Iterable[StoredObject], prefix: str, say: Callable[[str], None]) -> list[tuple[StoredObject, str]]:
    """The objects and their paths below the folder. A key may hold anything, also `..`, and may be the folder of another."""
    named = [(each, each.uri.removeprefix(prefix)) for each in objects if not each.uri.endswith("/")]
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
    return not ({"", ".", ".."} & set(key.split("/"))) and "\0" not in key
