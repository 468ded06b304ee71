"""Processes that the kernel has killed for memory below no rank of ours, such as Ray's workers, as their hosts tell. Pure.

A driver only hears that a worker has died. The host of the worker knows why.
"""

from __future__ import annotations

import re

from algorun.common.fast_dataclasses import replace
from algorun.control.failures.failure import Failure, listed

# How a driver hears of a process of its cluster that has vanished, with the texts of Ray 2.60.0.
WORKER_GONE = re.compile(
    r"\bray\.exceptions\.(ActorDiedError|ActorUnavailableError|WorkerCrashedError|OwnerDiedError|LocalRayletDiedError)\b"
    r"|\bRay's process \w+ ended by signal 9\b|\bray start ended with 137\b"
)
PLACE = re.compile(r"\bon (\S+)\)$")  # as ray_errors.py writes it
FEWER_TASKS = "run fewer tasks at a time (num_cpus=, memory=), or use a larger instance"


class MemoryKills:
    """What hosts have told of one attempt."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def heard(self, host: str, text: str) -> None:
        """`text`: how many processes, and what the limit is."""
        self._told[host] = text

    def explain(self, failure: Failure) -> Failure:
        """The failure with a hint, if it says that a process has vanished, and a host where it may have been has told."""
        if failure.hint or not WORKER_GONE.search(f"{failure.message}\n{failure.traceback}"):
            return failure
        named = failure.host if failure.rank is None else "".join(PLACE.findall(failure.message))
        hosts = sorted(host for host in self._told if named in ("", host))
        if not hosts:
            return failure
        more = f" (also on {listed(hosts[1:])})" if len(hosts) > 1 else ""
        return replace(failure, hint=f"out of memory on {hosts[0]}: {self._told[hosts[0]]}{more}; {FEWER_TASKS}")
