"""What `model.module` is: the script's module, one level further away."""

from __future__ import annotations

from torch import nn

from algorun_smdistributed.script_types import Given, Result


class ModuleView:
    """Stands for the script's module; only its own `module` is another: the script's module itself.

    AWS's library has DistributedDataParallel in this place, so scripts write `model.module.module`, and transformers'
    `unwrap_model` takes the attribute `module` as long as there is one. Whatever is read, set, called or registered here is
    the module's, so the two never differ; isinstance sees the module's class. What Python asks of the class alone, such as
    `len` or an index, is not passed on, as with DistributedDataParallel.
    """

    __slots__ = ("__weakref__", "_view_of")

    def __init__(self, module: nn.Module) -> None:
        object.__setattr__(self, "_view_of", module)

    @property
    def module(self) -> nn.Module:
        """The script's own module."""
        found: nn.Module = object.__getattribute__(self, "_view_of")
        return found

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.module)

    def __call__(self, *args: Given, **kwargs: Given) -> Result:
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Result:
        return getattr(self.module, name)

    def __setattr__(self, name: str, value: Given) -> None:
        setattr(self.module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.module, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self.module), "module"})

    def __repr__(self) -> str:
        return repr(self.module)

    def __reduce__(self) -> tuple[type, tuple[nn.Module]]:
        return ModuleView, (self.module,)
