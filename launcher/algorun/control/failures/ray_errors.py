"""A driver's exceptions without Ray's own wrapping: the exception of the task or actor, and where it was raised. Pure.

Ray raises a task's exception in the driver as `RayTaskError(ValueError)`, whose text is the worker's traceback under a line
`ray::f() (pid=12, ip=10.0.0.2)`. The texts are those of Ray 2.60.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from algorun.common.fast_dataclasses import replace

from .failure import Raised
from .tracebacks import HEADER

COLOURS = re.compile(r"\x1b\[[\d;]*m")
# Where Ray puts a worker's traceback into a text, alone on its line or behind the name of a wrapping exception.
PLACE = re.compile(r"^(.*?)(ray::[^\s(]+)(?:\([^)]*\))? \(pid=(\d+), ip=([^,)\s]+)[^\n]*$")
CARETS = re.compile(r"^\s*[\^~]+\s*$")
OWN_FRAME = re.compile(r'^  File "[^"]*/(site|dist)-packages/ray/')
# Where Ray Train shows a worker's traceback.
SNIPPET = re.compile(
    rf"^\[Rank (\d+) Error Snippet\]:\n{re.escape(HEADER)}\n(.*?)(?=\n\[Rank \d+ Error|\Z)", re.MULTILINE | re.DOTALL
)
# What other exceptions of Ray say of the process that has ended, `pid: 12` or `pid=12`.
PID = re.compile(r"\bpid[:=] ?(\d+)")
ADDRESS = re.compile(r"\b(?:ip|IP)[:=] ?([\d.]+\d)")
# What follows is the same in each such text.
CAUSES = re.compile(r" (Some common causes include|There are some potential root causes)[:.][^\n]*")
NAME = re.compile(r"\b(?:class_name: |name=)([\w.<>]+)")


def plain(raised: Raised, hosts: Mapping[str, str]) -> Raised:
    """An exception of a type of Ray's as the worker raised it, with its place: task or actor, process, host. `hosts` are
    names by address."""
    head, frames, text = _parts(raised)
    text = CAUSES.sub("", text)
    lines = [line for line in text.splitlines() if not CARETS.match(line)]
    before = [*head, *frames]
    if any(map(PLACE.match, lines)):
        return _of_task(raised, before, lines, hosts)
    if snippet := SNIPPET.search(text):
        return _raised(raised, before, snippet[2].splitlines(), f"worker {snippet[1]} of Ray Train")
    message = _with_place(lines[0] if lines else "", text, hosts)
    trace = "\n".join([*before, f"{raised.type}: {text}"])
    return replace(raised, message="\n".join([message, *lines[1:]]), traceback=trace)


def _parts(raised: Raised) -> tuple[list[str], list[str], str]:
    """Of the driver's own traceback: older ones and the header, the frames without Ray's own, and the exception's text."""
    traceback = COLOURS.sub("", raised.traceback)
    before, found, text = traceback.partition(f"\n{raised.type}: ")
    older, header, frames = before.rpartition(HEADER)
    if not header or not found:
        return [HEADER], [], COLOURS.sub("", raised.message)
    kept, own = [], False
    for line in frames.strip("\n").splitlines():
        own = bool(OWN_FRAME.match(line)) if line.startswith("  File ") else own
        kept += [] if own else [line]
    return [f"{older}{HEADER}"], kept, text


def _of_task(raised: Raised, before: list[str], lines: list[str], hosts: Mapping[str, str]) -> Raised:
    """The frames of the driver and then those of each worker on the way to the exception, as one traceback."""
    begin = next(at for at, line in enumerate(lines) if PLACE.match(line))
    trace: list[str] = []
    place = ""
    for line in lines[begin:]:
        if found := PLACE.match(line):
            place = f"{found[2]}, pid {found[3]} on {hosts.get(found[4], found[4])}"
            trace.append(f"  [{place}]")
        else:
            trace.append(line)
    return _raised(raised, before, trace, place)


def _raised(raised: Raised, before: list[str], trace: list[str], place: str) -> Raised:
    """The exception below the frames of `trace`."""
    last = max((at for at, line in enumerate(trace) if line.startswith("  ")), default=-1)
    words = [line for line in trace[last + 1 :] if line.strip()]
    if not words:
        return raised
    kind, _, message = words[0].partition(": ")
    said = f"{message} ({place})" if message else f"({place})"
    return replace(raised, type=kind, message="\n".join([said, *words[1:]]), traceback="\n".join([*before, *trace]))


def _with_place(line: str, text: str, hosts: Mapping[str, str]) -> str:
    """The first line of another exception of Ray, with the process and the host that its text names."""
    name, pid, address = (pattern.search(text) for pattern in (NAME, PID, ADDRESS))
    parts = [name[1]] if name else []
    if pid and address:
        parts.append(f"pid {pid[1]} on {hosts.get(address[1], address[1])}")
    elif address:
        parts.append(f"on {hosts.get(address[1], address[1])}")
    return f"{line} ({', '.join(parts)})" if parts else line
