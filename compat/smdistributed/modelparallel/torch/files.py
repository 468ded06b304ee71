"""smp.save and smp.load: torch's, with a file for each rank of a model replica."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from algorun import training

from .ranks import mp_rank
from .session import session

UserError = training.load("errors").UserError
_files = training.load("files")
_GLOBAL = re.compile(r"Unsupported global: GLOBAL ([\w.]+)")  # torch's words


def save(obj: Any, f: str, partial: bool = True, pickle_module: Any = pickle, pickle_protocol: int = 2) -> None:
    """Writes `obj` to the file `f`, and where it is `partial` to `{f}_{mp_rank}`; it appears complete or not at all.

    Every process that calls it writes. Raises UserError for a name that is no text, or a folder that cannot be written.
    """
    write(_named("save", f, partial), lambda file: torch.save(obj, file, pickle_module, pickle_protocol))


def load(
    f: str, map_location: Any = None, pickle_module: Any = None, partial: bool = True, **pickle_load_args: Any
) -> Any:
    """What `save` has written to `f`. `pickle_load_args` are those of torch.load.

    Like torch.load, it takes tensors and plain data only, unless `weights_only=False` or a `pickle_module` is given.
    Raises UserError for a file that is not there, or holds other objects.
    """
    path = _named("load", f, partial)
    if not path.is_file():
        other = f"{f} is there, for partial=False" if partial and Path(f).is_file() else "what smp.save has written"
        raise UserError(f"smp.load: no file {path}; allowed: {other}; fix: another name, or another value of partial")
    if pickle_module is not None:
        pickle_load_args = {"pickle_module": pickle_module, "weights_only": False} | pickle_load_args
    return read(path, map_location=map_location, **pickle_load_args)


def read(path: Path, **options: Any) -> Any:
    """torch.load. UserError for a file that it cannot read, and for objects that it takes only when it is told to."""
    try:
        return torch.load(path, **options)
    except pickle.UnpicklingError as error:
        found = _GLOBAL.search(str(error))
        holds = f"holds objects of the class {found[1]}" if found else "cannot be read as tensors and plain data"
        raise UserError(
            f"{path} {holds}; allowed: tensors and plain data; fix, for a file that you trust: "
            "torch.serialization.add_safe_globals([..]), weights_only=False in smp.load, or "
            "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in the job's environment"
        ) from None
    except (OSError, EOFError, RuntimeError) as error:
        first = str(error).partition("\n")[0]
        raise UserError(f"{path} cannot be read: {first[:300]}; fix: a whole file, or another map_location") from None


def write(path: Path, fill: Callable[[Any], object]) -> None:
    """`fill` writes the file under a name that no other rank uses; then it is renamed. UserError where that fails."""
    # Hosts may share the folder, and in two containers two processes may have the same number.
    aside = path.with_name(f".{path.name}.rank{session().mesh.rank}")
    try:
        _files.write(aside, fill)
        aside.replace(path)
        _files.sync_folder(path.parent)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise UserError(f"file {path} cannot be written: {error.strerror}; fix: another path, or free space") from None


def _named(what: str, f: Any, partial: bool) -> Path:
    if not isinstance(f, str):
        raise UserError(f"smp.{what}: f is a {type(f).__name__}; allowed: a text; fix: str(..)")
    return Path(f"{f}_{mp_rank()}" if partial else f)
