"""Something that happens once, and what waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Happening:
    """`happened` says whether it has; what waits is called in its order."""

    happened: bool = False
    _waiting: list[Callable[[], object]] = field(default_factory=list)

    def then(self, act: Callable[[], object]) -> None:
        """Calls `act` when it happens: now, if it has."""
        if self.happened:
            act()
        else:
            self._waiting.append(act)

    def happens(self) -> None:
        """Now, or again: what waits is called once."""
        self.happened = True
        waiting, self._waiting = self._waiting, []
        for act in waiting:
            act()
