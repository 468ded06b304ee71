"""Other hosts that lead the job by their own files: hosts whose files list different orders. Pure.

Each of them runs a hub, so none would ever come to the other. A leader asks the hosts that it misses, and says hello to
a hub there as a follower would. Two hubs would judge at the same time, so only one may: of those that know of each
other the one whose host's name sorts first, once it has asked all the hosts that it misses. The others hear from it.
"""

from __future__ import annotations

from collections.abc import Collection

from .messages import Hello


class Rivals:
    """The other leaders that have said hello to this one, and wait for a verdict."""

    def __init__(self, leader: str) -> None:
        self._leader = leader
        self.hellos: dict[str, Hello] = {}

    def takes(self, hello: Hello) -> bool:
        """True for the hello of another leader, which is kept."""
        first = hello.digest.get("hosts", "").partition(",")[0]
        if first != hello.host or hello.host == self._leader:
            return False
        self.hellos[hello.host] = hello
        return True

    def refusal(self, host: str) -> str:
        """Why this host cannot come, "" if it can."""
        return f"{host} has said hello already" if host in self.hellos else ""

    def judge(self, answered: Collection[str]) -> str:
        """The leader whose hello is to be held against this one's, "" where the verdict is another leader's.

        `answered` are the leaders that were found where missing hosts should be.
        """
        if not self.hellos or self._leader > min(*self.hellos, *answered):
            return ""
        return min(self.hellos)
