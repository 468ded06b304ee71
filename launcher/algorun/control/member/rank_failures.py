"""Makes a failure of a rank's end: of its exception, its exit code or its signal. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from algorun.common.errors import ExitCode, exit_code
from algorun.common.fast_dataclasses import replace
from algorun.control.failures.failure import LONGEST_TRACEBACK, Failure, Raised

if TYPE_CHECKING:
    from algorun.control.failures.child_errors import Cause

FATAL_BY_HAND = {signal.SIGKILL: "not sent by the launcher: the kernel's out-of-memory killer, or somebody"}
BY_ITSELF = (signal.SIGABRT, signal.SIGILL, signal.SIGTRAP)  # a process ends itself by these, and has said why
MOST_REPORTS = 64  # exceptions of processes below a rank that are kept, the newest
NO_MESSAGE = "no message on stderr"
_KNOWN = frozenset(int(number) for number in signal.Signals)


class RankFailures:
    """The ranks of this host that run, and the exceptions that they have reported."""

    def __init__(self, host: str) -> None:
        self._host = host
        self.bundled = False  # True: the program is one of ours, with our exit codes
        self._code = ""
        self._running: dict[int, int] = {}  # local rank to global rank
        self._own: dict[int, tuple[float, Failure]] = {}  # by local rank: when its own process raised, and what
        self._below: dict[int, list[Raised]] = {}  # by local rank, of processes below it, in the order of their reports

    def begin(self, ranks: dict[int, int], *, bundled: bool = False, code: str = "") -> None:
        """An attempt with these ranks, local to global; what was known of the one before is forgotten. `code` is the folder of
        the user's code."""
        self._running, self.bundled, self._code = dict(ranks), bundled, code
        self._own.clear()
        self._below.clear()

    def raised(
        self, now: float, local_rank: int, raised: Raised, *, is_rank: bool, tails: Sequence[str] = ("",)
    ) -> Failure | None:
        """An exception reached the top in a rank (`is_rank`) or in a process below it, which the rank may survive.

        `tails` are the ends of what the rank has printed: of both streams, and of stderr alone.
        """
        raised = _plain(raised)
        reports = self._below.setdefault(local_rank, [])
        if not is_rank:
            reports.append(raised)
            del reports[:-MOST_REPORTS]
            return None
        if local_rank not in self._running:
            return None
        from algorun.control.failures import child_errors  # imported late: only a failure uses it

        earlier = [each for each in reports if each.at <= raised.at]
        cause = child_errors.of_error(raised, earlier, [_cleaned(tail) for tail in tails])
        failure = self._of_cause(now, self._running[local_rank], cause, 1, earlier, tails)
        self._own[local_rank] = (raised.at, failure)
        return failure

    def running(self, local_rank: int) -> int | None:
        """The global rank of one that runs."""
        return self._running.get(local_rank)

    def exited(
        self, now: float, local_rank: int, returncode: int, tail: str, printed: str = "", age_s: float = 0.0
    ) -> Failure | None:
        """A rank has ended `age_s` ago; -n for signal n. `tail` is the end of its stderr, `printed` that of both streams. None where
        all went well."""
        rank = self._running.pop(local_rank, None)
        if rank is None or returncode == 0:
            return None
        if returncode > 0 and local_rank in self._own:
            at, failure = self._own[local_rank]
            return replace(failure, code=exit_code(returncode), age_s=max(0.0, now - at))
        tail, printed = _cleaned(tail), _cleaned(printed)
        reports = self._below.get(local_rank, [])
        if reports and returncode > 0:
            from algorun.control.failures import child_errors  # imported late: only a failure uses it

            cause = child_errors.of_status(returncode, now - age_s, reports, (printed, tail))
            if cause is not None:
                failure = self._of_cause(now, rank, cause, exit_code(returncode), (), (printed, tail))
                return replace(failure, age_s=age_s)
        return replace(self._of_status(rank, returncode, tail, printed), age_s=age_s)

    def raised_itself(self, local_rank: int) -> bool:
        """True where the exception came from the rank's own process."""
        return local_rank in self._own

    def _of_cause(
        self, now: float, rank: int, cause: Cause, code: int, below: Sequence[Raised], tails: Sequence[str]
    ) -> Failure:
        from algorun.control.failures import child_errors, tracebacks

        handled = below[-1] if below and not cause.then else None
        return Failure(
            kind="exception",
            host=self._host,
            rank=rank,
            code=code,
            message=child_errors.words(cause, [_cleaned(tail) for tail in tails]),
            traceback=child_errors.traceback(cause, handled, self._code)[-LONGEST_TRACEBACK:],
            age_s=max(0.0, now - cause.raised.at),
            place=tracebacks.place(cause.raised.traceback, self._code),
            explains_itself=cause.raised.explains_itself,
        )

    def _of_status(self, rank: int, returncode: int, tail: str, printed: str) -> Failure:
        from algorun.control.failures import last_words, tracebacks

        code, tail = exit_code(returncode), last_words.telling(tail)
        if returncode < 0:
            return self._of_signal(rank, -returncode, tail)
        # A user's script may mean something else by 64; the kind tells the two apart.
        ours = self.bundled and code == ExitCode.CONFIGURATION
        words = last_words.last_words(tail)
        only_stdout = not words
        if not ours and last_words.told_on_stdout(tail, printed):
            tail = last_words.telling(printed)
            words = last_words.last_words(tail)
            if only_stdout and not last_words.says_error(words):
                words = f"{NO_MESSAGE}; last on stdout: {words}"
        return Failure(
            "configuration" if ours else "exit",
            self._host,
            code,
            words or NO_MESSAGE,
            rank,
            tail[-LONGEST_TRACEBACK:],
            place=tracebacks.place(tail, self._code) if tracebacks.ends_with(tail, words) else "",
            explains_itself=ours,
            only_stdout=only_stdout,
        )

    def _of_signal(self, rank: int, number: int, tail: str) -> Failure:
        from algorun.control.failures import abort_words

        why = FATAL_BY_HAND.get(signal.Signals(number), "") if number in _KNOWN else ""
        if number in BY_ITSELF:
            why = abort_words.words(tail)
        return Failure(
            "signal",
            self._host,
            exit_code(-number),
            why or "ended by the signal",
            rank,
            tail[-LONGEST_TRACEBACK:],
            place=abort_words.place(tail, self._code),
        )


def _cleaned(printed: str) -> str:
    from algorun.common.plain_text import plain

    return plain(printed)


def _plain(raised: Raised) -> Raised:
    """An exception without what a terminal takes for a command."""
    from algorun.common.plain_text import first_line, plain

    return replace(
        raised, type=first_line(raised.type), message=plain(raised.message), traceback=plain(raised.traceback)
    )
