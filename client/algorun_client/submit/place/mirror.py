"""An input's folder in the bucket: what is there, and by which hash each object is known to be unchanged.

A listing shows size and ETag, a thousand objects a call, but not the hash that an object keeps: that is a call for each.
So the hashes stand in one object more, the manifest. An entry counts only for an object whose size and ETag are those of
the entry: what anybody else writes has another ETag, and is asked for its own hash.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from algorun.common.codec import loads
from algorun.common.json_values import row, table, text, whole
from algorun_client.aws.api import ObjectStore, StoredObject
from algorun_client.common.errors import NotFound
from algorun_client.request.model import Upload

FORMAT = 1


@dataclass(frozen=True, slots=True)
class MirroredObject:
    """One object, as it was when its hash was known."""

    size: int  # bytes
    etag: str
    sha256: str


class Mirror:
    """The objects below a prefix, which ends with a slash. `learn` and `changed` are called from several threads."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self.prefix, self.manifest = prefix, _manifest(prefix)
        self._store = store
        self._there: dict[str, StoredObject] = {}
        self._stored: Mapping[str, MirroredObject] = {}
        self._known: dict[str, MirroredObject] = {}  # by address

    def look(self) -> None:
        """Lists the prefix and reads the manifest: two calls for a thousand objects."""
        self._there = {each.uri: each for each in self._store.list(self.prefix)}
        if not self._there:
            return
        try:
            self._stored = _read(self._store.get(self.manifest), self.prefix)
        except (NotFound, ValueError):  # then each object is asked
            return
        for uri, entry in self._stored.items():
            found = self._there.get(uri)
            if found is not None and found.etag and (entry.size, entry.etag) == (found.size, found.etag):
                self._known[uri] = entry

    def changed(self, upload: Upload) -> bool:
        """True if there is no object with the content of this file. Makes a call if only the object knows."""
        found = self._there.get(upload.uri)
        if found is None or found.size != upload.size:
            return True
        if upload.uri not in self._known:
            kept = self._store.hash_of(upload.uri)
            if kept is None or kept.sha256 != upload.sha256:
                return True
            self.learn(upload, kept.etag)
        return self._known[upload.uri].sha256 != upload.sha256

    def learn(self, upload: Upload, etag: str) -> None:
        """This file is the object with this ETag."""
        self._known[upload.uri] = MirroredObject(upload.size, etag, upload.sha256)

    def superfluous(self, wanted: Collection[str]) -> list[str]:
        """The objects that are not wanted, in the order of their addresses."""
        return sorted(self._there.keys() - set(wanted))

    def save(self, wanted: Collection[str]) -> None:
        """Writes the manifest of the wanted objects, if that is news."""
        entries = {uri: self._known[uri] for uri in sorted(self._known.keys() & set(wanted)) if self._known[uri].etag}
        if entries != self._stored:
            rows = {uri.removeprefix(self.prefix): [each.size, each.etag, each.sha256] for uri, each in entries.items()}
            self._store.put(self.manifest, json.dumps({"format": FORMAT, "objects": rows}, indent=0).encode())


@dataclass(frozen=True, slots=True)
class Origin:
    """An object whose content is known."""

    uri: str
    size: int  # bytes
    etag: str


def origins(store: ObjectStore, prefixes: Iterable[str]) -> dict[str, Origin]:
    """What lies below these prefixes, by its SHA-256; of a prefix without a manifest nothing is known."""
    found: dict[str, Origin] = {}
    for prefix in prefixes:
        with contextlib.suppress(NotFound, ValueError):
            for uri, entry in _read(store.get(_manifest(prefix)), prefix).items():
                found.setdefault(entry.sha256, Origin(uri, entry.size, entry.etag))
    return found


def _manifest(prefix: str) -> str:
    folder, _, name = prefix.rstrip("/").rpartition("/")
    return f"{folder}-hashes/{name}.json"  # outside of the prefix: a job gets everything below that


def _read(content: bytes, prefix: str) -> dict[str, MirroredObject]:
    """The entries by address. Raises ValueError if it is no manifest."""
    value = table(loads(content))
    if value.get("format") != FORMAT:
        raise ValueError("another format")
    found = {}
    for name, entry in table(value.get("objects")).items():
        size, etag, sha256 = row(entry, 3)
        found[f"{prefix}{name}"] = MirroredObject(whole(size), text(etag), text(sha256))
    return found
