"""Makes the strict device at a script's own `import torch`. Imports no torch."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from . import gpu_code, loader

BAD_CONFIGURATION = 64  # sysexits' EX_USAGE: the launcher's code for wrong settings
TRITON = (
    f"triton's kernels need a GPU: not possible with {loader.SETTING}; fix: leave out what asks for them, or "
    f"{loader.INSTEAD}"
)


class StrictFinder:
    """Stands in sys.meta_path: loads the device before torch is executed, patches torch afterwards, refuses triton."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module's own spec, from the finders behind this one; None for other modules."""
        if name == "triton":
            raise ImportError(TRITON, name=name)
        if name not in ("torch", gpu_code.CPP_EXTENSION):
            return None
        sys.meta_path.remove(self)
        try:
            afterwards = _patch_with(_made()) if name == "torch" else gpu_code.refuse_sources
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None:
            _execute_then(spec.loader, afterwards)
        return spec


def install() -> None:
    """Call it when the rank starts, before the script's first line."""
    sys.meta_path.insert(0, StrictFinder())
    gpu_code.refuse_packages()


def _made() -> Any:  # the library, which has no types
    try:
        return loader.load_library()
    except loader.NotPossible as error:
        print(error, file=sys.stderr, flush=True)
        raise SystemExit(BAD_CONFIGURATION) from None


def _patch_with(device: Any) -> Callable[[ModuleType], None]:  # the library again
    def patch(torch: ModuleType) -> None:
        from . import patches

        patches.install(device)

    return patch


def _execute_then(own: Any, afterwards: Callable[[ModuleType], None]) -> None:
    """Any: the loader's attribute is replaced, which no type of typing allows."""
    execute = own.exec_module

    def execute_and_patch(module: ModuleType) -> None:
        del own.exec_module
        execute(module)
        afterwards(module)

    own.exec_module = execute_and_patch
