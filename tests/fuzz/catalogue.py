"""All readers. Those of the training entrypoints need torch, which is imported only where one of them is asked for."""

from __future__ import annotations

import importlib

from .reader import Reader

ROOMS = {
    "readers_config": ("job-files", "hyperparameters", "command-line", "environment", "code-address"),
    "readers_files": ("archive", "fetched-file", "result-files", "output-of-ranks", "host-settings"),
    "readers_channels": ("channel-archive", "args-file", "processing-inputs"),
    "readers_control": ("control-message", "sealed-lines", "connection"),
    "readers_hub": ("hub-stream", "link-stream", "lookout-stream"),
    "readers_ranks": ("exception-datagram", "rank-stream", "daemon-message"),
    "readers_train": ("checkpoint", "checkpoint-shard", "training-options"),
    "readers_text": ("text-lines", "parquet-rows"),
}
NAMES = [name for names in ROOMS.values() for name in names]


def load(name: str) -> Reader:
    """The reader of this name."""
    room = next(room for room, names in ROOMS.items() if name in names)
    readers: list[Reader] = importlib.import_module(f".{room}", __package__).READERS
    return next(reader for reader in readers if reader.name == name)
