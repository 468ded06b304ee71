"""A strict reader of traces in the Trace Event Format (JSON), as its documentation has it.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: complete events (`X`, times in
microseconds) that lie within each other or apart on each thread, and metadata (`M`) that names processes and threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Slice:
    """A complete event. `process` and `thread` are their names."""

    process: str
    thread: str
    name: str
    begin: int
    end: int


def slices(trace: dict) -> list[Slice]:
    """All complete events of a trace. Fails where it is not in the format."""
    assert set(trace) <= {"traceEvents", "displayTimeUnit", "metadata", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    names: dict[tuple[str, int, int], str] = {}
    for each in trace["traceEvents"]:
        assert isinstance(each["pid"], int), each
        assert isinstance(each["tid"], int), each
        if each["ph"] == "M" and each["name"] in ("process_name", "thread_name"):
            key = (each["name"], each["pid"], each["tid"] if each["name"] == "thread_name" else 0)
            assert key not in names, "named twice"
            names[key] = each["args"]["name"]
    found = []
    for each in trace["traceEvents"]:
        if each["ph"] == "M":
            continue
        assert each["ph"] == "X", each
        assert each.keys() == {"ph", "name", "ts", "dur", "pid", "tid"}
        assert (type(each["ts"]), type(each["dur"])) == (int, int), "fractions add up to something else"
        assert each["dur"] >= 0, each
        process, thread = names["process_name", each["pid"], 0], names["thread_name", each["pid"], each["tid"]]
        found.append(Slice(process, thread, each["name"], each["ts"], each["ts"] + each["dur"]))
    for thread in {each.thread for each in found}:
        _check_nesting([each for each in found if each.thread == thread])
    return found


def _check_nesting(found: list[Slice]) -> None:
    assert all(a.begin <= b.begin for a, b in pairwise(found)), "a parent stands before its children"
    opened: list[Slice] = []
    for each in found:
        while opened and opened[-1].end <= each.begin:
            opened.pop()
        assert not opened or each.end <= opened[-1].end, (opened[-1], each)
        opened.append(each)
