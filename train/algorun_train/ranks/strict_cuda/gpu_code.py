"""Refuses code that is compiled for GPUs: sources of torch.utils.cpp_extension, and packages that link CUDA's libraries.

Imports no torch.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable
from functools import wraps
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from types import ModuleType
from typing import Any

from .loader import FIX

Given = Any  # whatever a script gives to a function of torch, or gets from one
Patched = Any  # a module or class whose functions are replaced, which types do not allow

CPP_EXTENSION = "torch.utils.cpp_extension"
CUDA_SUFFIXES = (".cu", ".cuh")  # torch's own choice of the sources that it gives to nvcc
NO_CUDA_HOME = f"{CPP_EXTENSION} asks for CUDA's compiler and headers (CUDA_HOME): {FIX}"
# The loader's words for a library that it does not find, if that is CUDA's or of a torch that is built with it.
NOT_FOUND = re.compile(
    r"\b(lib(?:cuda|cudart|cublas|cublasLt|cudnn\w*|cufft|curand|cusolver|cusparse|cusparseLt|cupti|nccl|nvrtc|nvJitLink|"
    r"nvToolsExt|nvshmem\w*|c10_cuda|torch_cuda)\.so[.\d]*): cannot open shared object file"
)


def refuse_packages() -> None:
    """From now on importing a module that links CUDA's libraries is an ImportError that says why."""
    loader: Patched = ExtensionFileLoader
    own = loader.create_module

    @wraps(own)
    def create_module(self: ExtensionFileLoader, spec: ModuleSpec) -> Given:
        try:
            return own(self, spec)
        except ImportError as error:
            if text := of_gpus(spec.name, str(spec.origin), error):
                raise ImportError(text, name=spec.name, path=spec.origin) from None
            raise

    loader.create_module = create_module


def of_gpus(name: str, path: str, error: Exception) -> str:
    """Why the library in the file `path` cannot be loaded here; "" if the error is about something else than CUDA."""
    found = NOT_FOUND.search(f"{error}\n{error.__cause__}")  # torch's own error wraps the one of the loader
    return f"{name} ({path}) is compiled for GPUs, and links {found[1]}: {FIX}" if found else ""


def refuse_libraries(own: Callable[[Given], None]) -> Callable[[Given], None]:
    """torch.ops.load_library, with the same words."""

    @wraps(own)
    def load_library(path: Given) -> None:
        try:
            own(path)
        except OSError as error:
            if text := of_gpus(os.path.basename(path), os.fspath(path), error):
                raise OSError(text) from None
            raise

    return load_library


def refuse_sources(cpp_extension: ModuleType) -> None:
    """Patches torch.utils.cpp_extension: what it would compile for GPUs is one error; C++ is compiled as before."""
    changed: Patched = cpp_extension
    for name in ("load", "load_inline"):
        setattr(changed, name, _without_gpus(name, getattr(changed, name)))
    changed.CUDAExtension = _no_extension
    changed._join_cuda_home = _no_cuda_home
    changed.CUDA_NOT_FOUND_MESSAGE = NO_CUDA_HOME  # of the RuntimeError with which BuildExtension begins


def _without_gpus(function: str, own: Callable[..., Given]) -> Callable[..., Given]:
    signature = inspect.signature(own)

    @wraps(own)
    def load(*args: Given, **kwargs: Given) -> Given:
        given = signature.bind_partial(*args, **kwargs).arguments
        if what := _asks_for_gpus(given):
            raise RuntimeError(f"{CPP_EXTENSION}.{function}({given.get('name')!r}) compiles for GPUs ({what}): {FIX}")
        return own(*args, **kwargs)

    return load


def _asks_for_gpus(given: dict[str, Given]) -> str:
    """The argument, or the source, that asks for kernels for GPUs; "" if none does."""
    if given.get("with_cuda"):
        return "with_cuda=True"
    if given.get("cuda_sources"):
        return "cuda_sources"
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = given.get("sources") or ()
    for each in [sources] if isinstance(sources, str | os.PathLike) else sources:
        if os.path.splitext(each)[1] in CUDA_SUFFIXES:
            return os.fspath(each)
    return ""


def _no_extension(name: str, *args: Given, **kwargs: Given) -> Given:
    raise RuntimeError(f"{CPP_EXTENSION}.CUDAExtension({name!r}) compiles for GPUs: {FIX}")


def _no_cuda_home(*paths: str) -> str:
    """Torch's own error here is an OSError."""
    raise OSError(NO_CUDA_HOME)
