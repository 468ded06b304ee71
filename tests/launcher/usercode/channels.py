"""A channel with archives, and what is in it afterwards."""

from __future__ import annotations

import zipfile
from pathlib import Path

from algorun.job.channels import Channel
from algorun.usercode import extract as extraction
from algorun.usercode.extract import DONE, extract

SUFFIX_MODES = {".tar": "w:", ".tar.gz": "w:gz", ".tgz": "w:gz", ".TAR.BZ2": "w:bz2", ".tar.xz": "w:xz"}


def plain_text(folder: Path) -> dict[str, str]:
    """Every file that is neither an archive nor ours, and its text."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != DONE]
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in found
        if not path.name.lower().endswith(extraction.SUFFIXES)
    }


def run(folder: Path) -> list[str]:
    said: list[str] = []
    extract(Channel("train", str(folder), "File"), said.append)
    return said


def zipped(path: Path, *names: str, kind: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as out:
        for name in names:
            out.writestr(name, "" if name.endswith("/") else "z")
    return path
