"""The index of a channel's tar files: what their headers say, kept in a file beside them."""

import contextlib
import gzip
import json
import os
import platform
import zlib
from pathlib import Path

from algorun_train.common import files
from algorun_train.common.errors import UserError
from algorun_train.common.json_text import loads

from .tar_headers import TarIndex, read_headers
from .tar_index_rows import read_row, read_tars, write_row
from .tar_tree import BadTarError

INDEX = ".algorun-tar-index.json"
VERSION = 2  # raise it when the same tar files give another index
LARGEST = 2**20  # bytes of an index, unpacked, beyond those of its tar files: an image's row is shorter than its header


def read_indexes(where: str, root: Path, names: list[str]) -> dict[str, TarIndex]:
    """The indexes of the tar files `names` in `root`, by name. Only tar files that the kept index does not know, or that
    have changed since, are read. An index that is damaged, or does not fit its tar files, is made anew, and a line of the log
    says so. Raises UserError, which begins with `where`."""
    known, fault = _kept(root, names)
    if fault:
        print(f"{where}: {INDEX} {fault}: it is made anew from the headers of the tar files", flush=True)
    indexes: dict[str, TarIndex] = {}
    try:
        for name in names:
            state = os.stat(root / name)
            old = known.get(name)
            fresh = old is None or (old.size, old.mtime_ns) != (state.st_size, state.st_mtime_ns)
            indexes[name] = read_headers(root / name) if fresh or old is None else old
    except BadTarError as error:
        raise UserError(f"{where}: {root / name} {error}") from None
    except OSError as error:
        raise UserError(
            f"{where}: {root / name} cannot be read: {error.strerror}; fix: check its permissions"
        ) from None
    if indexes != known:
        _keep(root, indexes)
    return indexes


def _kept(root: Path, names: list[str]) -> tuple[dict[str, TarIndex], str]:
    """The index that an earlier job left in `root`, and why it cannot be used: "" if it can, or if there is none."""
    try:
        total = sum(os.stat(root / name).st_size for name in names)
        with gzip.open(root / INDEX, "rb") as file:
            text = file.read(LARGEST + total)
        if len(text) == LARGEST + total:
            return {}, f"has more than {LARGEST + total} bytes, which is more than its tar files"
        kept = loads(text)
        if not isinstance(kept, dict) or type(version := kept.get("version")) is not int:
            return {}, "has no version"
        if version != VERSION:
            return {}, ""  # another version of algorun wrote it
        return {name: read_row(row) for name, row in read_tars(kept.get("tars"))}, ""
    except FileNotFoundError:
        return {}, ""
    except (OSError, EOFError, zlib.error, ValueError) as error:
        return {}, f"cannot be used ({error})"


def _keep(root: Path, indexes: dict[str, TarIndex]) -> None:
    """Leaves the indexes in `root` for the next job. A folder that cannot be written stays without them."""
    tars = {name: write_row(index) for name, index in indexes.items()}
    packed = gzip.compress(json.dumps({"version": VERSION, "tars": tars}).encode(), 1)
    with contextlib.suppress(OSError):
        # Hosts that share the folder write at once, from containers that may number their processes alike.
        files.write(root / INDEX, lambda file: file.write(packed), f"{platform.node()}-{os.getpid()}")
