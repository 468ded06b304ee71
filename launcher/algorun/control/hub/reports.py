"""What all hosts report while ranks run, and what follows from it. Pure."""

from __future__ import annotations

from algorun.common.fast_dataclasses import replace
from algorun.control.wire.messages import Verdict

from .host_loads import HostLoads
from .pace import Paces


class HubReports:
    """The `paces` of all ranks and the `loads` of all hosts."""

    def __init__(self) -> None:
        self.paces, self.loads = Paces(), HostLoads()

    def add_to(self, verdict: Verdict, attempt: int) -> Verdict:
        """The verdict, with what the reports say at the job's end, after this attempt."""
        return replace(self.paces.add_to(verdict, attempt), data=self.loads.at_the_end(attempt))
