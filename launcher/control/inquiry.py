"""What the hub asks all hosts when a rank makes no steps, and whom it blames. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ExitCode
from . import hang
from .failure import Failure, Left, left_early
from .hang import Stack

ANSWER_S = 3.0  # for all hosts to tell what their ranks are doing
KEPT = "the stacks of all ranks are in output/data, stacks-rank-*.txt"


class Inquiry:
    """Into a hang that began `idle_s` before `now`."""

    def __init__(self, now: float, idle_s: float) -> None:
        self.since, self.deadline = now - idle_s, now + ANSWER_S
        self._idle_s = idle_s
        self.stacks: list[Stack] = []
        self.answered: set[str] = set()

    def failure(self, now: float, leader: str, attempt: int, gone: Sequence[Left], ranks: int) -> Failure:
        """The rank that holds the others up, with its stack; the leader where nobody has answered.

        `gone` are the ranks that have left with 0. Where all others only wait, they wait for the first of these.
        """
        if not self.stacks:
            text = f"no step for {self._idle_s:.0f} s, and no host can tell what its ranks do"
            return Failure("hang", leader, ExitCode.HANG, text, attempt=attempt, age_s=now - self.since)
        blamed = hang.odd(self.stacks)
        text, missed = hang.message(blamed, self.stacks, self._idle_s), bool(gone and blamed.wait)
        if gone and not missed:
            text = f"{text}; rank {gone[0].rank} on {gone[0].host} had {gone[0].how}"
        failure = Failure(
            kind="hang",
            host=blamed.host,
            code=ExitCode.HANG,
            message=text,
            rank=blamed.rank,
            traceback=_traceback(blamed),
            hint=KEPT,
            attempt=attempt,
            step=blamed.steps,
            age_s=now - self.since,
        )
        return left_early(gone, ranks, failure) if missed else failure


def _traceback(stack: Stack) -> str:
    """The main thread as Python shows it: the innermost frame last."""
    lines = [f'  File "{frame.file}", line {frame.line}, in {frame.function}' for frame in reversed(stack.frames)]
    return "\n".join(["Stack (most recent call last):", *lines]) if lines else ""
