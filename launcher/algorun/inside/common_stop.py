"""One process's part in the common stop: its flag, its peers, and what they have agreed on."""

from __future__ import annotations

from . import peers
from .stop_agreement import Agreement, show_life
from .stop_flag import StopFlag


class CommonStop:
    """Behind should_stop(). Once it has said True it goes on saying so, and asks nobody: the others have left."""

    def __init__(self, flag: StopFlag) -> None:
        self._flag = flag
        self._peers: peers.TorchPeers | peers.MpiPeers | None = None
        self._agreement: Agreement | None = None
        self._stopped = False

    def poll(self) -> bool:
        """The common answer after one more step."""
        if self._stopped:
            return True
        if not self._flag.installed:
            try:
                self._flag.install()
            except ValueError:  # not the main thread: the others' wishes still count
                pass
        found = peers.find(self._peers)
        if found is not self._peers:
            self._peers, self._agreement = found, Agreement(found, self._flag) if found else None
        self._stopped = self._agreement.poll().stop if self._agreement else self._alone()
        return self._stopped

    def _alone(self) -> bool:
        show_life()
        return self._flag.wanted
