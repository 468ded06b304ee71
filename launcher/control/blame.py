"""The failures that hosts have reported, and the time that others have to report an older one. Pure."""

from __future__ import annotations

from dataclasses import replace

from .failure import Failure, complete, root

MOST_FAILURES = 10_000  # kept; more say nothing new


class Blame:
    """Reported failures by host and rank. `deadline` is the end of the window, None while none is open."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._reported: dict[tuple[str, int | None], tuple[float, Failure]] = {}
        self.deadline: float | None = None

    def __bool__(self) -> bool:
        return bool(self._reported)

    def add(self, now: float, failure: Failure) -> bool:
        """Keeps a failure; False where it is known, and only tells the exit code of a rank that has raised."""
        key = (failure.host, failure.rank)
        if key in self._reported:
            onset, known = self._reported[key]
            if failure.rank is not None:
                self._reported[key] = (onset, replace(known, code=failure.code))
            return False
        if len(self._reported) < MOST_FAILURES:
            self.overrule(now, failure)
        return True

    def overrule(self, now: float, failure: Failure) -> None:
        """Keeps a failure in place of what its rank itself has reported."""
        self._reported[failure.host, failure.rank] = (now - max(0.0, failure.age_s), failure)

    def open(self, now: float) -> None:
        """From now on others have their time; a window that is open stays."""
        if self.deadline is None:
            self.deadline = now + self._window_s

    def root(self) -> Failure:
        """The failure that began it all."""
        return root(self._reported.values())

    def complete(self, failure: Failure) -> Failure:
        """The root with what else was reported."""
        return complete(failure, self._reported.values())

    def clear(self) -> None:
        self._reported.clear()
        self.deadline = None
