"""A window of steps as a trace: from the moments that ranks note to the events that Perfetto reads. Pure.

Each host makes a part of its own ranks, with its events on the leader's clock. `merged` puts parts together. Format: Trace
Event Format (JSON), https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: a process is a host, a
rank has two threads, one for its steps and one for its activities.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise

from algorun.common.fast_dataclasses import dataclass

from .activities import NAMES
from .host_clock import Offset

FORMAT = 1  # of a part
HEAD = struct.Struct("@8Q")  # as inside/rank_trace.py writes it: format, moments, left out, closed, first and last step
MOMENT = struct.Struct("@dQ")
END, STEP = 0, 255
FIRST_THREAD = 10_000  # above the numbers of hosts: a thread with its process's number would be taken for its main one
US = 1e6  # the format's unit of time
LATEST_S, LATEST_US = 1e12, 1e18  # 30,000 years

Event = dict[str, object]  # as the format has it


@dataclass(frozen=True, slots=True)
class Moments:
    """What one rank has noted. `moments`: seconds of the host's clock, and what each is. `closed`: the window is over."""

    first: int
    last: int
    closed: bool
    left_out: int
    moments: tuple[tuple[float, int], ...]

    @property
    def steps(self) -> int:
        """How many steps of the window are over."""
        return max(0, sum(what == STEP for _, what in self.moments) - 1)


@dataclass(frozen=True, slots=True)
class TracePart:
    """Who noted what: a host (its number in the job, from 0) in an attempt (from 1), and the leader's clock."""

    host: str
    number: int
    attempt: int
    ranks: Mapping[int, Moments]
    clock: Offset | None  # None: no answer of the leader has come
    wall_s: float  # this host's wall clock shows so much more than its monotonic one


def is_closed(head: bytes) -> bool:
    """True if the window of a rank's file is over; `head` is its begin."""
    return len(head) >= HEAD.size and HEAD.unpack_from(head)[3] == 1


def read_moments(data: bytes) -> Moments | None:
    """What a rank's file holds; None before its window has begun. Raises ValueError if it is damaged."""
    if len(data) < HEAD.size:
        raise ValueError("too short")
    made, count, left_out, closed, first, last, *_ = HEAD.unpack_from(data)
    if made != FORMAT:
        return None
    if HEAD.size + count * MOMENT.size > len(data) or not 0 < first <= last:
        raise ValueError("damaged")
    found = tuple(MOMENT.iter_unpack(memoryview(data)[HEAD.size : HEAD.size + count * MOMENT.size]))
    if not all(abs(at) < LATEST_S for at, _ in found):
        raise ValueError("damaged")
    return Moments(first, last, closed == 1, left_out, found)


def to_json(part: TracePart) -> dict[str, object]:
    """A part as a trace by itself, which Perfetto reads as well. Raises ValueError if no rank has noted a moment."""
    known = {rank: each for rank, each in sorted(part.ranks.items()) if each.moments}
    if not known:
        raise ValueError("no moments")
    shift = part.clock.seconds if part.clock is not None else part.wall_s
    process = part.number + 1
    events = [
        _name("process_name", process, 0, part.host),
        {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": part.number}},
    ]
    for rank, each in known.items():
        thread = FIRST_THREAD + 2 * rank
        events.append(_name("thread_name", process, thread, f"rank {rank}: steps"))
        events.append(_name("thread_name", process, thread + 1, f"rank {rank}"))
        events += [_sorted(process, thread + n, 2 * rank + n) for n in (0, 1)]
        events += _steps(each, process, thread, shift) + _activities(each, process, thread + 1, shift)
    first = next(iter(known.values()))
    about: dict[str, object] = {
        "format": FORMAT, "host": part.host, "attempt": part.attempt, "steps": [first.first, first.last],
        "ranks": list(known), "complete": all(each.closed for each in known.values()),
        "left_out": sum(each.left_out for each in known.values()), "added_s": shift, "wall_s": part.wall_s,
        "within_s": None if part.clock is None else part.clock.within_s,
    }  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms", "metadata": {"algorun": about}}


def _name(what: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _sorted(process: int, thread: int, index: int) -> Event:
    return {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": thread, "args": {"sort_index": index}}


def _slice(name: str, begin: float, end: float, place: tuple[int, int], shift: float) -> Event:
    # Whole microseconds: sums of rounded fractions are a nanosecond off, and Perfetto drops a slice that then begins before
    # the end of the one before it.
    at = round(US * (begin + shift))
    duration = round(US * (end + shift)) - at
    return {"ph": "X", "name": name, "ts": at, "dur": max(0, duration), "pid": place[0], "tid": place[1]}


def _steps(found: Moments, process: int, thread: int, shift: float) -> list[Event]:
    """A slice for each step of the window, from the end of the step before it."""
    ends = [moment for moment, what in found.moments if what == STEP]
    return [
        _slice(f"step {found.first + n}", begin, end, (process, thread), shift)
        for n, (begin, end) in enumerate(pairwise(ends))
    ]


def _activities(found: Moments, process: int, thread: int, shift: float) -> list[Event]:
    """A slice for each activity. One within another lies within it. What was still open ends with the last moment."""
    slices: list[tuple[str, float, float]] = []
    opened: list[int] = []
    last = found.moments[-1][0]
    for moment, what in found.moments:
        if what == END and opened:
            at = opened.pop()
            slices[at] = (*slices[at][:2], moment)
        elif 0 < what <= len(NAMES):
            opened.append(len(slices))
            slices.append((NAMES[what - 1], moment, last))
    return [_slice(*each, (process, thread), shift) for each in slices]


@dataclass(frozen=True, slots=True)
class Merged:
    """One trace of an attempt. `within_s`: how far apart two hosts' clocks may be on it; None if only their wall clocks
    are known."""

    attempt: int
    trace: Mapping[str, object]
    steps: tuple[int, int]
    hosts: int
    ranks: int
    complete: bool
    within_s: float | None

    def line(self, path: str) -> str:
        """What the report says of it."""
        window = f"steps {self.steps[0]} to {self.steps[1]}{'' if self.complete else ', cut short,'}"
        clocks = "their wall clocks" if self.within_s is None else f"clocks within {1000 * self.within_s:.2f} ms"
        plural = "host" if self.hosts == 1 else "hosts"
        on = f"{self.hosts} {plural}" + (f", {clocks}" if self.hosts > 1 else "")
        return f"trace of {window} of {self.ranks} ranks on {on}: {path} (open it at https://ui.perfetto.dev)"


def merged(parts: Sequence[object]) -> list[Merged]:
    """The traces of parts, one for each attempt. What is no part is left out."""
    attempts: dict[int, list[tuple[Mapping[str, object], list[Event]]]] = {}
    for part in parts:
        known = _about(part)
        if known is not None:
            attempts.setdefault(int(str(known[0]["attempt"])), []).append(known)
    return [_merged(attempt, found) for attempt, found in sorted(attempts.items())]


def _about(part: object) -> tuple[Mapping[str, object], list[Event]] | None:
    """What a part says of itself, and its events; None if it is none."""
    if not isinstance(part, dict) or not isinstance(part.get("traceEvents"), list):
        return None
    metadata = part.get("metadata")
    about = metadata.get("algorun") if isinstance(metadata, dict) else None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        return None
    steps, ranks = about.get("steps"), about.get("ranks")
    if type(about.get("attempt")) is not int or not isinstance(ranks, list):
        return None
    if not isinstance(steps, list) or len(steps) != 2 or not all(isinstance(each, int) for each in steps):
        return None
    return about, [each for each in part["traceEvents"] if isinstance(each, dict) and _has_place(each)]


def _has_place(event: Event) -> bool:
    """Whether an event of a file that may be damaged has a moment that can be moved, or none."""
    at = event.get("ts")
    return not isinstance(at, (int, float)) or abs(at) < LATEST_US


def _number(about: Mapping[str, object], key: str) -> float | None:
    value = about.get(key)
    return float(value) if isinstance(value, (int, float)) else None


def _later(event: Event, us: int) -> Event:
    at = event.get("ts")
    return {**event, "ts": at + us} if isinstance(at, (int, float)) else event


def _merged(attempt: int, parts: Sequence[tuple[Mapping[str, object], list[Event]]]) -> Merged:
    """On one clock: the leader's, or where a host's distance from it is not known, all hosts' wall clocks."""
    distances = [_number(about, "within_s") for about, _ in parts]
    known = sorted(each for each in distances if each is not None)
    within = sum(known[-2:]) if len(known) == len(parts) else None
    events: list[Event] = []
    for about, found in parts:
        to_wall = (_number(about, "wall_s") or 0.0) - (_number(about, "added_s") or 0.0)
        later = 0 if within is not None else round(US * to_wall)
        events += [_later(each, later) for each in found]
    starts = [at for each in events if isinstance(at := each.get("ts"), (int, float))]
    begin = int(min(starts, default=0))
    moved = [_later(each, -begin) for each in events]
    first = parts[0][0]["steps"]
    assert isinstance(first, list)
    hosts = [str(about.get("host")) for about, _ in parts]
    ranks = sum(len(listed) for about, _ in parts if isinstance(listed := about.get("ranks"), list))
    complete = all(about.get("complete") is True for about, _ in parts)
    said: dict[str, object] = {
        "attempt": attempt,
        "hosts": hosts,
        "steps": first,
        "complete": complete,
        "within_s": within,
    }
    trace = {"traceEvents": moved, "displayTimeUnit": "ms", "metadata": {"algorun_merged": said}}
    return Merged(attempt, trace, (first[0], first[1]), len(parts), ranks, complete, within)
