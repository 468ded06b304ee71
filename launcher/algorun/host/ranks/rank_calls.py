"""The last collective calls of a process of a rank. With rank_calls in it (inside/), a process writes them when asked."""

from __future__ import annotations

import contextlib
import math
import os
import re
from typing import Any, cast

from algorun.common.codec import loads
from algorun.control.hang.call import CollectiveCall
from algorun.control.hang.hang import LIBRARY

LARGEST = 2 * 1024 * 1024  # bytes of an answer


def _path(pid: int, folder: str) -> str:
    return os.path.join(folder, f"calls-{pid}")


def forget(pid: int, folder: str) -> None:
    """Removes what an earlier question left."""
    with contextlib.suppress(OSError):
        os.unlink(_path(pid, folder))


def ask(pid: int, folder: str) -> None:
    """Asks a process for its calls; `read` returns them moments later. Does nothing where the process cannot answer."""
    with contextlib.suppress(OSError):
        pipe = os.open(
            f"{_path(pid, folder)}.ask", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
        )  # fails without a reader
        try:
            os.write(pipe, b"?")
        finally:
            os.close(pipe)


def limit_s(pid: int, folder: str) -> float:
    """After how many seconds a collective call of a process times out, by its groups at its first step; inf: not known."""
    try:
        with open(f"{_path(pid, folder)}.limit", encoding="ascii") as file:
            return float(file.read(32)) or math.inf
    except (OSError, ValueError):
        return math.inf


def read_calls(pid: int, rank: int, folder: str) -> tuple[CollectiveCall, ...]:
    """The calls of a process, oldest first; none where it has not answered, or torch knows it by another rank."""
    try:
        with open(_path(pid, folder), "rb") as file:
            answer = cast("dict[str, Any]", loads(file.read(LARGEST)))
        return tuple(_call(each) for each in answer["calls"]) if answer["rank"] == rank else ()
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ()


def _call(each: dict[str, object]) -> CollectiveCall:
    """The call with its innermost frame of the user's code; without a place where all frames are a library's."""
    file, line = "", 0
    for frame in cast("list[tuple[str, int, str]]", each["frames"]):
        if not re.search(LIBRARY, str(frame[0])):
            file, line = str(frame[0]), int(frame[1])
            break
    texts = {name: str(each[name]) for name in ("group", "operation", "members", "shapes", "dtypes", "state")}
    return CollectiveCall(number=int(str(each["number"])), file=file, line=line, **texts)
