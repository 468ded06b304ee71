"""The package `train` beside this one, whatever a user's own train.py is: theirs is first on the module path.

It is loaded under a name of its own. That works because nothing in it imports itself by name, only relatively.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ALIAS = "algorun_train"


def load(name: str) -> ModuleType:
    """A module of the package, such as "parallel.split"."""
    if ALIAS not in sys.modules:
        here = Path(__file__).parent
        # Installed, the two packages lie side by side; in a checkout this one is one folder further down.
        folder = next(
            root / "train" for root in (here.parent, here.parent.parent) if (root / "train/mesh.py").is_file()
        )
        spec = importlib.util.spec_from_file_location(
            ALIAS, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[ALIAS] = package
        spec.loader.exec_module(package)
    return importlib.import_module(f"{ALIAS}.{name}")
