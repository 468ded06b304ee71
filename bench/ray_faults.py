"""Faults of a Ray job in containers: how long until each host is out, with which code, and what the reason says."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from bench.containers import docker
from bench.ray_hosts import Job

READY_S = 240.0  # until the driver waits
# Prints the time and kills: what `docker exec` itself takes does not count.
KILL = """
import os, signal, sys, time
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        continue
    if name == sys.argv[1]:
        print(time.time())
        os.kill(int(pid), signal.SIGKILL)
"""


@dataclass(frozen=True)
class Fault:
    """One fault. `inject` returns the time at which it hit; None: the driver's mark `fault` says when."""

    name: str
    mode: str
    inject: Callable[[Job], float] | None = None
    options: tuple[str, ...] = ()
    absent: bool = False
    """the last host never comes"""
    limit_s: float = 0.0
    """longer than other faults are waited for"""
    environ: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """How a job with a fault ended, by host."""

    fault: str
    launcher: str
    seconds: dict[str, float | None]
    """from the fault to the host's end; None: it still ran when the time was over"""
    codes: dict[str, int | None]
    reasons: dict[str, str]
    """the first line of output/failure"""
    limit_s: float


def kill(process: str, at: int) -> Callable[[Job], float]:
    def inject(job: Job) -> float:
        said = docker("exec", job.container(job.hosts[at]), "python3", "-c", KILL, process)
        return float(said.split()[0])

    return inject


def send(signal: str, at: int) -> Callable[[Job], float]:
    def inject(job: Job) -> float:
        now = time.time()
        docker("kill", "--signal", signal, job.container(job.hosts[at]))
        return now

    return inject


MEMORY = ("--memory", "2500m", "--memory-swap", "2500m")
FAULTS = [
    Fault("the driver raises", "driver_raises"),
    Fault("an actor raises on a follower", "actor_raises"),
    Fault("a worker takes too much memory", "memory", options=MEMORY),
    # Ray's own monitor is off: it is too late if a worker takes memory fast.
    Fault("the kernel kills a worker for memory", "memory", options=MEMORY, environ={"RAY_memory_monitor_refresh_ms": "0"}),
    Fault("a follower's raylet is killed", "wait", kill("raylet", -1)),
    Fault("the head's gcs_server is killed", "wait", kill("gcs_server", 0)),
    Fault("the leader's container is killed", "wait", send("KILL", 0)),
    Fault("SIGTERM on a follower", "save", send("TERM", -1)),
    # The sample waits for 300 s, which no option changes.
    Fault("a host never comes", "tasks", absent=True, limit_s=420.0, environ={"ALGORUN_GATE_S": "60"}),
]  # fmt: skip


def observe(fault: Fault, job: Job, limit_s: float) -> Result:
    """Starts the job, injects the fault, and waits until all hosts are out or the time is over."""
    there = job.hosts[:-1] if fault.absent else job.hosts
    limit_s = max(limit_s, fault.limit_s)
    job.start(there)
    if fault.absent:
        hit = max(job.at(host, "StartedAt") for host in there)
    else:
        job.wait_for("ready", READY_S)
        if fault.inject is not None:
            job.wait_for("waiting", READY_S)
            hit = fault.inject(job)
    ends = job.ends(there, limit_s)
    if fault.inject is None and not fault.absent:
        found = job.mark("fault")
        if found is None:
            raise TimeoutError(f"{fault.name}: it did not happen\n{job.log(job.leader)[-3000:]}")
        hit = found
    return Result(
        fault.name,
        job.launcher.name,
        {host: round(end[1] - hit, 1) if end else None for host, end in ends.items()},
        {host: end[0] if end else None for host, end in ends.items()},
        {host: job.failure(host) for host in there},
        limit_s,
    )


def rows(results: list[Result]) -> list[dict[str, object]]:
    return [asdict(result) for result in results]


def show(results: list[Result]) -> None:
    """The table in Markdown."""
    print(
        "\n| fault | launcher | seconds until out | exit codes | first line of `output/failure` |\n|---|---|---|---|---|"
    )
    for result in results:
        seconds = ", ".join(
            f"> {result.limit_s:g}" if each is None else f"{each:.1f}" for each in result.seconds.values()
        )
        codes = ", ".join("runs" if each is None else str(each) for each in result.codes.values())
        reasons = list(dict.fromkeys(each or "none" for each in result.reasons.values()))
        says = "; ".join(f"`{each[:200]}`" if each != "none" else each for each in reasons)
        print(f"| {result.fault} | {result.launcher} | {seconds} | {codes} | {says} |")
