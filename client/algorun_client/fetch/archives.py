"""Unpacks what a job left as an archive. The archive may come from anybody: nothing is written outside of its folder."""

from __future__ import annotations

import tempfile
from pathlib import Path

from algorun.common.archives import unpack
from algorun_client.target.api import ObjectStore

from .in_place import put_in_place
from .progress import Progress


def fetch_archive(store: ObjectStore, uri: str, folder: Path, progress: Progress) -> int:
    """Unpacks the tar file at `uri` into `folder`, which is replaced as a whole. Returns the number of files and links.

    Raises NotFound without an object, and UserError if the archive is damaged or would write elsewhere; then `folder`
    is as it was.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".algorun-", dir=folder.parent) as aside:
        archive, made = Path(aside, "archive"), Path(aside, "made")
        size = next((each.size for each in store.list(uri) if each.uri == uri), None)
        progress.begin(folder.name, size)
        try:
            store.download(uri, archive, progress.moved)
        finally:
            progress.end()
        made.mkdir()
        count = unpack(archive, made, uri, place="the folder of the archive", advice="fetch it by the AWS CLI")
        archive.unlink()
        put_in_place(made, folder, Path(aside))
    return count
