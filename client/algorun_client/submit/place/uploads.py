"""Uploads what the bucket lacks, several objects at a time, and removes what must not be there."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from algorun.common.errors import UserError
from algorun.common.sizes import size_text
from algorun_client.aws.api import ObjectStore
from algorun_client.common.at_once import ParallelCalls
from algorun_client.common.errors import ApiError, Changed, Interrupted
from algorun_client.common.progress import Progress
from algorun_client.request.model import Request, Upload

from .mirror import Mirror, Origin

AT_ONCE = 16  # small files wait for answers, not for bandwidth
SMALL = 8 * 1024 * 1024  # bytes: read whole, so that exactly what was hashed is sent
END_S = 1.5  # after Ctrl-C: the time in which calls under way may end, and parts of large files are removed


def summary(objects: int, size: int, unchanged: int, copied: int) -> str:
    """What will be uploaded, as one line."""
    same = f"; copying {copied} inside S3" if copied else ""
    same += f"; {unchanged} unchanged" if unchanged else ""
    noun = "object" if objects == 1 else "objects"
    return f"uploading {objects} {noun}, {size_text(size)}{same}" if objects else f"nothing to upload{same}"


def upload(
    store: ObjectStore, request: Request, earlier: Callable[[], Mapping[str, Origin]], progress: Progress
) -> None:
    """Makes the request's objects exist, and nothing else below its mirrors.

    An unchanged file of a mirror costs no call. Content that an earlier execution has uploaded is copied inside the
    bucket: `earlier` returns it by its SHA-256, and is called if a mirror lacks something.

    Safe to repeat: an interrupted upload goes on where it was. Raises Interrupted after Ctrl-C, within some seconds.
    """
    _Uploads(store, request, progress).run(earlier)


@dataclass(slots=True)
class _Tally:
    """How much of the uploads is done."""

    objects: int = 0
    size: int = 0  # bytes
    all_objects: int = 0
    all_size: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, size: int) -> None:
        """One more object. Called from several threads."""
        with self._lock:
            self.objects, self.size = self.objects + 1, self.size + size

    def __str__(self) -> str:
        with self._lock:
            sizes = f"{size_text(self.size)} of {size_text(self.all_size)}"
            return f"{self.objects} of {self.all_objects} objects are uploaded ({sizes})"


class _Uploads:
    def __init__(self, store: ObjectStore, request: Request, progress: Progress) -> None:
        self._store, self._request, self._progress = store, request, progress
        self._calls, self._tally = ParallelCalls(AT_ONCE), _Tally()
        self._mirrors = {prefix: Mirror(store, prefix) for prefix in request.mirrors}

    def run(self, earlier: Callable[[], Mapping[str, Origin]]) -> None:
        """As `upload`."""
        try:
            self._run_or_end(earlier)
        except KeyboardInterrupt:
            raise self._interrupted() from None
        self._calls.close()

    def _run_or_end(self, earlier: Callable[[], Mapping[str, Origin]]) -> None:
        """After an error what is under way ends too: it may take hours, and there will be no job."""
        try:
            self._run(earlier)
        except KeyboardInterrupt:
            raise
        except BaseException:
            self._store.interrupt(END_S)
            self._calls.close()
            raise

    def _run(self, earlier: Callable[[], Mapping[str, Origin]]) -> None:
        self._calls.each(Mirror.look, list(self._mirrors.values()))
        uploads = self._request.uploads
        missing = [each for each, new in zip(uploads, self._calls.each(self._changed, uploads), strict=True) if new]
        known = earlier() if any(self._mirror_of(each) for each in missing) else {}
        copies = {
            each.uri: known[each.sha256]
            for each in missing
            if self._mirror_of(each) and self._is_elsewhere(each, known)
        }
        sent = [each for each in missing if each.uri not in copies]
        self._tally = _Tally(all_objects=len(missing), all_size=sum(each.size for each in sent))
        size = self._tally.all_size
        note = summary(len(sent), size, len(uploads) - len(missing), copied=len(copies))
        self._progress.begin("uploading", size, objects=len(missing), note=note)
        try:
            # Large objects first: one that begins last would be waited for alone.
            self._calls.each(
                lambda each: self._make(each, copies.get(each.uri)), sorted(missing, key=lambda each: -each.size)
            )
        finally:
            self._progress.end()
        wanted, mirrors = {each.uri for each in uploads}, self._mirrors.values()
        self._calls.each(self._store.delete, [uri for mirror in mirrors for uri in mirror.superfluous(wanted)])
        self._calls.each(lambda mirror: mirror.save(wanted), list(mirrors))

    def _mirror_of(self, each: Upload) -> Mirror | None:
        return next((mirror for prefix, mirror in self._mirrors.items() if each.uri.startswith(prefix)), None)

    def _changed(self, each: Upload) -> bool:
        if mirror := self._mirror_of(each):
            return mirror.changed(each)
        kept = self._store.hash_of(each.uri)
        return kept is None or kept.sha256 != each.sha256

    def _is_elsewhere(self, each: Upload, known: Mapping[str, Origin]) -> bool:
        found = known.get(each.sha256)
        return found is not None and found.uri != each.uri

    def _make(self, each: Upload, origin: Origin | None) -> None:
        etag = self._copied(each, origin) if origin else None
        size = each.size if etag is None else 0
        if etag is None:
            etag = _put(self._store, each)
        if mirror := self._mirror_of(each):
            mirror.learn(each, etag)
        self._tally.add(size)
        self._progress.moved(size, objects=1)

    def _copied(self, each: Upload, origin: Origin) -> str | None:
        """The ETag of the copy. None if its origin is gone or may not be copied: the file is uploaded then."""
        try:
            return self._store.copy(origin.uri, each.uri, size=origin.size, etag=origin.etag)
        except ApiError:
            return None

    def _interrupted(self) -> Interrupted:
        """Ends what is under way. A second Ctrl-C does not wait."""
        self._calls.cancel()
        try:
            begin = time.monotonic()
            parts = self._store.interrupt(END_S)
            left = END_S - (time.monotonic() - begin)
            hanging = not self._calls.end_within(max(left, 0.1))
        except KeyboardInterrupt:
            parts, hanging = 1, True
        text = str(self._tally)
        text += "; no job was created; the same line goes on"
        if parts:
            text += "; parts of large files may be left in the bucket, where only a lifecycle rule removes them"
        return Interrupted(text, hanging=hanging)


def _put(store: ObjectStore, each: Upload) -> str:
    """Returns the ETag, "" if it is unknown."""
    if each.data is not None:
        return store.put(each.uri, each.data, sha256=each.sha256)
    if each.path is None:
        raise ValueError(f"{each.uri}: an upload without content")
    try:
        if each.size > SMALL:
            return store.put(each.uri, each.path, sha256=each.sha256)
        data = each.path.read_bytes()
        if hashlib.sha256(data).hexdigest() != each.sha256:
            raise Changed(str(each.path))
        return store.put(each.uri, data, sha256=each.sha256)
    except Changed:
        raise _has_changed(each.path) from None


def _has_changed(path: Path) -> UserError:
    return UserError(str(path), "the file changed while it was being uploaded", fix="submit again when it is complete")
