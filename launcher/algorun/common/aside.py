"""Files that are written aside and renamed: a reader sees the old one or the new one, and a full disk leaves the old one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def aside(path: Path) -> Iterator[Path]:
    """A file beside `path`, which the caller writes. At the end it becomes `path`; after an error it is removed.

    Its folder has to exist. Raises OSError.
    """
    made = path.with_name(f".algorun-{os.urandom(8).hex()}.part")  # the name of `path` may fill all 255 bytes
    try:
        yield made
        os.replace(made, path)
    finally:
        made.unlink(missing_ok=True)
