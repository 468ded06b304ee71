"""What a file may hold beside tensors and Python's own plain data: an argparse.Namespace, and NumPy's scalars, such as a
number of parameters from np.prod. Training scripts keep both beside their checkpoints.

A pickled scalar is a type and its bytes. Both are read here, by functions that build nothing else: arrays, structured
types and types of Python objects are refused, and so is any type that does not fit its bytes. A type without bytes is
refused too: what stands for numpy.dtype here is none.
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

Given = Any  # whatever a file's pickle says: only checks tell what it is

KINDS = "biufcSU"  # of dtype.kind: truth values, numbers and texts
Global: TypeAlias = Callable[..., Given] | tuple[Callable[..., Given], str]
"""as torch.serialization.add_safe_globals takes it"""
SCALAR = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar")  # NumPy 1 and 2


class ScalarType:
    """A pickled numpy.dtype: its name, and then its byte order and unit."""

    def __init__(self, name: Given, *_: Given) -> None:
        self._type = _checked(name)

    def __setstate__(self, state: Given) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else "="
        if order in (">", "<"):
            self._type = np.dtype(order + self._type.str[1:])

    def scalar(self, data: Given) -> np.generic:
        if not isinstance(data, bytes) or len(data) != self._type.itemsize:
            raise pickle.UnpicklingError(f"a NumPy scalar of type {self._type} with other bytes")
        try:
            found: np.generic = np.frombuffer(data, self._type)[0] if data else self._type.type()
        except Exception as error:  # SystemError, say, for a text with no letters of Unicode
            raise pickle.UnpicklingError(f"no NumPy scalar of type {self._type}: {error}") from None
        return found


def _checked(name: Given) -> np.dtype:
    try:
        found = np.dtype(name) if isinstance(name, str) else None
    except Exception:  # NumPy raises more than TypeError for some texts
        found = None
    if found is None or found.kind not in KINDS:
        raise pickle.UnpicklingError(f"no type of a NumPy scalar: {name!r}"[:200])
    return found


def _scalar(kind: Given, data: Given) -> np.generic:
    if isinstance(kind, np.dtype):  # the script has allowed these
        kind = ScalarType(kind.str)
    if not isinstance(kind, ScalarType):
        raise pickle.UnpicklingError("a NumPy scalar without a type")
    return kind.scalar(data)


ALLOWED: list[Global] = [
    argparse.Namespace,
    ScalarType,
    (ScalarType, "numpy.dtype"),
    *((_scalar, name) for name in SCALAR),
]


def beside(allowed: Sequence[Global]) -> Iterator[list[Global]]:
    """What to allow for plain data, where a script has `allowed` some itself: one list after the other.

    At first only names that the script's lack: with its own numpy.dtype it can load arrays. Then none of the script's in
    the place of ours: they may be too few for scalars.
    """
    theirs, ours = ({_name(each): each for each in some} for some in (allowed, ALLOWED))
    yield list((ours | theirs).values())
    if ours.keys() & theirs.keys():
        yield list((theirs | ours).values())


def _name(allowed: Global) -> str:
    """As torch has it in files."""
    return allowed[1] if isinstance(allowed, tuple) else f"{allowed.__module__}.{allowed.__qualname__}"


def has_scalar_type(value: Given) -> bool:
    """Whether a ScalarType is left in what was loaded, anywhere in it."""
    try:
        _Search(_Nowhere()).dump(value)
    except _Found:
        return True
    except Exception:  # an object of the script's own class that pickle does not take: it is searched up to there
        return False
    return False


class _Found(Exception):
    pass


class _Nowhere:
    def write(self, data: Given) -> None:
        """Keeps nothing."""


class _Search(pickle.Pickler):
    def persistent_id(self, value: Given) -> int | None:
        """Of every object that pickle comes to. Tensors are not looked into."""
        if isinstance(value, ScalarType):
            raise _Found
        return 0 if isinstance(value, torch.Tensor) else None
