"""One line of preflight or `algorun doctor`. Pure."""

from __future__ import annotations

from algorun.common.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """What was checked, what was found, whether it is a fault, and what helps."""

    topic: str
    value: str
    state: str = "ok"  # ok, warn or fail
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.topic}: {self.value}" + (f"; fix: {self.fix}" if self.fix else "")
