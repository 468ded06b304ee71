"""Reads and writes files for scripts: plain data unless the script allows more, and each file complete or absent."""

from __future__ import annotations

import contextlib
import io
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch

from algorun_train.common import files
from algorun_train.common.errors import UserError

from . import plain_data

Object = Any  # what a script saves, or a file holds
_GLOBAL = re.compile(r"Unsupported global: GLOBAL ([\w.]+)")  # torch's words


def read_safely(path: Path, by: str, **options: Object) -> Object:
    """torch.load with these options. UserError for a file that it cannot read, and for objects that it takes only when it
    is told to; `by` is the function that takes `weights_only`, for its text."""
    try:
        return _loaded(path, **options)
    except pickle.UnpicklingError as error:
        found = _GLOBAL.search(str(error))
        holds = f"holds objects of the class {found[1]}" if found else "cannot be read as tensors and plain data"
        raise UserError(
            f"{path} {holds}; allowed: tensors and plain data; fix, for a file that you trust: "
            f"torch.serialization.add_safe_globals([..]), weights_only=False in {by}, or "
            "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in the job's environment"
        ) from None
    except (OSError, EOFError, RuntimeError) as error:
        first = str(error).partition("\n")[0]
        raise UserError(f"{path} cannot be read: {first[:300]}; fix: a whole file, or another map_location") from None


def warn_of_unreadable(what: str, value: Object) -> None:
    """A warning where `read` will refuse `value`, in time to change the script. UserError for what cannot be saved."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
    except Exception as error:  # pickle raises whatever an object's own code does
        raise UserError(f"{what} cannot be saved: {error}; allowed: what pickle takes; fix: save its data") from None
    file.seek(0)
    try:
        _loaded(file, map_location="cpu")
    except pickle.UnpicklingError as error:
        found = _GLOBAL.search(str(error))
        kind = found[1] if found else "an unknown class"
        warnings.warn(
            f"{what} holds objects of the class {kind}, which torch.load refuses; allowed: tensors and plain data; fix: "
            f"torch.serialization.add_safe_globals([{kind.rpartition('.')[2]}]) before it is loaded, "
            "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in the job's environment, or save its data, such as vars(..)",
            stacklevel=2,
        )


def _loaded(file: Path | io.BytesIO, **options: Object) -> Object:
    """torch.load with what the script has allowed, and only if that is not enough with our plain data beside it."""
    try:
        return torch.load(file, **options)
    except pickle.UnpicklingError as error:
        refused = error
    for allowed in plain_data.beside(torch.serialization.get_safe_globals()):
        if isinstance(file, io.BytesIO):
            file.seek(0)
        try:
            with _only(allowed):
                found = torch.load(file, **options)
        except pickle.UnpicklingError as error:
            refused = error
        except (OSError, EOFError, RuntimeError):
            raise
        except Exception:  # an object that the script has allowed got one of ours: TypeError, say
            continue
        else:
            if not plain_data.has_scalar_type(found):
                return found
            refused = pickle.UnpicklingError("Unsupported global: GLOBAL numpy.dtype")
    raise refused


@contextlib.contextmanager
def _only(allowed: list[plain_data.Global]) -> Iterator[None]:
    """torch.load takes these objects, and afterwards those that it took before, with what modules have added that were
    imported inside. safe_globals would forget what is in both."""
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(allowed)
    try:
        yield
    finally:
        added = set(torch.serialization.get_safe_globals()) - set(allowed)
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals([*before, *added])


def write(path: Path, rank: int, fill: Callable[[BinaryIO], object]) -> None:
    """`fill` writes the content; the file appears complete or not at all. UserError where that fails.

    Several ranks may write it at once: hosts share folders, and in two containers two processes may have one number.
    """
    try:
        files.write(path, fill, writer=f"rank{rank}")
    except OSError as error:
        raise UserError(f"file {path} cannot be written: {error.strerror}; fix: another path, or free space") from None
