"""The index of a channel's tar files: what their headers say, kept in a file beside them."""

import contextlib
import gzip
import json
import os
import platform
from collections import Counter
from pathlib import Path

from algorun_train.common import files
from algorun_train.common.errors import UserError

from .channel_files import Dangling
from .left_out import LeftOut
from .tar_headers import Member, TarIndex, read_headers
from .tar_tree import BadTarError

INDEX = ".algorun-tar-index.json"
VERSION = 2  # raise it when the same tar files give another index


def read_indexes(where: str, root: Path, names: list[str]) -> dict[str, TarIndex]:
    """The indexes of the tar files `names` in `root`, by name. Only tar files that the kept index does not know, or that
    have changed since, are read. Raises UserError, which begins with `where`."""
    known = _kept(root)
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


def _kept(root: Path) -> dict[str, TarIndex]:
    """The index that an earlier job left in `root`; empty if there is none that can be used."""
    try:
        with gzip.open(root / INDEX, "rt", encoding="utf-8") as file:
            kept = json.load(file)
        if kept["version"] != VERSION:
            return {}
        return {
            name: TarIndex(
                size,
                mtime_ns,
                tuple(Member(*image) for image in images),
                keyed,
                tuple(bare),
                tuple(Dangling(*link) for link in dangling),
                LeftOut(Counter({(top, kind): count for top, kind, count in counts}), examples),
            )
            for name, (size, mtime_ns, images, keyed, bare, dangling, counts, examples) in kept["tars"].items()
        }
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _keep(root: Path, indexes: dict[str, TarIndex]) -> None:
    """Leaves the indexes in `root` for the next job. A folder that cannot be written stays without them."""
    tars = {
        name: (
            index.size,
            index.mtime_ns,
            index.images,
            index.keyed,
            index.bare,
            index.dangling,
            [(*key, count) for key, count in index.left_out.counts.items()],
            index.left_out.examples,
        )
        for name, index in indexes.items()
    }
    packed = gzip.compress(json.dumps({"version": VERSION, "tars": tars}).encode(), 1)
    with contextlib.suppress(OSError):
        # Hosts that share the folder write at once, from containers that may number their processes alike.
        files.write(root / INDEX, lambda file: file.write(packed), f"{platform.node()}-{os.getpid()}")
