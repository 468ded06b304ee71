"""Which hosts need a look while the job runs: idle or throttled GPUs, memory and disks that are nearly full, ranks that
wait for batches. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from algorun.common.fast_dataclasses import dataclass
from algorun.common.sizes import size_text
from algorun.control.failures.failure import listed
from algorun.timing.data_wait import mean_load, verdict
from algorun.timing.host_load import HostLoad

IN_A_ROW = 3  # reports of a host in which it must hold: a shorter one is an accident
AGAIN_S = 600.0  # before a line of the same kind
FULL_MEMORY = 0.95  # of the limit
MOST_HOSTS = 4  # named in a line
LONG_WAIT = 0.2  # of the ranks' time, for batches: from it on there is a line while the job runs
LEAST_WAIT = 0.1  # the same for the line at the end
LEAST_S = 3.0  # of training that the line at the end must have seen


@dataclass(frozen=True, slots=True)
class LoadKind:
    """One thing to warn about: whether it holds for a host (None: the report does not say), and the line about the hosts
    for which it does."""

    holds: Callable[[HostLoad], bool | None]
    line: Callable[[Mapping[str, HostLoad], Mapping[str, HostLoad]], str]  # those hosts, and all


class HostLoads:
    """What all hosts have reported last."""

    def __init__(self) -> None:
        self._loads: dict[str, HostLoad] = {}
        self._rows: dict[tuple[str, str], int] = {}  # how often in a row, by kind and host
        self._named: set[tuple[str, str]] = set()
        self._said_at: dict[str, float] = {}
        self._attempt = 0
        self._trained: dict[str, HostLoad] = {}  # of each host in this attempt, all reports of training together

    def heard(self, now: float, host: str, attempt: int, load: HostLoad) -> list[str]:
        """A host's report. Returns the lines that are due: a kind at most every AGAIN_S, a host once for each kind.

        A line waits for one more report of its first host, so that it names the others as well.
        """
        self._loads[host] = load
        if attempt != self._attempt:
            self._attempt = attempt
            self._trained.clear()
        if load.training:
            self._trained[host] = mean_load([each for each in (self._trained.get(host), load) if each is not None])
        lines = []
        for name, kind in KINDS.items():
            holds = kind.holds(load)
            if holds is None:
                continue
            row = self._rows[name, host] = self._rows.get((name, host), 0) + 1 if holds else 0
            if (
                row > IN_A_ROW
                and (name, host) not in self._named
                and now >= self._said_at.get(name, -AGAIN_S) + AGAIN_S
            ):
                hosts = {each: self._loads[each] for each in self._loads if self._rows.get((name, each), 0) >= IN_A_ROW}
                self._named.update((name, each) for each in hosts)
                self._said_at[name] = now
                lines.append(kind.line(hosts, self._loads))
        return lines

    def at_the_end(self, attempt: int) -> str:
        """The line about ranks that waited for batches in this last attempt; "" if they did not, or little was seen."""
        trained = list(self._trained.values()) if attempt == self._attempt else []
        if not trained or max(each.seconds for each in trained) < LEAST_S:
            return ""
        whole = mean_load(trained)
        return verdict(whole) if (whole.data or 0.0) >= LEAST_WAIT else ""


def _data(hosts: Mapping[str, HostLoad], all_hosts: Mapping[str, HostLoad]) -> str:
    few = len(hosts) < len([each for each in all_hosts.values() if each.ranks])
    return verdict(mean_load(list(hosts.values())), f" on {listed(sorted(hosts))}" if few else "")


def _idle(hosts: Mapping[str, HostLoad], all_hosts: Mapping[str, HostLoad]) -> str:
    idle, gpus = sum(each.idle for each in hosts.values()), sum(each.gpus for each in all_hosts.values())
    where = _named({host: f"{each.idle} of {each.gpus}" for host, each in hosts.items()})
    few = [each for each in hosts.values() if each.ranks < each.gpus]
    if few:
        fix = f"a host with {few[0].gpus} GPUs runs {_ranks(few[0].ranks)}: --slots {few[0].gpus} starts one on each"
    else:
        fix = "their ranks make steps on the CPU, or mostly wait"
    return f"gpus: {idle} of {gpus} GPUs idle: {where}; {fix}"


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _throttled(hosts: Mapping[str, HostLoad], all_hosts: Mapping[str, HostLoad]) -> str:
    count, gpus = sum(each.throttled for each in hosts.values()), sum(each.gpus for each in all_hosts.values())
    reasons = sorted({reason for each in hosts.values() for reason in each.reasons})
    where = _named({host: f"{each.throttled} of {each.gpus}" for host, each in hosts.items()})
    return f"gpus: {count} of {gpus} GPUs run at a lower clock ({listed(reasons)}): {where}; ask for another host if it lasts"


def _memory(hosts: Mapping[str, HostLoad], _: Mapping[str, HostLoad]) -> str:
    used = {host: f"{each.memory:.0%} of {size_text(each.memory_limit_bytes or 0)}" for host, each in hosts.items()}
    return f"memory: nearly full: {_named(used)}; the kernel kills a process at 100%: fewer --workers, a smaller cache or batch"


def _disk(hosts: Mapping[str, HostLoad], _: Mapping[str, HostLoad]) -> str:
    rooms = {host: each.fullest for host, each in hosts.items() if each.fullest is not None}
    free = {
        host: f"{room.folder} has {size_text(room.free_bytes)} free of {size_text(room.size_bytes)}"
        for host, room in rooms.items()
    }
    return f"disk: nearly full: {_named(free)}; keep fewer checkpoints, or give the job a larger volume"


def _named(hosts: Mapping[str, str]) -> str:
    shown = [f"{host} ({text})" for host, text in sorted(hosts.items())[:MOST_HOSTS]]
    rest = len(hosts) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


KINDS: Mapping[str, LoadKind] = {
    "data": LoadKind(lambda load: (load.data or 0.0) >= LONG_WAIT if load.training else None, _data),
    "idle": LoadKind(lambda load: load.idle > 0 if load.training and load.gpus else None, _idle),
    "throttled": LoadKind(lambda load: load.throttled > 0 if load.training and load.gpus else None, _throttled),
    "memory": LoadKind(lambda load: None if load.memory is None else load.memory >= FULL_MEMORY, _memory),
    "disk": LoadKind(lambda load: load.fullest is not None, _disk),
}
