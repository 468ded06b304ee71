"""The hub's question to all hosts when a rank makes no steps or has waited in vain, and which rank it names. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from algorun.common.errors import ExitCode
from algorun.common.fast_dataclasses import replace
from algorun.control.failures.failure import Failure, RankLeft
from algorun.control.hang import calls, hang
from algorun.control.hang.hang import Stack
from algorun.control.wire.messages import ANSWER_S

from .failure_reports import left_rank_as_cause

KEPT = "the stacks of all ranks are in output/data, stacks-rank-*.txt"
NETWORK = "look at the network between hosts and at the GPUs: NCCL_DEBUG=INFO prints NCCL's routes, nvidia-smi -q a GPU's errors"
KEPT_OF_LIVING = "the stacks of the ranks that still lived are in output/data, stacks-rank-*.txt"


class Inquiry:
    """Asks what every rank is doing, and names the one that holds the others up.

    A rank has made no step for `idle_s` seconds, or all ranks have shown no progress for so long and stand still (`silent`), or
    the waits of the ranks `in_vain` have timed out. `worker`: that of an engine's node which holds up a silent job, and where it is.
    """

    def __init__(
        self,
        now: float,
        idle_s: float = 0.0,
        in_vain: Sequence[Failure] = (),
        *,
        silent: bool = False,
        worker: str = "",
    ) -> None:
        self.since, self.deadline = now - idle_s, now + ANSWER_S
        self.idle_s, self._in_vain, self._silent, self._worker = idle_s, in_vain, silent, worker
        self.stacks: list[Stack] = []
        self.answered: set[str] = set()

    def failure(self, now: float, leader: str, attempt: int, left: Sequence[RankLeft], ranks: int) -> Failure | None:
        """The rank that holds the others up, with its stack; the leader where nobody has answered.

        `left` are the ranks that have left with 0: where all others only wait, they wait for the first of these. None
        where ranks have waited in vain and the living ranks only wait as well, and where the rank for which the others wait
        goes on: rank 0 may evaluate alone.
        """
        if not self.stacks and self._in_vain:
            return None
        if not self.stacks:
            what = "sign of progress" if self._silent else "step"
            text = f"no {what} for {self.idle_s:.0f} s, and no host can tell what its ranks do"
            return Failure("hang", leader, ExitCode.HANG, text, attempt=attempt, age_s=now - self.since)
        suspects = self._hold_up() if self._in_vain else self.stacks
        if self._silent:
            suspects = hang.suspects_of_silence(self.stacks)
        found = calls.mismatch({stack.rank: stack.calls for stack in self.stacks if stack.calls})
        if not suspects and (found is None or found.absent):
            return None
        judged_by_steps = not (self._in_vain or self._silent)
        if found is None and not left and not self._in_vain and hang.only_wait_for_gpus(self.stacks):
            if judged_by_steps and any(hang.goes_on(stack, self.idle_s) for stack in self.stacks):
                return None
            return self._nobody(now, leader, attempt)
        named = self._named(suspects, found)
        if judged_by_steps and hang.goes_on(named, self.idle_s):
            return None
        text = hang.message(named, self.stacks, self.idle_s, self._timed_out, silent=self._silent)
        if found is not None and named.rank in found.ranks:
            text = f"{text}; {found.text}"
        if self._worker and named.wait:  # a driver that waits for its workers
            text = f"{text}; {self._worker}"
        missed = bool(left and named.wait)
        if left and not missed:
            text = f"{text}; rank {left[0].rank} on {left[0].host} had {left[0].how}"
        failure = Failure(
            kind="hang",
            host=named.host,
            code=ExitCode.HANG,
            message=text,
            rank=named.rank,
            traceback=_traceback(named),
            hint=KEPT_OF_LIVING if self._in_vain else KEPT,
            attempt=attempt,
            step=named.steps,
            age_s=now - self.since,
        )
        return left_rank_as_cause(left, ranks, failure) if missed else failure

    def _nobody(self, now: float, leader: str, attempt: int) -> Failure:
        """The network or a GPU holds all ranks up, and nothing tells which."""
        text = hang.nobody(self.stacks, self.idle_s, silent=self._silent)
        if stuck := calls.stuck({stack.rank: stack.calls for stack in self.stacks if stack.calls}):
            text = f"{text}; {stuck}"
        hint = f"{NETWORK}; {KEPT}"
        return Failure("hang", leader, ExitCode.HANG, text, hint=hint, attempt=attempt, age_s=now - self.since)

    def _named(self, suspects: Sequence[Stack], found: calls.Mismatch | None) -> Stack:
        """The rank that the stacks name, unless it only waits, or works and the calls of ranks differ."""
        odd = hang.odd(suspects) if suspects else None
        if found is None or (odd is not None and (odd.frozen or (found.absent and not odd.wait))):
            assert odd is not None
            return odd
        if odd is not None and self._in_vain and found.absent:
            return odd
        return next(stack for stack in self.stacks if stack.rank == found.ranks[0])

    def kept(self, failure: Failure) -> Failure:
        """A failure that the stacks do not explain, with a hint where the stacks are."""
        return replace(failure, hint=KEPT_OF_LIVING) if self.stacks and not failure.hint else failure

    def _hold_up(self) -> list[Stack]:
        """The living ranks that may hold up those that timed out.

        Such a rank does something other than wait, or is in a collective of an earlier step. Fewer steps alone prove
        nothing: on GPUs a rank that reads a value is behind ranks that only queue work.

        Where all ranks are at one line, each is taken to wait for its GPU, unless it waits for time, a file or a child.
        Where the ranks that timed out waited on GPUs, a rank whose line may read a value is taken to wait for its GPU.
        """
        if hang.at_one_line(self.stacks):
            return [stack for stack in self.stacks if stack.outside]
        last = max(each.step for each in self._in_vain)
        known = [stack for stack in self.stacks if stack.frames or stack.frozen]
        on_gpus = any(each.of_nccl for each in self._in_vain)
        work = [stack for stack in known if not (stack.wait or (on_gpus and stack.asks_value))]
        return work + [stack for stack in known if stack.wait and stack.in_collective and stack.steps < last]

    @property
    def _timed_out(self) -> str:
        """`rank 0 on algo-1 and 2 others`; "" where no wait has timed out."""
        if not self._in_vain:
            return ""
        first, more = self._in_vain[0], len(self._in_vain) - 1
        others = f" and {more} {'other' if more == 1 else 'others'}" if more else ""
        return f"rank {first.rank} on {first.host}{others}"


def _traceback(stack: Stack) -> str:
    """The main thread as Python shows it: the innermost frame last."""
    lines = [f'  File "{frame.file}", line {frame.line}, in {frame.function}' for frame in reversed(stack.frames)]
    return "\n".join(["Stack (most recent call last):", *lines]) if lines else ""
