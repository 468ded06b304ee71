"""One preparation of a folder at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Waits while another process of this machine works in the folder: simulated hosts share their channels, hosts of a local
    mode their code.

    ALGORUN_PREPARE_S limits the wait, as it limits the whole preparation.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks; only hosts of one machine need one
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
