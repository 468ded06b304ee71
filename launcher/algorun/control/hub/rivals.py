"""Other hosts that lead the job by their own files: hosts whose files list different orders. Pure.

Each of them runs a hub, so none would ever come to the other. A leader asks the hosts that it misses, and says hello to
a hub there as a follower would. Only one hub may judge: of the leaders that know of each other, the one whose host's
name sorts first, once it has asked all hosts that it misses. The others take its verdict.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from algorun.control.wire.messages import Hello

FIRST_S = 1.5  # until the first look: the hosts of a job that starts as it should have come by then
LONGEST_PAUSE_S = 60.0  # between two looks; each pause is twice as long as the one before
MOST_ASKED = 32  # hosts in one look, a thread each


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
        """The leader whose hello is to be compared with this one's, "" where another leader judges.

        `answered` are the leaders that were found where missing hosts should be.
        """
        if not self.hellos or self._leader > min({*self.hellos, *answered}):
            return ""
        return min(self.hellos)


class Looks:
    """The leader's looks at the hosts that it misses. A look is over once every host in it has answered, or cannot.

    `answered` are the leaders that were found so far and have no verdict yet.
    """

    def __init__(self) -> None:
        self.answered: set[str] = set()
        self.pause_s = FIRST_S
        """from the start of one look to the start of the next"""
        self.number = 0
        """of the look that was begun last"""
        self._awaited: set[str] = set()

    def begin(self, hosts: Iterable[str]) -> None:
        """A look at these hosts."""
        self._awaited = set(hosts)
        self.number += 1
        self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)

    def leads(self, host: str) -> None:
        """This host leads too, and waits for a verdict."""
        self.answered.add(host)
        self._awaited.discard(host)

    def unreachable(self, host: str) -> None:
        """This look has made no connection to this host."""
        self._awaited.discard(host)

    def gone(self, host: str) -> None:
        """The connection to this host has ended: nothing more is to come from it."""
        self.answered.discard(host)
        self._awaited.discard(host)

    @property
    def complete(self) -> bool:
        """True where nothing is awaited any more."""
        return not self._awaited
