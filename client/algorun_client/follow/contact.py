"""Signs of life: when AWS answered last, and what the user was told of its silence."""

from __future__ import annotations

import time
from typing import Protocol


class Teller(Protocol):
    """Shows notes to the user."""

    def note(self, text: str) -> None:
        """One line of text."""
        ...


class Contact:
    """Counts the silence from the last answer on. The user learns of it once, and of its end."""

    def __init__(self, view: Teller, longest_s: float) -> None:
        self.longest_s = longest_s  # contact is lost after it
        self._view = view
        self._answered = self._lines = time.monotonic()
        self._told = False

    @property
    def is_lost(self) -> bool:
        """True after too long a time without any answer."""
        return time.monotonic() - self._answered > self.longest_s

    @property
    def has_lost_lines(self) -> bool:
        """True after too long a time without lines, whatever else was answered."""
        return time.monotonic() - self._lines > self.longest_s

    def answered(self) -> None:
        """A call was answered, if only by a refusal."""
        self._answered = time.monotonic()

    def complete(self) -> None:
        """All calls of a round were answered."""
        self._answered = self._lines = time.monotonic()
        if self._told:
            self._told = False
            self._view.note("AWS answers again")

    def tell(self, why: str) -> None:
        """Tells the user, once for each silence."""
        if not self._told:
            self._told = True
            self._view.note(f"{why}; the job runs on, and nothing is lost")
