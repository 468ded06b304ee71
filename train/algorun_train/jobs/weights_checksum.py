"""Checksums of what a folder brings beside its config, cheap enough for any size."""

import hashlib
from pathlib import Path

from algorun_train.models.folder_config import ModelFolder

PROCESSOR = ("preprocessor_config.json", "processor_config.json")
BLOCKS, BLOCK = 64, 4096  # samples of a file and their bytes: to read 100 GB would take minutes


def weights_checksum(folder: ModelFolder) -> dict[str, object]:
    """{"weights": checksum} of names, sizes and samples of the folder's files of weights on this host; {} without weights.

    If a file cannot be read, {} too: the reader of the weights says so.
    """
    if folder.weights is None:
        return {}
    try:
        return {"weights": _sampled(Path(folder.path), folder.weights)}
    except OSError:
        return {}


def processor_checksum(folder: ModelFolder) -> dict[str, object]:
    """{"processor": checksum} of the files that say how images become tensors; {} without them, or if one cannot be read."""
    digest, found = hashlib.sha256(), False
    for name in PROCESSOR:
        try:
            digest.update((Path(folder.path) / name).read_bytes())
            found = True
        except OSError:
            continue
    return {"processor": digest.hexdigest()[:16]} if found else {}


def _sampled(folder: Path, weights: str) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob(f"*{Path(weights.removesuffix('.index.json')).suffix}")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            for number in range(BLOCKS):
                file.seek(number * max(size - BLOCK, 0) // (BLOCKS - 1))
                digest.update(file.read(BLOCK))
    return digest.hexdigest()[:16]
