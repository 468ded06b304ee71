"""The names smdistributed and horovod for packages of algorun_smdistributed, where no other distribution has them.

AWS's closed library has the first name, Horovod the second; that one is offered only beside TensorFlow. The finder that
algorun-smdistributed.pth adds to the end of sys.meta_path asks here once all others have not found a name. Modules are the same
objects under both names, so each of them exists once.

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
HOROVOD, ITS_FRAMEWORK = "horovod", "tensorflow"
PACKAGES = {NAME: OWN, HOROVOD: f"{OWN}.{HOROVOD}"}


def spec(finder: Any, name: str = NAME) -> ModuleSpec | None:  # the type of finders is private to typeshed
    """What an import of a name of PACKAGES is to load: that of a finder which was added behind `finder`, else our own.

    None for horovod without TensorFlow: its other parts are not ours, and programs look for it to see what they may use.
    """
    behind = sys.meta_path[sys.meta_path.index(finder) + 1 :]
    found = next(filter(None, (each.find_spec(name, None, None) for each in behind)), None)
    if found is not None or (name == HOROVOD and not _is_there(ITS_FRAMEWORK)):
        return found
    return _spec(name)


def _is_there(module: str) -> bool:
    if module in sys.modules:
        return sys.modules[module] is not None
    return importlib.util.find_spec(module) is not None


def say_owner(watch: Any) -> None:
    """A line on stderr if `import smdistributed` loads another distribution's package. `watch` is the finder that asks."""
    finders = (each for each in sys.meta_path if each is not watch and hasattr(each, "find_spec"))
    found = next(filter(None, (each.find_spec(NAME, None, None) for each in finders)), None)
    if found is not None and not isinstance(found.loader, _SameModule):  # ours writes its line once it is loaded
        folders = [*(found.submodule_search_locations or ()), os.path.dirname(found.origin or "")]
        sys.stderr.write(f"algorun: smdistributed is another distribution's ({folders[0]})\n")


def _spec(name: str) -> ModuleSpec | None:
    top, dot, rest = name.partition(".")
    own = f"{PACKAGES[top]}{dot}{rest}"
    try:
        found = importlib.util.find_spec(own)
    except ModuleNotFoundError:  # its parent is no package
        return None
    if found is None:
        return None
    is_package = found.submodule_search_locations is not None
    return importlib.util.spec_from_loader(name, _SameModule(own), origin=found.origin, is_package=is_package)


class _Submodules:
    """Finds modules below a name before any other finder would load their files once more. There only where the name is ours."""

    def __init__(self, top: str) -> None:
        self._top = top

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """The module of that name; None for all others."""
        return _spec(name) if name.startswith(f"{self._top}.") else None


class _SameModule(Loader):
    """Gives the module of our own name."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Imports it, if it is not there yet."""
        module = importlib.import_module(self._own)
        self._spec = module.__spec__
        for top, package in PACKAGES.items():
            if self._own == package:
                sys.meta_path.insert(0, _Submodules(top))
                _say(top)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has run already. The import system has given it the spec of the other name meanwhile."""
        module.__spec__ = self._spec


def _say(name: str) -> None:
    """One line of the first rank says whose package it is."""
    if os.environ.get("RANK", "0") == "0":
        from importlib.metadata import PackageNotFoundError, version

        try:
            which = f" {version('algorun-smdistributed')}"
        except PackageNotFoundError:  # only its folder is on the path
            which = ""
        sys.stderr.write(f"algorun: {name} is algorun-smdistributed{which} ({os.path.dirname(__file__)})\n")
