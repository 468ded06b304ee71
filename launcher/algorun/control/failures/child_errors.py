"""Which exception is the cause where a process below a rank has failed first. Pure.

A script may start others: torchrun, Accelerate, subprocess.run(check=True). If the child raises, its parent raises an error that
only names the child. The child's exception is the cause if that error names this very child, by pid and exit status. An
exception that the script has handled is none: then the rank's own error is the cause, and the other one is only mentioned.

Where a function takes `tails`, these are the ends of what the rank has printed: of both streams as they arrived, in which a line
on stdout may come too late, then of stderr alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from algorun.common.fast_dataclasses import dataclass
from algorun.common.plain_text import first_line

from . import last_words, peer_errors, tracebacks
from .failure import Raised

RAISED = 1  # the exit status of Python after an exception
LONGEST_END_S = (
    60.0  # for the interpreters between the exception and the rank to end, if nothing else is printed meanwhile
)
CHILD_BLAME_S = 5.0  # a process that fails this soon after an exception below it probably fails because of it


@dataclass(frozen=True, slots=True)
class Cause:
    """The exception that began it, and the errors by which the processes above it then failed, the innermost first."""

    raised: Raised
    then: tuple[Raised, ...] = ()


def of_error(error: Raised, earlier: Sequence[Raised], tails: Sequence[str]) -> Cause:
    """The cause of an exception, of those that processes of the rank have reported before it. `tails` go up to the exception."""
    child = _named(error, earlier) or _below(error, earlier, tails)
    if child is None:
        return Cause(error)
    inner = of_error(child, [each for each in earlier if each is not child], tails)
    return Cause(inner.raised, (*inner.then, error))


def of_status(code: int, now: float, reports: Sequence[Raised], tails: Sequence[str]) -> Cause | None:
    """The cause of a rank's end with this exit code, where the rank itself has raised nothing, as a shell does not.

    None where the exception was long before, or where the program has told of another error since. After some seconds, or with
    an exit code other than that of an exception, anything that it has told since is its own reason.
    """
    last = max(reports, key=lambda each: each.at, default=None)
    if last is None or now - last.at > LONGEST_END_S:
        return None
    late = now - last.at > CHILD_BLAME_S
    if (late and not tails[0]) or _other_error(last, reports, tails, any_words=late or code != RAISED):
        return None
    return of_error(last, [each for each in reports if each is not last], tails)


def _named(error: Raised, earlier: Sequence[Raised]) -> Raised | None:
    """The exception of a process that the error names by its pid. Of several the one nearest to a cause, then the first."""
    failed = {pid for pid, status in error.ended if pid and status}
    newest = {each.pid: each for each in earlier if each.pid in failed}
    return min(newest.values(), key=lambda each: (_distance(each), each.at), default=None)


def _below(error: Raised, earlier: Sequence[Raised], tails: Sequence[str]) -> Raised | None:
    """The exception of a process below one that the error names, such as below a shell, or that it names by its command only."""
    for pid, status in error.ended:
        found = [each for each in earlier if _in_branch(each, error, pid)]
        last = max(found, key=lambda each: each.at, default=None)
        if last is None or status != RAISED or error.at - last.at > CHILD_BLAME_S:
            continue
        if not _other_error(last, [*earlier, error], tails):
            return last
    return None


def _in_branch(each: Raised, error: Raised, pid: int) -> bool:
    """Whether a process belongs to the branch of `pid` below the one with the error; 0: to that of the error's command."""
    pids = [parent for parent, _ in each.parents]
    if pid:
        return pid in pids
    if error.pid not in pids or not error.command:
        return False
    commands = [command for _, command in each.parents[: pids.index(error.pid)]]
    return any(command == error.command for command in commands)


def _other_error(raised: Raised, reports: Sequence[Raised], tails: Sequence[str], *, any_words: bool = False) -> bool:
    """True where the program has printed another error after this exception than those reported; with `any_words` anything.

    On one stream alone only what stands below the exception is known to have come after it.
    """
    found = _found_by(raised)
    lines = [last_words.said_after(tail, found) for at, tail in enumerate(tails) if at == 0 or found in tail]
    said = [line for line in lines if line and not any(_is_of(line, each) for each in reports)]
    return any(any_words or last_words.says_error(line) for line in said)


def _found_by(raised: Raised) -> str:
    """What the line begins with that Python prints of an exception."""
    return f"{raised.type}: {first_line(raised.message.partition(chr(10))[0])}".strip()


def _is_of(said: str, raised: Raised) -> bool:
    """True for a line that Python prints of this exception."""
    return raised.type.rpartition(".")[2] in said and first_line(raised.message)[:100] in said


def ended_with(raised: Raised) -> str:
    """The first line of an exception as Python prints it; of a message that begins with a border the first words."""
    said = first_line(raised.message)
    if re.match(last_words.BORDER, said):
        said = next((line.strip() for line in raised.message.split("\n") if not re.match(last_words.BORDER, line)), "")
    return f"{raised.type}: {said}" if said else raised.type


def _distance(raised: Raised) -> int:
    return peer_errors.nearest(peer_errors.own_words("exception", raised.message, raised.traceback))


def words(cause: Cause, tails: Sequence[str]) -> str:
    """The first line of a failure with this cause."""
    raised = cause.raised
    said = ended_with(raised)
    if tracebacks.HEADER in raised.message:  # a worker's traceback, as torch's DataLoader and mp.spawn quote it
        lines = tracebacks.lines_of(raised.traceback)
        inner = tracebacks.outermost(tracebacks.blocks(lines))
        quoted = inner.first(lines) if inner is not None else ""
        said = f"{quoted} ({first_line(raised.message).strip('- :')})" if quoted and quoted != said else said
    elif members := tracebacks.told(raised.traceback):
        said = f"{said}: {members}"
    if cause.then:
        names = ", then ".join(each.type.rpartition(".")[2] for each in cause.then)
        return f"{said} (process {raised.pid}, then {names})"
    if any(status for _, status in raised.ended) and tracebacks.HEADER not in raised.message:
        before = [tail.rpartition(said)[0] if said in tail else tail for tail in tails]
        outputs = [line for line in map(last_words.last_words, before) if last_words.is_near_end(line, before[0])]
        output = next(filter(last_words.says_error, outputs), "")
        return f"{said} (last output: {output})" if output and output not in said else said
    return said


def traceback(cause: Cause, handled: Raised | None, code: str) -> str:
    """The traceback of the cause. Below it, the errors of the processes above; before it, an exception below the rank that is
    not known to be the cause."""
    before = f"earlier, in process {handled.pid} below this rank: {_at(handled, code)}\n" if handled is not None else ""
    after = [f"Then, in process {each.pid}: {_at(each, code)}" for each in cause.then]
    return "\n".join([before + cause.raised.traceback, *after])


def _at(raised: Raised, code: str) -> str:
    place = tracebacks.place(raised.traceback, code)
    return ended_with(raised) + (f" (at {place})" if place else "")
