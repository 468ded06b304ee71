"""One line of a report about a machine. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """state: ok, warn or fail."""

    topic: str
    value: str
    state: str = "ok"
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.topic}: {self.value}" + (f"; fix: {self.fix}" if self.fix else "")
