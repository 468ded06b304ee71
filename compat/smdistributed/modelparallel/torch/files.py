"""smp.save and smp.load: torch's, with a file for each rank of a model replica."""

from __future__ import annotations

import argparse
import io
import pickle
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from algorun_train import files
from algorun_train.errors import UserError
from smdistributed.script_types import Given, Result

from .ranks import mp_rank
from .session import session

_GLOBAL = re.compile(r"Unsupported global: GLOBAL ([\w.]+)")  # torch's words


def save(obj: Given, f: str, partial: bool = True, pickle_module: Given = pickle, pickle_protocol: int = 2) -> None:
    """Writes `obj` to the file `f`, and where it is `partial` to `{f}_{mp_rank}`; it appears complete or not at all.

    Every process that calls it writes. Raises UserError for a name that is no text, or a folder that cannot be written.
    """
    write(_named("save", f, partial), lambda file: torch.save(obj, file, pickle_module, pickle_protocol))


def load(
    f: str,
    map_location: Given = None,
    pickle_module: Given = None,
    pickle_load_args: Mapping[str, Given] | None = None,
    partial: bool = True,
    **options: Given,
) -> Result:
    """What `save` has written to `f`. `pickle_load_args` and `options` are those of torch.load.

    Like torch.load, it takes tensors and plain data only, unless `weights_only=False` or a `pickle_module` is given.
    Raises UserError for a file that is not there, or holds other objects.
    """
    if not isinstance(pickle_load_args, Mapping | None):
        raise UserError(
            f"smp.load: pickle_load_args is a {type(pickle_load_args).__name__}; allowed: a dictionary of torch.load's "
            "arguments; fix: give `partial`, which comes after it, by its name"
        )
    path = _named("load", f, partial)
    if not path.is_file():
        other = f"{f} is there, for partial=False" if partial and Path(f).is_file() else "what smp.save has written"
        raise UserError(f"smp.load: no file {path}; allowed: {other}; fix: another name, or another value of partial")
    options = {**(pickle_load_args or {}), **options}
    if pickle_module is not None:
        options = {"pickle_module": pickle_module, "weights_only": False} | options
    return read(path, map_location=map_location, **options)


def warn_of_unreadable(what: str, value: Given) -> None:
    """A warning where `read` will refuse `value`, in time to change the script. UserError for what cannot be saved."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
    except Exception as error:  # pickle raises whatever an object's own code does
        raise UserError(f"{what} cannot be saved: {error}; allowed: what pickle takes; fix: save its data") from None
    file.seek(0)
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            torch.load(file, map_location="cpu")
    except pickle.UnpicklingError as error:
        found = _GLOBAL.search(str(error))
        kind = found[1] if found else "an unknown class"
        warnings.warn(
            f"{what} holds objects of the class {kind}, which torch.load refuses; allowed: tensors and plain data; fix: "
            f"torch.serialization.add_safe_globals([{kind.rpartition('.')[2]}]) before it is loaded, "
            "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in the job's environment, or save its data, such as vars(..)",
            stacklevel=2,
        )


def read(path: Path, **options: Given) -> Result:
    """torch.load. UserError for a file that it cannot read, and for objects that it takes only when it is told to.

    An argparse.Namespace is plain data here: AWS's examples have it in their checkpoints.
    """
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
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


def write(path: Path, fill: Callable[[Given], object]) -> None:
    """`fill` writes the file under a name that no other rank uses; then it is renamed. UserError where that fails."""
    # Hosts may share the folder, and in two containers two processes may have the same number.
    aside = path.with_name(f".{path.name}.rank{session().comm.rank}")
    try:
        files.write(aside, fill)
        aside.replace(path)
        files.sync_folder(path.parent)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise UserError(f"file {path} cannot be written: {error.strerror}; fix: another path, or free space") from None


def _named(what: str, f: Given, partial: bool) -> Path:
    if not isinstance(f, str):
        raise UserError(f"smp.{what}: f is a {type(f).__name__}; allowed: a text; fix: str(..)")
    return Path(f"{f}_{mp_rank()}" if partial else f)
