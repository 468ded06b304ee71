"""Unpacks what a job left as an archive. The archive may come from anybody: nothing is written outside of its folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from algorun.common.archives import unpack
from algorun_client.aws.api import ObjectStore
from algorun_client.common.progress import Progress

from .in_place import put_in_place

SHOWN = 5  # members that are left out, by name


def fetch_archive(
    store: ObjectStore, uri: str, folder: Path, progress: Progress, *, home: str = "", say: Callable[[str], None]
) -> int:
    """Unpacks the tar file at `uri` into `folder`, which is replaced as a whole. Returns the number of files and links.

    A member that would lie or lead elsewhere is left out, and `say` gets a line about it. `home`: the folder of the job that
    was packed. Raises NotFound without an object, and UserError if the archive is damaged; then `folder` is as it was.
    """
    wrong: list[str] = []
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
        count = unpack(
            archive,
            made,
            uri,
            place="the folder of the archive",
            fix="fetch it by the AWS CLI",
            leave_out=wrong.append,
            home=home,
        )
        archive.unlink()
        put_in_place(made, folder, Path(aside))
    for problem in wrong[:SHOWN]:
        say(f"{uri}: {problem}: left out")
    if len(wrong) > SHOWN:
        say(f"{uri}: {len(wrong) - SHOWN} more members are left out")
    return count
