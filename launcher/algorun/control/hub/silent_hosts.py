"""Hosts on which no rank shows progress, and what the hub asks them: one object for an attempt. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection

from algorun.control.hang import standstill
from algorun.control.hang.host_look import HostLook
from algorun.control.hang.standstill import COUNTS_S, PAUSE_S
from algorun.control.wire.messages import ANSWER_S, LookClosely

SAMPLING_S = 2.0  # for the looks themselves, on a busy machine


class SilentHosts:
    """Once all hosts are silent, they are asked to look at their ranks; again after each further limit of silence."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._pause_s = min(PAUSE_S, limit_s)
        self._since: dict[str, float] = {}  # of each silent host: its last sign of progress, by the hub's clock
        self._asked_at = -math.inf
        self._looks: dict[str, HostLook] | None = None  # None: nobody is being asked
        self._warned = False
        self.worker = ""
        """the worker of an engine's nodes that holds up a job that stands still, and where it is"""

    @property
    def count(self) -> int:
        """How many hosts are silent."""
        return len(self._since)

    def heard(self, now: float, host: str, idle_s: float) -> None:
        """A host has become silent, `idle_s` after its last sign of progress; or it goes on (0.0), and a question is void."""
        if idle_s:
            self._since[host] = now - idle_s
        else:
            self._since.pop(host, None)
            self._looks = None

    def deadline(self, hosts: Collection[str]) -> float:
        """When `due` or `overdue` has something to say; `hosts` have ranks that run."""
        if self._looks is not None:
            return self._asked_at + COUNTS_S + self._pause_s + SAMPLING_S + ANSWER_S
        return self._asked_at + self._limit_s if self._all_silent(hosts) else math.inf

    def due(self, now: float, hosts: Collection[str]) -> LookClosely | None:
        """The question, where it is due: to all hosts of the job."""
        if self._looks is not None and now >= self.deadline(hosts):  # somebody has not answered: nothing is known
            self._looks = None
        if self._looks is not None or not self._all_silent(hosts) or now < self.deadline(hosts):
            return None
        self._asked_at, self._looks = now, {}
        return LookClosely(self._pause_s)

    def looked(self, now: float, host: str, look: HostLook, asked: Collection[str]) -> float | str:
        """What a host has seen. Once all that were `asked` have answered: the seconds of silence if all ranks stand, else a
        warning to print once; "" for neither."""
        if self._looks is None:
            return ""
        self._looks[host] = look
        if not self._looks.keys() >= set(asked):
            return ""
        looks, self._looks = self._looks, None
        idle_s = now - max(self._since.values(), default=now)
        if standstill.all_stand(looks.values()):
            self.worker = standstill.worker_that_stands(looks)
            return idle_s
        text = "" if self._warned else standstill.part_stands(looks, idle_s)
        self._warned = self._warned or bool(text)
        return text

    def _all_silent(self, hosts: Collection[str]) -> bool:
        return bool(hosts) and self._since.keys() >= set(hosts)
