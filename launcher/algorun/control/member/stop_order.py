"""Which processes of a rank are told to stop, and when: the training, wherever it runs below the rank. Pure.

A rank may be a wrapper: a shell, `accelerate launch`, a Python program that waits for a child. SIGTERM ends a wrapper that does not
handle it, and the training below it never hears of the stop. So the processes that handle SIGTERM are told first, each of them
once; what is below one of them is its own affair (the workers of its data loader must live until it has saved). With them
the shells above them are told, which would start their next command. Only if nothing handles SIGTERM, or once what
handles it has ended, are the others told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from algorun.common.fast_dataclasses import dataclass

WRAPPER_S = 2.0  # after the end of the training: a wrapper may still copy its results


@dataclass(frozen=True, slots=True)
class Seen:
    """A process as /proc shows it. `born` tells it from a later one with its number."""

    pid: int
    parent: int
    born: int  # clock ticks since the machine's start
    handles: bool = False  # SIGTERM has a handler
    ignores: bool = False
    is_shell: bool = False
    is_loader: bool = False  # a worker of torch's DataLoader, whose handler saves nothing
    reads: str = ""  # the pipe that is its standard input
    writes: tuple[str, ...] = ()  # the pipes that are its standard output and standard error
    holds: tuple[str, ...] = ()  # of a shell: the other pipes that it may read


class StopOrder:
    """The order of one rank, whose process is `root`. A process that has been below the rank stays known when its parent ends."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._known: dict[int, int] = {}  # born, by pid
        self._asked: dict[int, int] = {}
        self.some_handled = False  # a process that handles SIGTERM was told
        self._quiet_since: float | None = None

    def next(self, now: float, seen: Sequence[Seen]) -> list[int]:
        """The processes to tell now. Call it again and again until the rank and all that it has started have ended."""
        below = self._below(seen)
        alive = [each for each in below.values() if self._asked.get(each.pid) == each.born]
        consumers = _consumers(below.values())
        children = _children(below.values())
        roots = [each for each in below.values() if each.parent not in below]
        topmost = _handling(roots, children)
        handling = [each for each in topmost if each.pid not in consumers] or topmost
        fresh = [each for each in handling if self._asked.get(each.pid) != each.born]
        if fresh:
            self.some_handled, self._quiet_since = True, None
            return self._ask([*fresh, *self._shells(fresh, below)])
        if self.some_handled:
            if any(each.handles for each in alive):
                return []
            if self._quiet_since is None:
                self._quiet_since = now
            if now - self._quiet_since < WRAPPER_S:
                return []
        left = [each for each in _with_shells(roots, children) if each.pid not in consumers and not each.ignores]
        return self._ask([each for each in left if self._asked.get(each.pid) != each.born])

    def _shells(self, told: Sequence[Seen], below: dict[int, Seen]) -> list[Seen]:
        """The shells above these processes. One that reads their output, as in `x=$(python train.py)`, must not end before."""
        found = {}
        for each in told:
            written = set(each.writes)
            above = below.get(each.parent)
            while above is not None:
                if above.is_shell and not above.ignores and not written & {above.reads, *above.holds}:
                    found[above.pid] = above
                written |= set(above.writes)
                above = below.get(above.parent)
        return [each for each in found.values() if self._asked.get(each.pid) != each.born]

    def _ask(self, chosen: Iterable[Seen]) -> list[int]:
        found = {each.pid: each.born for each in chosen}
        self._asked |= found
        return list(found)

    def _below(self, seen: Sequence[Seen]) -> dict[int, Seen]:
        """The rank's process and all that it has started, by pid."""
        children = _children(seen)
        begin = [each for each in seen if each.pid == self._root or self._known.get(each.pid) == each.born]
        found: dict[int, Seen] = {}
        while begin:
            each = begin.pop()
            if each.pid not in found:
                found[each.pid] = each
                begin += children.get(each.pid, ())
        self._known |= {each.pid: each.born for each in found.values()}
        return found


def _children(seen: Iterable[Seen]) -> dict[int, list[Seen]]:
    found: dict[int, list[Seen]] = {}
    for each in seen:
        found.setdefault(each.parent, []).append(each)
    return found


def _handling(roots: Sequence[Seen], children: dict[int, list[Seen]]) -> list[Seen]:
    """The topmost processes that handle SIGTERM."""
    found, todo = [], list(roots)
    while todo:
        each = todo.pop()
        if each.handles and not each.is_loader:
            found.append(each)
        else:
            todo += children.get(each.pid, ())
    return found


def _with_shells(roots: Sequence[Seen], children: dict[int, list[Seen]]) -> list[Seen]:
    """The processes at the top, and below a shell, which passes no signal on, its children too."""
    found, todo = [], list(roots)
    while todo:
        each = todo.pop()
        found.append(each)
        if each.is_shell:
            todo += children.get(each.pid, ())
    return found


def _consumers(seen: Iterable[Seen]) -> set[int]:
    """Those that read the output of another one, such as `tee`: they end with what they read, and must not end before."""
    written = {pipe for each in seen for pipe in each.writes}
    return {each.pid for each in seen if each.reads in written and each.reads not in each.writes}
