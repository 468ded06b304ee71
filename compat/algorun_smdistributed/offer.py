"""The name smdistributed for the packages of algorun_smdistributed, where no other distribution has it.

AWS's closed library has the same name. The finder that algorun-smdistributed.pth adds to the end of sys.meta_path asks here
once all others have not found it. Modules are the same objects under both names, so each of them exists once.

That finder hears nothing where another one finds the name. So in the first rank a second one stands before all others; it finds
nothing and has the line written that says whose package it is. Other processes do without: each import asks each finder. In
a virtual environment Python executes a .pth file twice.
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


def say_owner(watch: Any) -> None:
    """A line on stderr if `import smdistributed` loads another distribution's package. `watch` is the finder that asks."""
    finders = (each for each in sys.meta_path if each is not watch and hasattr(each, "find_spec"))
    found = next(filter(None, (each.find_spec(NAME, None, None) for each in finders)), None)
    if found is not None and not isinstance(found.loader, _SameModule):  # ours writes its line once it is loaded
        folders = [*(found.submodule_search_locations or ()), os.path.dirname(found.origin or "")]
        sys.stderr.write(f"algorun: smdistributed is another distribution's ({folders[0]})\n")


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
