"""smp.state: what libraries such as transformers read of the job after smp.init()."""

from __future__ import annotations

from .session import context


class Config:
    """The job's parameters by their names in mp_parameters, each as it was given or else by its default."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return context().mp.value(name)
        except KeyError:
            raise AttributeError(f"smp.state.cfg has no parameter {name!r}") from None


class ModuleManager:
    """The library's registry of distributed modules, of which there are none without tensor parallelism."""

    translate_functions: tuple[()] = ()
    """pairs that translate a state dict from and to the library's own modules"""


class SmpState:
    """`cfg` and `module_manager`. UserError for a parameter before smp.init()."""

    def __init__(self) -> None:
        self.cfg = Config()
        self.module_manager = ModuleManager()


state = SmpState()
