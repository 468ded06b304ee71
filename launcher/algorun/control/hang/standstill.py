"""Whether ranks that show no progress stand still, judged by two looks at their processes. Pure.

A rank that has shown nothing for the limit may compile, download or index a data set. So each host looks at all processes of
its ranks twice, some seconds apart: what has the kernel counted, and where is the main thread of each Python program?
A rank works if between the looks one of its processes used a core, read or wrote, or was at another place. Else it stands.

A stack is asked for by a signal, which can disturb a program: a receive with MSG_WAITALL returns early. So each host first counts
for some seconds, and asks only the ranks of which the counts alone do not say that they work.

A process that waits for other ranks may spin: Open MPI does so in every call, NCCL on the GPU, and CUDA while a program waits for
its GPU. So in such a wait neither its main thread's time nor its GPU's counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from algorun.common.fast_dataclasses import dataclass

from .hang import COLLECTIVE_CALL, WRAPPER, Stack, StackFrame, doing, odd, suspects_of_silence
from .host_look import HostLook

COUNTS_S = 3.0  # of counting before anybody is asked; with a shorter limit as long as that
PAUSE_S = 10.0  # between the two looks; with a shorter limit as long as that
# Between the looks, for each second of the pause. Idle threads of a framework that wake up now and then stay below.
LEAST_CPU = 0.03  # of a core
LEAST_BYTES = 1600.0  # read, written, or received over TCP
# As the line before, of a process that waits for others: the signs of life of torch's store come to rank 0 from all ranks.
LEAST_BYTES_IN_WAIT = 100e3
LEAST_GPU = 0.05  # of a GPU's time
# Where libraries wait for other ranks, and may spin (a file).
SPINS = r"/torch/distributed/(distributed_c10d|_functional_collectives|rendezvous)\.py$|/horovod/|/deepspeed/comm/|/mpi4py/|^<end>$"
# Calls in a line that take no time of their own: a line that makes another call may compute before it waits.
CHEAP = r"(?i)len|int|float|str|dict|list|tuple|set|range|print|array|zeros|ones|empty|zeros_like|empty_like|get|get_rank|get_size"
MOST_RANKS = 8  # that a message names


@dataclass(frozen=True, slots=True)
class Signs:
    """What a rank has shown of its progress so far, by its host's monotonic clock; 0.0: never.

    `printed_at`: its last output, or its start. `matched_at`: its last line that ALGORUN_PROGRESS matches.
    `reported_at`: its last call of algorun.progress(). `steps` are counted: another rule judges this rank.
    """

    printed_at: float
    matched_at: float = 0.0
    reported_at: float = 0.0
    steps: bool = False

    @property
    def last_at(self) -> float:
        """Once a line has matched, other lines say nothing any more."""
        return max(self.matched_at or self.printed_at, self.reported_at)


def silent_s(ranks: Sequence[Signs], now: float, limit_s: float) -> float:
    """The seconds since the last sign of any of a host's `ranks`; 0.0 where that is less than the limit, or one counts steps."""
    if not ranks or any(each.steps for each in ranks):
        return 0.0
    idle_s = now - max(each.last_at for each in ranks)
    return idle_s if idle_s > limit_s else 0.0


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """A process at one moment; `born` tells it from a later one with its number.

    `main_s`: seconds of CPU of its main thread so far. `others_s`: those of its other threads, and of its children that have
    ended. Both have the time in which a thread was ready and no core was free; threads in which libraries spin are left out.
    `moved`: bytes that it has read and written, and pages that it has fetched from disks. `received`: bytes by TCP.
    `frames` are its main thread's, none where it cannot be asked; `source` as in Stack. `on_gpu`: it has opened a GPU.
    """

    pid: int
    born: int
    main_s: float = 0.0
    others_s: float = 0.0
    moved: int = 0
    received: int = 0
    frames: tuple[StackFrame, ...] = ()
    source: str = ""
    stopped: bool = False
    on_gpu: bool = False

    @property
    def waits_for_ranks(self) -> bool:
        """True where it is in a call that waits for other ranks, or for a GPU that may wait for them: it may spin."""
        if not self.frames:
            return False
        stack = Stack(0, "", 0, self.frames, source=self.source)
        if self.on_gpu and stack.wait:
            return True
        inside = next((frame for frame in self.frames if not re.search(WRAPPER, frame.file)), self.frames[0])
        if re.search(SPINS, inside.file) or stack.starts_mpi:
            return True
        call = re.search(COLLECTIVE_CALL, self.source) if stack.own == self.frames[0] else None
        others = re.findall(r"(\w+)\(", self.source.replace(call[0], " ", 1)) if call else []
        return call is not None and all(re.fullmatch(CHEAP, each) for each in others)


@dataclass(frozen=True, slots=True)
class RankLook:
    """A rank at one moment `at`: its last sign of progress, and its processes.

    `by_rule`: no line has matched ALGORUN_PROGRESS for the limit, so it stands whatever it does. `gpu`: how busy the busiest
    GPU of its host was since the look before, 0 to 1.
    """

    at: float
    sign_at: float
    processes: tuple[ProcessLook, ...]
    by_rule: bool = False
    gpu: float = 0.0


def work(first: RankLook, second: RankLook, *, alone: bool, counts_only: bool = False) -> str:
    """What a rank did between two looks, in a few words; "" where it stands. `alone`: the job has no other rank to wait for.

    `counts_only`: the looks have no stacks, and the answer is "" also where only a stack can tell.
    """
    if second.sign_at > first.at:
        return "has gone on"
    if second.by_rule:
        return ""
    before = {(each.pid, each.born): each for each in first.processes}
    after = {(each.pid, each.born): each for each in second.processes}
    if before.keys() != after.keys():
        return "starts or ends processes"
    pause_s = second.at - first.at
    waits = {key: counts_only or (not alone and look.waits_for_ranks) for key, look in after.items()}
    found = (_work_of_process(before[key], after[key], pause_s, second.gpu, waits=waits[key]) for key in after)
    return next(filter(None, found), "")


def _work_of_process(before: ProcessLook, after: ProcessLook, pause_s: float, gpu: float, *, waits: bool) -> str:
    if after.stopped:
        return ""
    if before.frames != after.frames:
        return f"was at {_place(before)}, then at {_place(after)}"
    cpu_s = after.others_s - before.others_s + (0.0 if waits else after.main_s - before.main_s)
    if cpu_s > LEAST_CPU * pause_s:
        return "computes"
    least = (LEAST_BYTES_IN_WAIT if waits else LEAST_BYTES) * pause_s
    if after.moved - before.moved > least:
        return "reads or writes"
    if after.received - before.received > least:
        return "receives data"
    return "uses its GPU" if after.on_gpu and gpu > LEAST_GPU and not waits else ""


def _place(look: ProcessLook) -> str:
    return look.frames[0].where if look.frames else "an unknown place"


def host_look(
    works: Mapping[int, str], node: str = "", workers: Mapping[str, Sequence[Stack]] | None = None
) -> HostLook:
    """From what `work` says of each rank of a host. `workers`: the stacks of the processes of each worker of an engine's node, by
    the name under which it runs."""
    standing = tuple(rank for rank, text in works.items() if not text)
    working = tuple(rank for rank, text in works.items() if text)
    does = works[working[0]] if working else ""
    named = {stack.rank: name for name, stacks in (workers or {}).items() for stack in stacks}
    stacks = [stack for stacks in (workers or {}).values() for stack in stacks if stack.frames]
    if node or not stacks:
        return HostLook(standing, working, does, node)
    held_up_by = odd(suspects_of_silence(stacks))
    waits = bool(held_up_by.wait or held_up_by.receives)
    return HostLook(standing, working, does, "", named[held_up_by.rank], doing(held_up_by), waits)


def all_stand(hosts: Collection[HostLook]) -> bool:
    """True where nothing of the whole job works, and something stands."""
    return any(each.standing for each in hosts) and not any(each.working or each.node for each in hosts)


def worker_that_stands(hosts: Mapping[str, HostLook]) -> str:
    """Which worker of an engine's nodes holds the others up, and where it is; "" where there are no workers."""
    found = [(each.worker_waits, host, each) for host, each in hosts.items() if each.worker]
    if not found:
        return ""
    _, host, look = min(found, key=lambda item: item[:2])
    return f"{look.worker} on {host}: {look.worker_does}"


def part_stands(hosts: Mapping[str, HostLook], idle_s: float) -> str:
    """A warning where some ranks stand while others work; "" where that is not so."""
    standing = sorted(rank for each in hosts.values() for rank in each.standing)
    working = sorted((rank, each.does) for each in hosts.values() for rank in each.working[:1])
    nodes = [f"a worker on {host} {each.node}" for host, each in hosts.items() if each.node]
    if not standing or not (working or nodes):
        return ""
    who = f"rank {working[0][0]} {working[0][1]}" if working else nodes[0]
    verb = "stands" if len(standing) == 1 else "stand"
    return f"no sign of progress for {idle_s:.0f} s: {_ranks(standing)} {verb} still, but {who}; the job goes on"


def _ranks(ranks: Sequence[int]) -> str:
    more = len(ranks) - MOST_RANKS
    names = ", ".join(map(str, ranks[:MOST_RANKS]))
    return f"rank{'' if len(ranks) == 1 else 's'} {names}{f' and {more} more' if more > 0 else ''}"
