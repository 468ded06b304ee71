"""algorun.should_stop(): this process's stop flag, the other ranks, and their agreement."""

from __future__ import annotations

from . import peers
from .stop_agreement import Agreement, show_life
from .stop_flag import StopFlag


class CommonStop:
    """The state behind should_stop(). After the first True it always answers True and exchanges nothing: other ranks
    may have ended."""

    def __init__(self, flag: StopFlag) -> None:
        self._flag = flag
        self._peers: peers.TorchPeers | peers.MpiPeers | None = None
        self._agreement: Agreement | None = None
        self._stopped = False

    def poll(self) -> bool:
        """The answer for this step, equal on all ranks."""
        if self._stopped:
            return True
        if not self._flag.installed:
            try:
                self._flag.install()
            except ValueError:  # not the main thread: this rank learns of a stop from the others only
                pass
        found = peers.find(self._peers)
        if found is not self._peers:
            self._peers, self._agreement = found, Agreement(found, self._flag) if found else None
        self._stopped = self._agreement.poll().stop if self._agreement else self._alone()
        return self._stopped

    def _alone(self) -> bool:
        show_life()
        return self._flag.wanted
