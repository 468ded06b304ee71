"""A folder of every host that S3 follows: checkpoints, and outputs of processing jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from algorun_client.aws.addresses import below
from algorun_client.aws.api import ObjectStore
from algorun_client.common.errors import ApiError

from .folder_files import files_below
from .job_description import Synced


class SyncedFolder:
    """One prefix of S3 and a folder on each host. Hosts that write the same name overwrite each other; the first host wins.

    An object is deleted once no host has the file any more and one of them had it. In a folder with a host's name this host
    alone decides, as long as it is one of the hosts: the others have copies of what it left in the execution before.
    """

    def __init__(self, synced: Synced, store: ObjectStore, trees: Mapping[str, Path]) -> None:
        self.during, self.folder = synced.during, synced.folder
        self._prefix, self._store = synced.uri, store
        self._folders = [tree / synced.folder for tree in trees.values()]
        self._seen: list[dict[str, tuple[int, int]]] = [{} for _ in self._folders]
        self._hosts = {host: at for at, host in enumerate(trees)}

    def restore(self) -> None:
        """Copies all objects to every host."""
        for each in self._store.list(self._prefix):
            name = below(each.uri, self._prefix)
            if each.uri.endswith("/") or ".." in name.split("/"):
                continue
            for folder, seen in zip(self._folders, self._seen, strict=True):
                self._store.download(each.uri, folder / name)
                seen[name] = _stamp(folder / name)

    def sync(self, *, is_last: bool = True) -> None:
        """Copies to S3 what has changed since the last call.

        Unless it is the last one, a file that cannot be read or is being written waits for the next.
        """
        unreadable: list[OSError] = []
        found = [dict(_files(folder, unreadable)) for folder in self._folders]
        if unreadable and is_last:
            raise unreadable[0]
        for folder, seen, files in reversed(list(zip(self._folders, self._seen, found, strict=True))):
            for name, stamp in files.items():
                if seen.get(name) != stamp:
                    try:
                        self._store.put(self._prefix + name, folder / name)
                    except FileNotFoundError:
                        continue  # deleted in the meantime
                    except PermissionError:
                        if is_last:
                            raise
                        continue
                    except ApiError:  # a file that a program was writing: parts of the new one and of the one before
                        if is_last or _is_unchanged(folder / name, stamp):
                            raise
                        continue
                    seen[name] = stamp
        for name in {name for seen in self._seen for name in seen} if not unreadable else ():
            owner = self._hosts.get(name.partition("/")[0])
            deciding = range(len(found)) if owner is None else (owner,)
            if any(name in self._seen[at] for at in deciding) and not any(name in found[at] for at in deciding):
                self._store.delete(self._prefix + name)
                for at in deciding:
                    self._seen[at].pop(name, None)


class Syncing:
    """A thread that syncs folders every `every_s` seconds. Use it as a context manager; an error is raised at its end.

    `prepare` is called before each time with the folder's path in its host's tree.
    """

    def __init__(self, folders: Sequence[SyncedFolder], every_s: float, prepare: Callable[[str], None]) -> None:
        self._folders, self._every_s, self._prepare = folders, every_s, prepare
        self._end = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Syncing:
        if self._folders:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._folders:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._end.wait(self._every_s):
                for each in self._folders:
                    self._prepare(each.folder)
                    each.sync(is_last=False)
        except Exception as error:
            self._error = error


def _files(folder: Path, unreadable: list[OSError]) -> Iterator[tuple[str, tuple[int, int]]]:
    """The name below the folder, and time and size, of each file. What is not known lies in `unreadable` folders."""

    def note(error: OSError) -> None:
        if isinstance(error, PermissionError):
            unreadable.append(error)

    for name, path in files_below(folder, note):
        try:
            yield name, _stamp(path)
        except FileNotFoundError:
            continue


def _is_unchanged(path: Path, stamp: tuple[int, int]) -> bool:
    try:
        return _stamp(path) == stamp
    except FileNotFoundError:
        return False


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size
