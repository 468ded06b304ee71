"""Two looks at all processes of this host's ranks, for the hub: do they work, or stand still?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from algorun.common.fast_dataclasses import dataclass, replace
from algorun.common.plain_text import plain
from algorun.control.hang import standstill
from algorun.control.hang.hang import Stack
from algorun.control.hang.host_look import HostLook
from algorun.control.hang.standstill import COUNTS_S, ProcessLook, RankLook, Signs
from algorun.host.processes.owner import Stat, processes
from algorun.host.tools import Tools
from algorun.machine import process_counters
from algorun.machine.process_counters import ProcessCounters
from algorun.timing.host_figures import HostFigures

from . import stacks
from .ranks import Ranks

STACKS_S = 0.3  # from the question for stacks until they are read
NODE = -1  # stands for the workers of an engine's node, which belong to no rank
WORKER, IDLE = "ray::", "ray::IDLE"  # how Ray names a worker, and one without a task
LONGEST_NAME = 100  # characters of one that a message has


@dataclass(frozen=True, slots=True)
class LookRules:
    """What a look needs to know: `node` is the process of the engine's node, 0 without one; `alone`: the job has one rank;
    `signs` gives those of a local rank; `limit_s` is that of silence."""

    node: int
    alone: bool
    signs: Callable[[int], Signs]
    limit_s: float


class RankLooks:
    """One question of the hub: counts for a while, looks, looks again `pause_s` later, and hands what it has seen to `on_seen`."""

    def __init__(
        self, tools: Tools, ranks: Ranks, rules: LookRules, pause_s: float, on_seen: Callable[[HostLook], None]
    ) -> None:
        self._tools, self._ranks, self._rules, self._on_seen = tools, ranks, rules, on_seen
        self._pause_s, self._over = pause_s, False
        self._gpu: float | None = None  # how busy the busiest GPU was since the first look
        self._works: dict[int, str] = {}  # what ranks do, by their counts alone: these are not asked for stacks
        members = self._members()
        begun = self._look(members, self._counts(members), {})
        self._after(min(COUNTS_S, pause_s), lambda: self._counted(begun))

    def stop(self) -> None:
        """The attempt is over: nobody waits for an answer."""
        self._over = True

    def _after(self, delay_s: float, then: Callable[[], None]) -> None:
        self._tools.loop.after(delay_s, lambda: None if self._over else then())

    def heard(self, samples: Sequence[HostFigures]) -> None:
        """This host's figures since the last call."""
        busy = [gpu.utilization for each in samples for gpu in each.gpus if gpu.utilization is not None]
        self._gpu = max([*busy, *([] if self._gpu is None else [self._gpu])], default=None)

    def _counted(self, begun: Mapping[int, RankLook]) -> None:
        members = self._members()
        self._works = self._compared(begun, self._look(members, self._counts(members), {}), counts_only=True)
        # The first counts come after the first stacks, and the second ones before: writing a stack is no work.
        self._ask(members)
        self._after(STACKS_S, self._first)

    def _first(self) -> None:
        members = self._members()
        first = self._look(members, self._counts(members), self._stacks(members))
        self._after(self._pause_s, lambda: self._second(first))

    def _second(self, first: Mapping[int, RankLook]) -> None:
        members = self._members()
        counts, at = self._counts(members), self._tools.loop.now()
        self._ask(members)
        self._after(STACKS_S, lambda: self._judge(first, members, counts, at))

    def _judge(
        self,
        first: Mapping[int, RankLook],
        members: Mapping[int, Sequence[int]],
        counts: Mapping[int, ProcessCounters],
        at: float,
    ) -> None:
        works = self._compared(first, self._look(members, counts, self._stacks(members), at)) | self._works
        numbers = {local: rank for local, rank, _ in self._ranks.running()}
        of_ranks = {numbers[local]: text for local, text in works.items() if local in numbers}
        workers = self._workers(members.get(NODE, ())) if not works.get(NODE) else {}
        self._on_seen(standstill.host_look(of_ranks, works.get(NODE, ""), workers))

    def _workers(self, pids: Iterable[int]) -> dict[str, list[Stack]]:
        """What the workers of the engine's node were doing, by their names. The number of a stack is the process's."""
        found: dict[str, list[Stack]] = {}
        for pid in pids:
            if name := _name_in_ray(pid):
                seen = Stack(pid, "", 0, stacks.frames(stacks.read_stacks(pid, self._tools.run_dir)))
                source = stacks.source(seen.own) if seen.own else ""
                found.setdefault(name, []).append(replace(seen, source=source))
        return found

    def _compared(
        self, first: Mapping[int, RankLook], second: Mapping[int, RankLook], *, counts_only: bool = False
    ) -> dict[int, str]:
        """What each rank did; with `counts_only` those alone that have done something."""
        alone = self._rules.alone
        found = {
            local: standstill.work(first[local], look, alone=alone and local != NODE, counts_only=counts_only)
            if local in first
            else "has begun just now"
            for local, look in second.items()
        }
        return {local: text for local, text in found.items() if text or not counts_only}

    # -- processes -----------------------------------------------------------------------------------------------------

    def _members(self) -> dict[int, list[int]]:
        """The processes of each running rank, by its local rank; NODE has the engine's workers at work."""
        found = processes()
        members = {local: _tree(found, [pid]) for local, _, pid in self._ranks.running()}
        if self._rules.node:
            workers = [pid for pid in _tree(found, [self._rules.node]) if _works_for_ray(pid)]
            members[NODE] = _tree(found, workers)
        return members

    def _askable(self, members: Mapping[int, Sequence[int]]) -> set[int]:
        wanted = {pid for local, pids in members.items() if local not in self._works for pid in pids}
        return set(stacks.askable(self._tools.run_dir)) & wanted

    def _ask(self, members: Mapping[int, Sequence[int]]) -> None:
        for pid in self._askable(members):
            stacks.ask(pid, self._tools.run_dir, stacks.MAIN_THREAD)

    def _stacks(self, members: Mapping[int, Sequence[int]]) -> dict[int, str]:
        return {pid: stacks.read_stacks(pid, self._tools.run_dir) for pid in self._askable(members)}

    def _counts(self, members: Mapping[int, Sequence[int]]) -> dict[int, ProcessCounters]:
        tcp = process_counters.received_by_socket()
        counted = {pid: process_counters.count(pid, tcp) for pids in members.values() for pid in pids}
        return {pid: each for pid, each in counted.items() if each is not None}

    def _look(
        self,
        members: Mapping[int, Sequence[int]],
        counts: Mapping[int, ProcessCounters],
        texts: Mapping[int, str],
        at: float = 0.0,
    ) -> dict[int, RankLook]:
        now = at or self._tools.loop.now()
        found = {}
        for local, pids in members.items():
            seen = tuple(self._process(pid, counts[pid], texts.get(pid, "")) for pid in pids if pid in counts)
            signs = self._rules.signs(local) if local != NODE else Signs(0.0)
            by_rule = bool(signs.matched_at) and now - signs.last_at > self._rules.limit_s
            gpu = 1.0 if self._gpu is None else self._gpu  # not measured: it may compute
            found[local] = RankLook(now, signs.last_at, seen, by_rule, gpu)
        return found

    def _process(self, pid: int, counts: ProcessCounters, text: str) -> ProcessLook:
        frames = stacks.END if stacks.ends_python(pid, self._tools.run_dir) else stacks.frames(text)
        own = Stack(0, "", 0, frames).own
        return ProcessLook(
            pid=pid,
            born=counts.born,
            main_s=counts.main_s,
            others_s=counts.others_s,
            moved=counts.moved,
            received=counts.received,
            frames=frames,
            source=stacks.source(own) if own else "",
            stopped=counts.stopped,
            on_gpu=counts.on_gpu,
        )


def _tree(found: Iterable[Stat], roots: Sequence[int]) -> list[int]:
    """These processes, all that they have started, and what is left of their sessions."""
    children: dict[int, list[int]] = {}
    todo = list(roots)
    for stat in found:
        children.setdefault(stat.parent, []).append(stat.pid)
        if stat.session in roots:
            todo.append(stat.pid)
    tree: dict[int, None] = {}
    while todo:
        pid = todo.pop()
        if pid not in tree:
            tree[pid] = None
            todo += children.get(pid, ())
    return sorted(tree)


def _works_for_ray(pid: int) -> bool:
    name = _name_in_ray(pid)
    return bool(name) and not name.startswith(IDLE)


def _name_in_ray(pid: int) -> str:
    """The name that Ray gives to a worker, such as `ray::Trainer.step`; "" for another process."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            name = file.read(LONGEST_NAME).partition(b"\0")[0].decode(errors="replace").strip()
    except OSError:
        return ""
    return plain(name) if name.startswith(WORKER) else ""
