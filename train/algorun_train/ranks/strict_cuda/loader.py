"""Makes the strict device in this process, before torch is imported. Imports no torch until it has been made."""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
import re
import sys
from pathlib import Path

from . import build

SETTING = "ALGORUN_CUDA_ON_CPU=strict"
INSTEAD = "ALGORUN_CUDA_ON_CPU=1, or unset it"
FIX = f"not possible with {SETTING}; fix: leave it out, or {INSTEAD}"
_loaded: ctypes.CDLL | None = None


class NotPossible(Exception):
    """The strict device cannot be made here; the text is one line with the reason and the fix."""


def is_loaded() -> bool:
    """Whether this process has the strict device."""
    return _loaded is not None


def load() -> ctypes.CDLL:
    """Compiles the device if need be, loads it and imports torch. Returns its library. Raises NotPossible.

    Call it before the process imports torch; a second call does nothing.
    """
    device = load_library()
    from . import patches  # imports torch

    patches.install(device)
    return device


def load_library() -> ctypes.CDLL:
    """The first half of `load`: torch is not imported yet."""
    global _loaded
    if _loaded is None:
        if "torch" in sys.modules:
            raise NotPossible(
                f"{SETTING}: torch was imported before; fix: start the script with algorun simulate or run"
            )
        folder, version = _torch()
        refuse_a_gpu(version)
        try:
            _loaded = ctypes.CDLL(str(build.library(folder, version)), mode=ctypes.RTLD_GLOBAL)
        except build.CannotBuild as error:
            raise NotPossible(f"{SETTING}: {error}; or {INSTEAD}") from None
        except OSError as error:
            raise NotPossible(f"{SETTING}: the device cannot be loaded: {error}; fix: {INSTEAD}") from None
    return _loaded


def _torch() -> tuple[Path, str]:
    """Folder and version text of the installed torch, which is not imported for it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise NotPossible(f"{SETTING}: torch is not installed; fix: pip install torch")
    folder = Path(spec.origin).parent
    return folder, (folder / "version.py").read_text()


def refuse_a_gpu(version: str) -> None:
    if glob.glob("/dev/nvidia[0-9]*") and os.environ.get("CUDA_VISIBLE_DEVICES", "0") != "":
        raise NotPossible(
            f"{SETTING}: this machine has a GPU; fix: unset it, or hide the GPU with CUDA_VISIBLE_DEVICES="
        )
    if re.search(r"^(cuda|hip)\b[^=]*= *['\"]", version, re.MULTILINE):
        raise NotPossible(
            f"{SETTING}: this torch is built for GPUs, and its own kernels stand in the way; fix: the build for the CPU "
            "(pip install torch --index-url https://download.pytorch.org/whl/cpu), or " + INSTEAD
        )
