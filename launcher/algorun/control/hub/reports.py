"""What all hosts report while ranks run, and what follows from it. Pure."""

from __future__ import annotations

from collections.abc import Collection

from algorun.common.fast_dataclasses import replace
from algorun.control.failures.non_finite import NonFiniteReports
from algorun.control.wire.messages import Verdict

from .host_loads import HostLoads
from .pace import Paces

UNMATCHED = (
    "ALGORUN_PROGRESS has matched no line of any rank so far; until it does, every line counts as progress; fix: an expression"
    " that is found in a line that your program prints again and again"
)


class HubReports:
    """The `paces` of all ranks, the `loads` of all hosts, and values that are not finite."""

    def __init__(self) -> None:
        self.paces, self.loads, self.non_finite = Paces(), HostLoads(), NonFiniteReports()
        self._unmatched: set[str] = set()
        self._warned = False

    def unmatched(self, host: str, hosts: Collection[str]) -> str:
        """No line of a host's ranks matches ALGORUN_PROGRESS. Returns the warning once this is so of all `hosts` with ranks."""
        self._unmatched.add(host)
        if self._warned or not self._unmatched >= set(hosts):
            return ""
        self._warned = True
        return UNMATCHED

    def add_to(self, verdict: Verdict, attempt: int) -> Verdict:
        """The verdict, with what the reports say at the job's end, after this attempt."""
        return replace(self.paces.add_to(verdict, attempt), data=self.loads.at_the_end(attempt))
