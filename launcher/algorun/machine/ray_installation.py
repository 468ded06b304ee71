"""Finds Ray on this host, without importing it: an import takes more than half a second."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping

from .ray import Ray
from .system_files import listing

DISTRIBUTIONS = frozenset({"ray", "grpcio"})


def look(environ: Mapping[str, str], python: str = "") -> Ray | None:
    """Ray of the program `ray` beside `python`, the interpreter that runs the driver, or this one; else of the one on PATH."""
    beside = os.path.dirname(python or sys.executable)
    command = shutil.which("ray", path=beside) or shutil.which("ray", path=environ.get("PATH", os.defpath))
    if command is None:
        return None
    packages = _packages(command, environ)
    return Ray(command, packages.get("ray", ""), "grpcio" in packages)


def _packages(command: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Versions of ray and grpcio, from the names of the folders beside packages. The first folder of a path wins."""
    base = os.path.dirname(os.path.dirname(os.path.abspath(command)))
    libraries = [f"{base}/{lib}/{item}/site-packages" for lib in ("lib", "lib64") for item in listing(f"{base}/{lib}")]
    found: dict[str, str] = {}
    for folder in [*environ.get("PYTHONPATH", "").split(os.pathsep), base, *libraries, *sys.path]:
        for item in listing(folder) if folder else ():
            if item.endswith(".dist-info"):
                name, _, version = item.removesuffix(".dist-info").partition("-")
                if name in DISTRIBUTIONS:
                    found.setdefault(name, version)
    return found
