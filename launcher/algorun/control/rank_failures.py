"""Makes a failure of a rank's end: of its exception, its exit code or its signal. Pure."""

from __future__ import annotations

import signal

from algorun.common.errors import ExitCode, exit_code

from .failure import LONGEST_TRACEBACK, Failure, Raised, evidence, last_words

FATAL_BY_HAND = {signal.SIGKILL: "not sent by the launcher: the kernel's out-of-memory killer, or somebody"}
CHILD_BLAME_S = 5.0  # a rank that fails this soon after an exception in a process below it probably fails because of it
_KNOWN = frozenset(int(number) for number in signal.Signals)


class RankFailures:
    """The ranks of this host that run, and the exceptions that they have reported."""

    def __init__(self, host: str) -> None:
        self._host = host
        self.bundled = False  # True: the program is one of ours, with our exit codes
        self._running: dict[int, int] = {}  # local rank to global rank
        self._raised: dict[int, Raised] = {}
        self._own: set[int] = set()  # local ranks whose own process raised, and not only one below it

    def begin(self, ranks: dict[int, int], *, bundled: bool = False) -> None:
        """An attempt with these ranks, local to global; what was known of the one before is forgotten."""
        self._running, self.bundled = dict(ranks), bundled
        self._raised.clear()
        self._own.clear()

    def raised(self, now: float, local_rank: int, raised: Raised, *, is_rank: bool) -> Failure | None:
        """An exception reached the top in a rank (`is_rank`) or in a process below it, which the rank may survive."""
        if is_rank or local_rank not in self._own:
            self._raised[local_rank] = raised
        if is_rank:
            self._own.add(local_rank)
        if not is_rank or local_rank not in self._running:
            return None
        return self._of_raised(now, local_rank, raised, 1, self._running[local_rank])

    def running(self, local_rank: int) -> int | None:
        """The global rank of one that runs."""
        return self._running.get(local_rank)

    def exited(self, now: float, local_rank: int, returncode: int, tail: str) -> Failure | None:
        """A rank has ended; -n for signal n. `tail` is the end of its stderr. None where all went well."""
        rank = self._running.pop(local_rank, None)
        if rank is None or returncode == 0:
            return None
        raised = self._raised.get(local_rank)
        recent = raised is not None and (local_rank in self._own or now - raised.at < CHILD_BLAME_S)
        if raised is not None and recent and returncode > 0:
            return self._of_raised(now, local_rank, raised, exit_code(returncode), rank)
        return self._of_status(rank, returncode, tail)

    def raised_itself(self, local_rank: int) -> bool:
        """True where the exception came from the rank's own process."""
        return local_rank in self._own

    def _of_raised(self, now: float, local_rank: int, raised: Raised, code: int, rank: int) -> Failure:
        first_line = raised.message.strip().splitlines()[0] if raised.message.strip() else ""
        return Failure(
            kind="exception",
            host=self._host,
            rank=rank,
            code=code,
            message=f"{raised.type}: {first_line}" if first_line else raised.type,
            traceback=raised.traceback[-LONGEST_TRACEBACK:],
            age_s=max(0.0, now - raised.at) if local_rank in self._own else 0.0,
        )

    def _of_status(self, rank: int, returncode: int, tail: str) -> Failure:
        code, tail = exit_code(returncode), evidence(tail)
        if returncode < 0:
            hint = FATAL_BY_HAND.get(signal.Signals(-returncode), "") if -returncode in _KNOWN else ""
            return Failure("signal", self._host, code, hint or "ended by the signal", rank, tail[-LONGEST_TRACEBACK:])
        # A user's script may mean something else by 64; the kind tells the two apart.
        kind = "configuration" if self.bundled and code == ExitCode.CONFIGURATION else "exit"
        return Failure(
            kind, self._host, code, last_words(tail) or "no message on stderr", rank, tail[-LONGEST_TRACEBACK:]
        )
