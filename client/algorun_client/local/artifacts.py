"""What a training job leaves: model.tar.gz and output.tar.gz, each of the folders of all hosts."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

from algorun_client.aws.api import ObjectStore

from .folder_files import files_below
from .job_description import Artifacts

COMPRESSION = 6  # gzip's own default; tarfile's 9 takes three times as long for 1 % of space


def merged(folders: Sequence[Path]) -> dict[str, Path]:
    """The files, links and empty folders of several hosts by their names, sorted. The first host's file wins; what another
    host has behind a name that is a link on the first one is left out."""
    found: dict[str, Path] = {}
    for folder in folders:
        for top, inner, names in os.walk(folder):
            for name in (*names, *inner):
                path = Path(top) / name
                key = str(path.relative_to(folder))
                if not any(str(parent) in found and found[str(parent)].is_symlink() for parent in Path(key).parents):
                    found.setdefault(key, path)
    return dict(sorted(found.items()))


def pack(folders: Sequence[Path], archive: Path) -> bool:
    """Packs the files of several hosts into one tar.gz. A link stays a link, as in the archives of SageMaker; one to a path
    within its own folder becomes relative. False without a file."""
    found = merged(folders)
    if not any(path.is_file() for path in found.values()):
        return False
    with tarfile.open(archive, "w:gz", compresslevel=COMPRESSION) as tar:
        for name, path in found.items():
            if path.is_symlink():
                tar.addfile(_link(name, path, folders))
            elif path.is_file() or path.is_dir():
                tar.add(path, name, recursive=False)
    return True


def _link(name: str, path: Path, folders: Sequence[Path]) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
    for folder in folders:
        if info.linkname.startswith(f"{folder}/"):
            info.linkname = os.path.relpath(info.linkname, (folder / name).parent)
    return info


def upload(folders: Sequence[Path], name: str, to: Artifacts, store: ObjectStore, aside: Path) -> str:
    """Sends the files of all hosts: as PREFIX/NAME.tar.gz, or each by itself below PREFIX/NAME/.

    Returns the address, "" without a file. `aside`: the folder for the archive.
    """
    if to.compress:
        archive = aside / f"{name}.tar.gz"
        if not pack(folders, archive):
            return ""
        store.put(f"{to.prefix}/{archive.name}", archive)
        archive.unlink()
        return f"{to.prefix}/{archive.name}"
    files: dict[str, Path] = {}
    for folder in folders:
        for inner, path in files_below(folder, _raise):
            files.setdefault(inner, path)
    for inner, path in sorted(files.items()):
        store.put(f"{to.prefix}/{name}/{inner}", path)
    return f"{to.prefix}/{name}/" if files else ""


def _raise(error: OSError) -> None:
    raise error
