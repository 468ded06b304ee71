"""The command line, parsed."""

from __future__ import annotations

from dataclasses import dataclass


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
