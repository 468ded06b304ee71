"""Reads the checkpoints of `ddp` of version 0.1.0: one state file each, which rank 0 wrote. None is written or removed.

    step-00001000/state.pt         the state (state_file.py)
    step-00001000/manifest.json    {"format", "step", "written", "files": {"state.pt": {"size", "sha256"}}}
    latest                         the name of the newest folder

A folder can be damaged, for example by an interrupted copy to S3, which has no rename. So size and hash are checked
before a checkpoint is used, and the newest undamaged one without NaN is used.
"""

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import TypedDict, cast

from algorun_train.common.json_text import loads

STATE, MANIFEST, LATEST = "state.pt", "manifest.json", "latest"


def undamaged(root: Path, warn: Callable[[str], None]) -> Iterator[tuple[Path, bytes]]:
    """The undamaged checkpoints below `root`, newest first: folder, and the bytes of its state. `warn` gets a text for each
    damaged one. Nothing is read before it is asked for. Call it on rank 0."""
    for folder in _by_age(root):
        try:
            found = folder, _verified(folder)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            warn(f"checkpoint {folder} is not complete and is passed over: {error}")
            continue
        yield found


def _by_age(root: Path) -> Iterator[Path]:
    """The folder that `latest` names, then the others, newest first by the time they were written."""
    folders = [f for f in root.glob("step-*") if f.is_dir() and not any(f.glob("part-*"))]  # part-*: shards.py
    try:
        pointed = (root / LATEST).read_text().strip()
    except (OSError, ValueError):  # absent, or no text
        pointed = ""
    return iter(sorted(folders, key=lambda f: (f.name == pointed, _written(f), f.name), reverse=True))


class _File(TypedDict):
    size: int
    sha256: str


class _Manifest(TypedDict):
    format: int
    step: int
    written: float
    files: dict[str, _File]


def _manifest(folder: Path) -> _Manifest:
    """The manifest as 0.1.0 wrote it. A damaged file may hold other values: callers catch KeyError and TypeError."""
    return cast(_Manifest, loads((folder / MANIFEST).read_text()))


def _written(folder: Path) -> float:
    try:
        return float(_manifest(folder)["written"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0.0


def _verified(folder: Path) -> bytes:
    """The bytes of the state. Raises an error if the folder is damaged or is no checkpoint."""
    promised = _manifest(folder)["files"][STATE]
    data = (folder / STATE).read_bytes()
    if len(data) != promised["size"]:
        raise ValueError(f"{STATE} has {len(data)} bytes, not {promised['size']}")
    if sha256(data).hexdigest() != promised["sha256"]:
        raise ValueError(f"{STATE} differs from its checksum")
    return data
