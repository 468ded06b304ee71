"""Why a process ended itself by a signal, from the end of what it has printed. Pure.

Libraries call abort() after one line that says why. The stacks that follow it are long, and only they are left of an end
that is cut: torch's watchdog prints three of them after "Watchdog caught collective operation timeout".
"""

from __future__ import annotations

import itertools
import re

from . import tracebacks

# Patterns are text, compiled at the first failure: no start waits for that. Each `why` is what the failure says.
THROWN = r"terminate called after throwing an instance of '(?P<type>[^']*)'"
WHAT = r" *what\(\): +(?P<why>.*)"
TERMINATE = r"(?P<why>terminate called (without an active exception|recursively).*)"
# faulthandler's echo of the signal says nothing new: "Fatal Python error: Aborted".
ECHO = r"Fatal Python error: (Aborted|Segmentation fault|Bus error|Illegal instruction|Floating.point exception)"
WORDS = (
    rf"(?!{ECHO})(?P<python>Fatal Python error: .*)"
    # The C library: heap, stack, buffers, assert().
    r"|(?P<heap>((free|[mc]alloc|realloc|munmap_chunk|malloc_consolidate)\(\): |double free or corruption|corrupted size vs"
    r"|corrupted double-linked|unsorted double linked list).*)"
    r"|(?P<smashed>\*\*\* (stack smashing|buffer overflow) detected .*)"
    r"|(?P<asserted>.*: Assertion [`'].* failed\.)"
    # glog and absl, as in JAX, TensorFlow and torch; OpenMP; LLVM, as in Triton; Rust, as in tokenizers.
    r"|\[?F\d{3,8} [^\]]*\] (?P<check>.*)"
    r"|(?P<openmp>OMP: Error #\d+: .*)"
    r"|(?P<llvm>LLVM ERROR: .*)"
    r"|(?P<rust>thread '.*' (\(\d+\) )?panicked at .*)"
)
# torch's watchdog of NCCL wraps its words: [PG ID 0 ..] Process group watchdog thread terminated with exception: [Rank 0] ..
WRAPPED = r"((\[PG ID [^\]]*\]|Process group watchdog thread terminated with exception:|\[Rank \d+\]) )*"
ELAPSED = r" ran for \d+ milliseconds before timing out\.$"  # another number on each rank, of one failure
MARK = r"\[rank\d+\]: ?"  # torch writes it before lines of a rank
# torch's flight recorder: "Stack trace of the failed collective:", the call first.
COLLECTIVE = r"Stack trace of the failed collective"
CALL = r"#\d+ .* from (?P<file>\S.*):(?P<line>\d+)$"
# faulthandler: the thread that got the signal, the innermost call first. Other dumps are of healthy processes.
FATAL = "Fatal Python error: "
CURRENT = r"Current thread .*\(most recent call first\):"
NOT_OWN = rf"^<|{tracebacks.LIBRARY}"
SEARCHED = 2000  # characters of a line that are looked at


def words(tail: str) -> str:
    """The last line that says why the process aborted; "" without one."""
    lines = _lines(tail)
    for at in reversed(range(len(lines))):
        if why := _why(lines, at):
            return re.sub(ELAPSED, "", re.sub(WRAPPED, "", why, count=1))
    return ""


def _why(lines: list[str], at: int) -> str:
    """What line `at` says, with what belongs to it on the lines beside it; "" for any other line."""
    thrown = re.match(THROWN, lines[at - 1]) if at else None
    if found := re.match(WHAT, lines[at]):
        told = found["why"].strip()
        why = re.sub(WRAPPED, "", told, count=1)
        return f"{thrown['type']}: {why}" if thrown and why == told else why
    if found := re.match(THROWN, lines[at]):
        return found["type"]  # without words
    if found := re.match(TERMINATE, lines[at]):
        return found["why"]
    if found := re.match(WORDS, lines[at]):
        why = next(text for text in found.groupdict().values() if text is not None).strip()
        # Rust says why on the next line.
        return f"{why} {lines[at + 1].strip()}".strip() if found["rust"] and at + 1 < len(lines) else why
    return ""


def place(tail: str, code: str) -> str:
    """The user's own line that the process was at, as `train.py:6`; "" where no stack of Python's calls is there. `code` as in
    tracebacks.place."""
    lines = _lines(tail)
    for begin in reversed(range(len(lines))):
        if re.search(COLLECTIVE, lines[begin]):
            call = CALL
        elif re.match(CURRENT, lines[begin]) and any(
            line.startswith(FATAL) for line in lines[max(0, begin - 3) : begin]
        ):
            call = tracebacks.FRAME
        else:
            continue
        calls = itertools.takewhile(bool, (re.match(call, line) for line in lines[begin + 1 :]))
        own = [(found[1], found[2]) for found in calls if found and not re.search(NOT_OWN, found[1])]
        inside = [each for each in own if tracebacks.below(each[0], code) != each[0]]
        for file, number in (inside or own)[:1]:
            return f"{tracebacks.below(file, code)}:{number}"
    return ""


def _lines(tail: str) -> list[str]:
    return [re.sub(rf"^{MARK}", "", line[:SEARCHED]) for line in tail.split("\n")]
