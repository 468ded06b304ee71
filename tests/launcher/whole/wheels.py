"""Packages as wheels, which pip installs without an index and without a build."""

from __future__ import annotations

import zipfile
from pathlib import Path


def wheel(folder: Path, name: str, version: str, *, program: str = "") -> Path:
    """A wheel whose module says its version. `program`: a command that prints the interpreter, and that version."""
    folder.mkdir(parents=True, exist_ok=True)
    path, about = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as out:
        out.writestr(f"{name}/__init__.py", f"VERSION = {version!r}\n")
        out.writestr(
            f"{name}/cli.py", f"import sys, {name}\ndef main():\n    print('program', {name}.VERSION, sys.executable)\n"
        )
        out.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        out.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        if program:
            out.writestr(f"{about}/entry_points.txt", f"[console_scripts]\n{program} = {name}.cli:main\n")
        out.writestr(f"{about}/RECORD", "")
    return path
