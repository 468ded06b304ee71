"""Compiles device.cpp against the headers of the torch that is installed here, once. Imports no torch."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("device.cpp")
COMPILER = "g++"
FLAGS = ("-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden")
LIMIT_S = 300  # compiling takes 15 s of CPU on a core of 2024


class CannotBuild(Exception):
    """The device cannot be compiled on this machine; the text says why and what to do."""


def library(torch: Path, version: str) -> Path:
    """The compiled device for the torch in the folder `torch`; compiles it if the cache has none. Raises CannotBuild.

    The cache is `$XDG_CACHE_HOME/algorun`, by default `~/.cache/algorun`. Ranks that start together compile once.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "algorun")
    key = hashlib.sha256(SOURCE.read_bytes() + f"\0{version}\0{torch}\0{FLAGS}".encode()).hexdigest()[:20]
    made = folder / f"strict-cuda-{key}.so"
    if made.exists():
        return made
    if shutil.which(COMPILER) is None:
        raise CannotBuild(f"it needs {COMPILER}, which is not on PATH; fix: apt-get install g++")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "strict-cuda.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                _compile(torch, made)
    except OSError as error:
        raise CannotBuild(
            f"{folder}: {error.strerror}; fix: XDG_CACHE_HOME with a folder that can be written"
        ) from None
    return made


def _compile(torch: Path, made: Path) -> None:
    aside = made.with_suffix(f".{os.getpid()}")  # not common.files.aside: the compiler writes the file
    include, libraries = torch / "include", torch / "lib"
    command = [COMPILER, *FLAGS, str(SOURCE), "-o", str(aside), f"-I{include}", f"-I{include}/torch/csrc/api/include",
               f"-L{libraries}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{libraries}"]  # fmt: skip
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise CannotBuild(f"{COMPILER} had not ended after {LIMIT_S} s") from None
    if run.returncode:
        first = next((line for line in run.stderr.splitlines() if "error" in line), run.stderr.strip()[-200:])
        raise CannotBuild(f"{COMPILER} fails with this torch: {first}; fix: torch 2.13, which it was written for")
    aside.rename(made)
