"""The name smdistributed for the packages of algorun_smdistributed, where no other distribution has it.

AWS's closed library has the same name. The finder that algorun-smdistributed.pth adds to the end of sys.meta_path asks here
once all others have not found it. Modules are the same objects under both names, so each of them exists once.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAME, OWN = "smdistributed", __name__.partition(".")[0]


def spec(finder: Any) -> ModuleSpec | None:  # the type of finders is private to typeshed
    """What `import smdistributed` is to load: that of a finder which was added behind `finder`, else our own."""
    behind = sys.meta_path[sys.meta_path.index(finder) + 1 :]
    found = (each.find_spec(NAME, None, None) for each in behind)
    return next(filter(None, found), None) or _spec(NAME)


def _spec(name: str) -> ModuleSpec | None:
    own = OWN + name.removeprefix(NAME)
    try:
        found = importlib.util.find_spec(own)
    except ModuleNotFoundError:  # its parent is no package
        return None
    if found is None:
        return None
    is_package = found.submodule_search_locations is not None
    return importlib.util.spec_from_loader(name, _SameModule(own), origin=found.origin, is_package=is_package)


class _Submodules:
    """Finds `smdistributed.x` before any other finder would load its file once more. There only while the name is ours."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """The module of that name; None for all others."""
        return _spec(name) if name.startswith(f"{NAME}.") else None


class _SameModule(Loader):
    """Gives the module of our own name."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Imports it, if it is not there yet."""
        module = importlib.import_module(self._own)
        self._spec = module.__spec__
        if self._own == OWN:
            sys.meta_path.insert(0, _Submodules())
            _say()
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has run already. The import system has given it the spec of the other name meanwhile."""
        module.__spec__ = self._spec


def _say() -> None:
    """One line of the first rank says whose package it is."""
    if os.environ.get("RANK", "0") == "0":
        from importlib.metadata import PackageNotFoundError, version

        try:
            which = f" {version('algorun-smdistributed')}"
        except PackageNotFoundError:  # only its folder is on the path
            which = ""
        sys.stderr.write(f"algorun: smdistributed is algorun-smdistributed{which} ({os.path.dirname(__file__)})\n")
