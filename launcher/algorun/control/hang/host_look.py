"""What a host has seen of its ranks when it looked at them twice. Pure."""

from __future__ import annotations

from algorun.common.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostLook:
    """The ranks that stand, those that work, and what the first of these does.

    `node`: what a worker of an engine's node does, "" where all stand or there is no node. `worker`: the name of the one that
    may hold the others up, "" where none stands; `worker_does`: where it is; `worker_waits`: it only waits for others.
    """

    standing: tuple[int, ...] = ()
    working: tuple[int, ...] = ()
    does: str = ""
    node: str = ""
    worker: str = ""
    worker_does: str = ""
    worker_waits: bool = False
