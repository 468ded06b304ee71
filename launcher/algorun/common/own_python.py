"""A PATH for programs that call `python`: they get the interpreter of their job, not another one of this machine."""

from __future__ import annotations

import os

NAMES = ("python", "python3")


def path(python: str, before: str) -> str:
    """The PATH `before`, with the folder of this interpreter first unless its `python` and `python3` are found anyway."""
    folder = os.path.dirname(python)
    here = [name for name in NAMES if os.path.exists(f"{folder}/{name}")]
    if all(_found(name, before) == os.path.realpath(folder) for name in here):
        return before
    return f"{folder}{os.pathsep}{before}" if before else folder


def _found(name: str, searched: str) -> str:
    """The folder in which a program is found."""
    folders = (folder for folder in searched.split(os.pathsep) if os.access(os.path.join(folder, name), os.X_OK))
    return os.path.realpath(next(folders, ""))
