"""What hosts print while they wait for each other: rarely, and nothing in a job that starts as it should. Pure."""

from __future__ import annotations

TOKEN = "the job's token (ALGORUN_TOKEN, or the training job's ARN; the same on all hosts)"
FIRST_S = 10.0  # of waiting, until the first line
NEXT_S = 60.0  # until the second one; each further pause is twice as long


class Waiting:
    """When the next line about a wait is due."""

    def __init__(self, now: float) -> None:
        self.due_at = now + FIRST_S
        self._pause_s = NEXT_S

    def due(self, now: float) -> bool:
        """True once for every line."""
        if now < self.due_at:
            return False
        self.due_at, self._pause_s = now + self._pause_s, 2 * self._pause_s
        return True


class Reach:
    """What a follower has seen so far of the place where the leader's hub should answer.

    Each method returns a line to print, "" for none.
    """

    def __init__(self, now: float, leader: str, where: tuple[str, int]) -> None:
        self._leader, self._where = leader, where
        self._waiting = Waiting(now)
        self._warned: set[str] = set()
        self._other_token = False
        self._words = False  # whether `seen` names what a stranger sent
        self.seen = ""
        """the last thing, for the failure's text"""

    @property
    def due_at(self) -> float:
        """When `waits` has something to say."""
        return self._waiting.due_at

    def failed(self, reason: str, address: str = "") -> None:
        """No connection was made, or the one that was made has ended. That another token was seen before is worth more."""
        if not self._other_token:
            self.seen, self._words = f"{self._place(address)}: {reason}", False

    def silent(self, address: str, seconds: float) -> str:
        """A connection was made, and nothing came."""
        place = self._place(address)
        self.seen, self._words = self._without_line(address), False
        return self._warn(f"{place} has accepted a connection and said nothing for {seconds:g} s")

    def alien(self, address: str, sent: str) -> str:
        """What came is no hub's word; `sent` is shown, so it is escaped and cut already."""
        place = self._place(address)
        self.seen, self._words = self._without_line(address, sent), True
        return self._warn(f"{place} is no algorun hub, it sent {sent}")

    def unproven(self, address: str, sent: str) -> str:
        """What answers greets as a hub does, and does not prove that it holds the job's token. `sent` is shown."""
        self.seen, self._other_token, self._words = self._without_proof(address, sent), True, bool(sent)
        return self._warn(self.seen)

    def with_open(self, address: str, sent: str, *, greeted: bool) -> str:
        """What was seen, where the wait ends over an open connection; `sent` is what came since its last whole line.

        A connection that is a moment old has sent nothing yet: what an earlier one sent is worth more.
        """
        if self._words and not sent:
            return self.seen
        return self._without_proof(address, sent) if greeted else self._without_line(address, sent)

    def _without_proof(self, address: str, sent: str) -> str:
        """The text for a connection over which a hub has greeted, and proved nothing; `sent` as in `_without_line`."""
        says = f"; it sent {sent}" if sent else ""
        return f"{self._place(address)} does not prove that it holds {TOKEN}{says}"

    def _without_line(self, address: str, sent: str = "") -> str:
        """The text for a connection over which no hub has spoken; `sent` is what came, escaped and cut."""
        if sent:
            return f"{self._place(address)} is another program's: it sent {sent}"
        return f"{self._place(address)} accepts connections and says nothing: another program may have the port"

    def waits(self, now: float) -> str:
        """The line of a wait, where one is due."""
        if not self._waiting.due(now):
            return ""
        return f"waiting for {self._leader}, the leader ({self.seen or f'{self._place()}: no answer yet'})"

    def _place(self, address: str = "") -> str:
        return f"{address or self._where[0]} port {self._where[1]}"

    def _warn(self, what: str) -> str:
        """Each thing once, however often it is tried."""
        if what in self._warned or len(self._warned) > 4:
            return ""
        self._warned.add(what)
        return (
            f"warning: {self._leader}, the leader: {what}; another program may have the port "
            "(ALGORUN_CONTROL_PORT, the same on all hosts); this host goes on trying"
        )
