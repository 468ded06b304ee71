"""What a command has said of its tasks: a job that waits for room is tried again and again, and says all of it once."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Telling:
    """How a command speaks, and what it has said."""

    as_json: bool
    _said: set[str] = field(default_factory=set)

    def has_said(self, text: str) -> bool:
        """True after `first` of the same text."""
        return text in self._said

    def first(self, text: str) -> bool:
        """True if this was not said yet; from now on it was."""
        if text in self._said:
            return False
        self._said.add(text)
        return True
