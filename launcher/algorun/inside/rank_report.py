"""What a process of a rank sends when an exception has reached its top: all that the exception carries, as text.

rank_shim.py executes this file at the exception, from its path, in a process that may hold any module: only built-in modules
are imported (and `_socket`). control/failures/tracebacks.py reads the text of a traceback, host/ranks/rank_port.py the fields.
"""

from __future__ import annotations

import _socket
import builtins
import os
import sys
import time

TYPE_CHECKING = False  # typing itself must not be imported here
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

LONGEST_TRACEBACK = 32 * 1024  # characters; a datagram on a Unix socket may be larger
LONGEST_MESSAGE = 8 * 1024  # characters: of a longer one beginning and end
FIRST_FRAMES, LAST_FRAMES = 10, 50  # of a traceback
FEWER_FRAMES = 6  # at each end, where the text would be too long
MOST_MEMBERS = 8  # of one group
MOST_PARENTS = 12
LONGEST_COMMAND = 300  # characters
OWN = ("/algorun/inside/rank_activities.py", "/algorun/inside/rank_shim.py")  # around the user's calls
LINKS = {
    "cause": "The above exception was the direct cause of the following exception:",
    "context": "During handling of the above exception, another exception occurred:",
}
HEADER = "Traceback (most recent call last):"


def send(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Sends an exception to this host's supervisor. Raises OSError, if that fails."""
    failed, command = ended_children(first_member(error))
    fields = (
        os.environ.get("ALGORUN_RANK", ""),
        str(os.getpid()),
        repr(time.monotonic()),
        _name(kind),
        _shorter(str(error.msg) if isinstance(error, SyntaxError) else _text(error)),
        describe(error, traceback),
        "\n".join(f"{pid} {words}" for pid, words in _parents()),
        "\n".join(f"{pid} {status}" for pid, status in failed),
        command,
        "1" if _explains_itself(error) else "",
    )
    body = b"\0".join(field.replace("\0", "").encode("utf-8", "replace") for field in fields)
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK)
    try:
        channel.sendto(body, os.environ["ALGORUN_RUN_DIR"] + "/raised")
    finally:
        channel.close()


# -- the text ------------------------------------------------------------------------------------------------------


def describe(error: BaseException, traceback: TracebackType | None) -> str:
    """The tracebacks of an exception and its causes, the oldest first, and after a group those of its members."""
    text = "\n".join(_chain(error, traceback, FIRST_FRAMES, LAST_FRAMES, "", set()))
    if len(text) > LONGEST_TRACEBACK:
        text = "\n".join(_chain(error, traceback, FEWER_FRAMES, FEWER_FRAMES, "", set()))
    return text[-LONGEST_TRACEBACK:]


def _chain(
    error: BaseException, traceback: TracebackType | None, first: int, last: int, member: str, seen: set[int]
) -> Iterator[str]:
    """The lines of an exception with all that led to it. `member` says which one of a group it is, as `1 of 2`."""
    chain = [(error, "")]
    while True:
        seen.add(id(chain[-1][0]))
        before, link = _before(chain[-1][0])
        if before is None or id(before) in seen:
            break
        chain.append((before, link))
    links = [link for _, link in chain[1:]]
    for at in reversed(range(len(chain))):
        one = chain[at][0]
        then = ", then" if at < len(chain) - 1 else ""
        mark = f"member {member}{then}: " if member else ""
        trace = traceback if one is error else one.__traceback__
        yield from _one(one, trace, first, last, mark)
        yield from _members(one, first, last, member, seen)
        if at:
            yield from ("", LINKS[links[at - 1]], "")


def _before(error: BaseException) -> tuple[BaseException | None, str]:
    if error.__cause__ is not None:
        return error.__cause__, "cause"
    return (None, "") if error.__suppress_context__ else (error.__context__, "context")


def _one(error: BaseException, traceback: TracebackType | None, first: int, last: int, mark: str) -> list[str]:
    """One exception: its frames, its message and its notes."""
    remote = _text(error)
    if type(error).__name__ in ("_RemoteTraceback", "RemoteTraceback") and HEADER in remote:
        # The traceback in a worker of a pool, in quotation marks.
        return [mark + HEADER, *remote[remote.index(HEADER) + len(HEADER) :].strip('\n"').split("\n")]
    lines = [mark + HEADER, *_frames(traceback, first, last)]
    if isinstance(error, SyntaxError):
        lines += _syntax(error)
        remote = str(error.msg)
    lines.append(f"{_name(type(error))}: {_shorter(remote)}" if remote else _name(type(error)))
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, list):
        lines += [_shorter(str(note)) for note in notes[:20]]
    return lines


def _members(error: BaseException, first: int, last: int, member: str, seen: set[int]) -> Iterator[str]:
    """The members of a group. `member` is the place of the group itself, if it is a member of another one."""
    members = _of_group(error)
    inside = f"{member.partition(' ')[0]}." if member else ""
    for number, one in enumerate(members[:MOST_MEMBERS], 1):
        if id(one) not in seen:
            yield ""
            yield from _chain(one, one.__traceback__, first, last, f"{inside}{number} of {len(members)}", seen)
    if len(members) > MOST_MEMBERS:
        yield f"and {len(members) - MOST_MEMBERS} more members"


def _of_group(error: BaseException) -> tuple[BaseException, ...]:
    group = getattr(builtins, "BaseExceptionGroup", None)  # Python 3.11
    members: tuple[BaseException, ...] = error.exceptions if group is not None and isinstance(error, group) else ()
    return members


def first_member(error: BaseException) -> BaseException:
    members = _of_group(error)
    return first_member(members[0]) if members else error


def _frames(traceback: TracebackType | None, first: int, last: int) -> list[str]:
    places: list[tuple[str, int, str]] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.endswith(OWN):
            places.append((code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    left = max(0, len(places) - first - last)
    lines: list[str] = []
    for at, (file, number, name) in enumerate(places):
        if left and at == first:
            lines.append(f"  [{left} frames left out]")
        if not first <= at < first + left:
            source = _source(file, number)
            lines.append(f'  File "{file}", line {number}, in {name}')
            lines += [f"    {source}"] if source else []
    return lines


def _syntax(error: SyntaxError) -> list[str]:
    """The place of a syntax error, its source and a mark below the column."""
    if not error.lineno:
        return []
    lines = [f'  File "{error.filename or "<string>"}", line {error.lineno}']
    source = (error.text or _source(error.filename or "", error.lineno)).rstrip("\n")
    text = source.lstrip()
    if text:
        lines.append(f"    {text}")
        column = (error.offset or 0) - 1 - (len(source) - len(text))
        if 0 <= column <= len(text):
            lines.append(f"    {' ' * column}^")
    return lines


def _source(path: str, number: int) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for count, text in enumerate(file, 1):
                if count == number:
                    return text.strip()[:500]
    except OSError:
        pass
    return ""


def _name(kind: type[BaseException]) -> str:
    name = getattr(kind, "__qualname__", kind.__name__)
    return name if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{name}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a broken __str__ must not hide the failure
        return "(its message cannot be shown)"


def _shorter(text: str) -> str:
    half = LONGEST_MESSAGE // 2
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:half]}\n..\n{text[-half:]}"


def _explains_itself(error: BaseException) -> bool:
    """True for an error of ours that says what to do: the training package's UserError says so of itself."""
    return getattr(type(error), "explains_itself", False) is True and type(error).__module__.startswith("algorun")


# -- processes -----------------------------------------------------------------------------------------------------


def ended_children(error: BaseException) -> tuple[list[tuple[int, int]], str]:
    """The processes of which an error says that they have failed, each with its exit status (-n for signal n), and the command
    that the error names. The pid is 0 where it cannot be known.

    Only errors that say nothing else are looked at: those of subprocess, of torch's launcher and of torch.multiprocessing.
    """
    names = {f"{each.__module__}.{each.__name__}" for each in type(error).__mro__}
    if "subprocess.CalledProcessError" in names:
        status = _number(error, "returncode")
        return [(_pid_in_frames(error.__traceback__, status), status)], _command(getattr(error, "cmd", ""))
    if "torch.distributed.elastic.multiprocessing.errors.ChildFailedError" in names:
        failures = getattr(error, "failures", None)
        found = list(failures.values()) if isinstance(failures, dict) else []
        return [(_number(each, "pid"), _number(each, "exitcode")) for each in found], ""
    if "torch.multiprocessing.spawn.ProcessException" in names:
        return [(_number(error, "pid") or _number(error, "error_pid"), _number(error, "exit_code") or 1)], ""
    if any(each.__name__ == "BrokenProcessPool" for each in type(error).__mro__):  # of concurrent.futures, and joblib's
        return [(0, 1)], ""
    return [], ""


def _number(holder: object, name: str) -> int:
    value = getattr(holder, name, 0)
    return value if isinstance(value, int) else 0


def _pid_in_frames(traceback: TracebackType | None, status: int) -> int:
    """The process that the frame of the error has waited for: a Popen among its variables with this exit status."""
    popen = getattr(sys.modules.get("subprocess"), "Popen", None)
    found = 0
    while traceback is not None and isinstance(popen, type):
        if traceback.tb_next is None:
            for value in list(traceback.tb_frame.f_locals.values()):
                if issubclass(type(value), popen) and value.returncode == status:
                    found = value.pid
        traceback = traceback.tb_next
    return found


def _command(given: object) -> str:
    """A command as `_parents` shows it."""
    if isinstance(given, (list, tuple)):
        return " ".join(os.fsdecode(os.fspath(each)) for each in given if isinstance(each, (str, bytes, os.PathLike)))[
            :LONGEST_COMMAND
        ]
    return given[:LONGEST_COMMAND] if isinstance(given, str) else ""


def _parents() -> list[tuple[int, str]]:
    """This process and those above it, up to the rank, which leads the session; each with its command on one line."""
    found: list[tuple[int, str]] = []
    pid, session = os.getpid(), os.getsid(0)
    while pid > 1 and len(found) < MOST_PARENTS:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read(4096).rstrip(b"\0").split(b"\0")
            with open(f"/proc/{pid}/stat", "rb") as file:
                parent = int(file.read().rpartition(b") ")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
        text = " ".join(" ".join(os.fsdecode(each) for each in words).split("\n"))
        found.append((pid, text[:LONGEST_COMMAND]))
        if pid == session:
            break
        pid = parent
    return found
