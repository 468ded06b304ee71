"""Folders that stand for the buckets of S3: ROOT/s3/BUCKET/KEY. People may put files there, or links to folders."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from algorun.common.aside import aside
from algorun.common.codec import loads
from algorun.common.json_values import table, text
from algorun_client.aws.addresses import split
from algorun_client.aws.api import KeptHash, StoredObject
from algorun_client.common.errors import ApiError, Changed, Exists, NotFound

BUCKETS = "s3"
METADATA = "s3-metadata"  # beside the buckets: a hash for each object that was written by `put`
ASIDE = ".aside"  # no bucket begins with a dot
CHUNK = 256 * 1024 * 1024  # bytes that are copied between two looks whether to go on
READ_ONLY = 0o444  # FastFile channels are links to the objects; a program must not change them through one


class FolderStore:
    """An ObjectStore in the folders below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._buckets, self._metadata = root / BUCKETS, root / METADATA
        self._interrupted = threading.Event()

    def path(self, uri: str) -> Path:
        """The file of an object, or of a bucket. It may not exist."""
        bucket, key = split(uri)
        return self._buckets.joinpath(bucket, *file_names(key)) if key else self._buckets / bucket

    def has_bucket(self, uri: str) -> bool:
        """True if the bucket of this address has a folder."""
        return self.path(f"s3://{split(uri)[0]}").is_dir()

    def put(self, uri: str, content: bytes | Path, *, if_absent: bool = False, sha256: str = "") -> str:
        """As ObjectStore. Makes the bucket's folder if there is none. Raises ApiError if a part of the key is an object."""
        target = self.path(uri)
        with self._becoming(uri, if_absent=if_absent) as made:
            if isinstance(content, bytes):
                made.write_bytes(content)
            else:
                copy_file(content, made, self._check)
                if sha256 and _hash(made, self._check) != sha256:
                    raise Changed(str(content))
            os.chmod(made, READ_ONLY)
            found = os.stat(made)
            target.parent.mkdir(parents=True, exist_ok=True)
            if if_absent:
                os.link(made, target)
            self._keep_hash(uri, sha256, found)
            if not if_absent:
                os.replace(made, target)
            return _etag(found)

    def copy(self, source: str, uri: str, *, size: int, etag: str) -> str:
        """As ObjectStore. Both are one file on the disk: objects are replaced, and never changed."""
        origin, target, kept = self.path(source), self.path(uri), self.hash_of(source)
        if kept is None:
            raise NotFound("NoSuchKey", f"{source}: there is no file {origin}", "CopyObject")
        if kept.etag != etag:
            raise ApiError("PreconditionFailed", f"{source} is another file now", "CopyObject")
        with self._becoming(uri) as made, self._missing(source, "CopyObject"):
            try:
                os.link(origin, made, follow_symlinks=True)
            except PermissionError:  # a file of another user, or a file system without links
                copy_file(origin, made, self._check)
                os.chmod(made, READ_ONLY)
            target.parent.mkdir(parents=True, exist_ok=True)
            found = os.stat(made)
            self._keep_hash(uri, kept.sha256, found)
            os.replace(made, target)
            return _etag(found)

    def interrupt(self, wait_s: float) -> int:
        """As ObjectStore."""
        self._interrupted.set()
        return 0

    def _check(self) -> None:
        if self._interrupted.is_set():
            raise ApiError("Interrupted", "the copy was interrupted", "PutObject")

    @contextlib.contextmanager
    def _becoming(self, uri: str, *, if_absent: bool = False) -> Iterator[Path]:
        """A file that becomes the object. It is gone at the end of the context."""
        # Not algorun.common.aside: a listing shows the files beside an object, and with `if_absent` a link gives the name.
        made = self._buckets / ASIDE / uuid.uuid4().hex
        made.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield made
        except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
            if if_absent and self.path(uri).is_file():
                raise Exists("PreconditionFailed", f"{uri} exists already", "PutObject") from None
            raise ApiError(
                "InvalidKey", f"{uri}: {error.strerror}: folders cannot hold both KEY and KEY/..", "PutObject"
            ) from None
        finally:
            made.unlink(missing_ok=True)

    def _keep_hash(self, uri: str, sha256: str, found: os.stat_result) -> None:
        """The hash counts as long as the file has this time and size: people may replace files."""
        note = self._note(uri)
        if not sha256:
            note.unlink(missing_ok=True)
            return
        note.parent.mkdir(parents=True, exist_ok=True)
        with aside(note) as made:
            made.write_text(json.dumps({"sha256": sha256, "mtime_ns": found.st_mtime_ns, "size": found.st_size}))

    def _note(self, uri: str) -> Path:
        bucket, key = split(uri)
        return self._metadata.joinpath(bucket, *file_names(key))

    def get(self, uri: str) -> bytes:
        """As ObjectStore."""
        with self._missing(uri, "GetObject"):
            return self.path(uri).read_bytes()

    def download(self, uri: str, path: Path, moved: Callable[[int], None] | None = None) -> None:
        """As ObjectStore."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside(path) as made:
            with self._missing(uri, "GetObject"):
                copy_file(self.path(uri), made)
            if moved is not None:
                moved(os.stat(made).st_size)
            os.chmod(made, 0o644)

    def link(self, uri: str, path: Path) -> None:
        """Makes `path` a symbolic link to an object. Raises NotFound."""
        with self._missing(uri, "GetObject"):
            target = self.path(uri).resolve(strict=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def hash_of(self, uri: str) -> KeptHash | None:
        """As ObjectStore."""
        try:
            found = os.stat(self.path(uri))
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        try:
            note = table(loads(self._note(uri).read_bytes()))
            same = (note.get("mtime_ns"), note.get("size")) == (found.st_mtime_ns, found.st_size)
            return KeptHash(text(note.get("sha256", "")) if same else "", _etag(found))
        except (OSError, ValueError):  # no hash, or a note that is damaged: nobody knows it
            return KeptHash("", _etag(found))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """As ObjectStore. A bucket without a folder has no objects."""
        bucket, start = split(prefix)
        folder, _, _ = start.rpartition("/")
        top = self.path(f"s3://{bucket}/{folder}")
        yield from self._walk(bucket, top, f"{folder}/" if folder else "", start, ())

    def _walk(
        self, bucket: str, folder: Path, at: str, start: str, parents: tuple[tuple[int, int], ...]
    ) -> Iterator[StoredObject]:
        """The objects of a folder whose keys begin with `at` and `start`. `parents`: ends loops of links."""
        try:
            own = os.stat(folder)
            entries = list(os.scandir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        identity = (own.st_dev, own.st_ino)
        if identity in parents:
            return
        keys = [
            (at + key_part(each.name) + ("/" if each.is_dir() else ""), each) for each in entries if _is_shown(each)
        ]
        keys.sort(key=lambda pair: os.fsencode(pair[0]))  # a folder's slash counts: `a-b` comes before `a/b`
        for key, entry in keys:
            if not key.startswith(start) and not start.startswith(key):
                continue
            if key.endswith("/"):
                yield from self._walk(bucket, Path(entry.path), key, start, (*parents, identity))
            elif key.startswith(start):
                with contextlib.suppress(FileNotFoundError):  # deleted in the meantime
                    found = entry.stat()
                    modified = datetime.fromtimestamp(found.st_mtime, UTC)
                    yield StoredObject(f"s3://{bucket}/{key}", found.st_size, _etag(found), modified)

    def folders(self, prefix: str) -> Iterator[str]:
        """As ObjectStore."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            names = [key_part(each.name) for each in os.scandir(self.path(prefix.rstrip("/"))) if each.is_dir()]
            yield from sorted(names, key=os.fsencode)

    def delete(self, uri: str) -> None:
        """As ObjectStore. Also removes folders that are empty then, as they are no objects."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self.path(uri).unlink()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self._note(uri).unlink()
        bucket = self.path(f"s3://{split(uri)[0]}")
        with contextlib.suppress(OSError):
            for folder in self.path(uri).parents:
                if folder == bucket:
                    break
                folder.rmdir()

    def delete_all(self, uris: Sequence[str]) -> None:
        """As ObjectStore."""
        for uri in uris:
            self.delete(uri)

    @contextlib.contextmanager
    def _missing(self, uri: str, operation: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise NotFound("NoSuchKey", f"{uri}: there is no file {self.path(uri)}", operation) from None


def _etag(found: os.stat_result) -> str:
    """Another one after each change of a file, as far as the file system's clock can tell."""
    return f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"


def copy_file(source: Path, target: Path, check: Callable[[], None] = lambda: None) -> None:
    """Copies a file's content; the file system shares the blocks of both where it can (btrfs, XFS). Raises OSError.

    `check` is called now and then, and ends the copy by an exception.
    """
    with open(source, "rb") as reader, open(target, "wb") as writer:
        left = os.fstat(reader.fileno()).st_size
        try:
            while left > 0 and (copied := os.copy_file_range(reader.fileno(), writer.fileno(), min(left, CHUNK))):
                left -= copied
                check()
        except OSError:  # between file systems that cannot do this: the rest by reading and writing
            pass
        reader.seek(writer.seek(0, os.SEEK_END))
        while content := reader.read(1024 * 1024):
            writer.write(content)
            check()


def _hash(path: Path, check: Callable[[], None]) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while content := file.read(1024 * 1024):
            digest.update(content)
            check()
    return digest.hexdigest()


def _is_shown(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir() or entry.is_file()
    except OSError:
        return False


# What no file can be called, as a file is called instead; any other part of a key is the file's name itself.
INSTEAD = {"": "%", ".": "%2E", "..": "%2E%2E"}
LIKE_INSTEAD = re.compile(r"(%25)*(%|%2E|%2E%2E)")


def file_names(key: str) -> list[str]:
    """The file names of a key."""
    if "\0" in key:
        raise ApiError("InvalidKey", f"{key!r} holds a zero byte")
    return [f"%25{part}" if LIKE_INSTEAD.fullmatch(part) else INSTEAD.get(part, part) for part in key.split("/")]


def key_part(file: str) -> str:
    """The part of a key that a file name stands for."""
    for part, instead in INSTEAD.items():
        if file == instead:
            return part
    return file[3:] if file.startswith("%25") and LIKE_INSTEAD.fullmatch(file[3:]) else file
