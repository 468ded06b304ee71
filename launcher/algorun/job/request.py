"""The command line, parsed."""

from __future__ import annotations

from dataclasses import dataclass

ENGINES = ("native", "torchrun", "mpirun")
OWN = "algorun_"  # our own hyperparameters: algorun_engine, _slots, _restarts, _per_host, _args, _cwd


@dataclass(frozen=True, slots=True)
class Request:
    """The command line, parsed. `layout` is -j as (hosts, slots)."""

    from_job: bool = False
    target: str = ""
    args: tuple[str, ...] = ()
    module: bool = False
    engine: str = ""
    layout: tuple[int, int] | None = None
    slots: int | None = None
    restarts: int | None = None
    per_host: bool = False
    share_nothing: bool = False
    cwd: str = ""
    imagine_hosts: int | None = None
