"""What is done to a job, and what is looked at afterwards besides exit codes and output/failure."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable

from algorun.control.host_loss import RESET_S

from .job import CONTROL_PORT, HOSTS, PROGRAMS, START_S, UP_S, Job

LATE_S = 20.0
CABLE_S = 0.005  # each way
MOVED_S = 9.0
UNREAD_S = 2.5  # heartbeats that a host does not read
PAUSE_S = 60.0

Scenario = Callable[[Job], float]
"""starts the hosts, does it, returns the monotonic time of the fault"""


def _up(job: Job) -> None:
    job.start()
    job.wait_for(r"\bup \d", 4)
    time.sleep(0.2)


def a_rank(action: str) -> Scenario:
    """The last rank comes to grief."""

    def run(job: Job) -> float:
        _up(job)
        return job.inject(action)

    return run


def when_up(do: Callable[[Job], object]) -> Scenario:
    """Something is done to a job at work."""

    def run(job: Job) -> float:
        _up(job)
        at = time.monotonic()
        do(job)
        return at

    return run


def gap(seconds: float, *, names: bool = True) -> Scenario:
    """The network of algo-2 is gone for so long; the leader tells of it, and then a stop must still reach all ranks.

    Without `names` none resolves any more on algo-2.
    """

    def run(job: Job) -> float:
        _up(job)
        at = time.monotonic()
        job.network.cut("algo-2")
        if not names:
            job.hosts["algo-2"].forget()
        time.sleep(max(0.0, at + seconds - time.monotonic()))
        job.network.join("algo-2")
        back = time.monotonic()
        job.wait_for(r"no sign of life from algo-2 for [\d.]+ s; it is back", 1, START_S)
        job.measured = time.monotonic() - back
        process = job.hosts["algo-2"].process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        return at

    return run


def killed(host: str) -> Scenario:
    return when_up(lambda job: job.hosts[host].cgroup.kill())


def killed_with_unread_bytes(host: str) -> Scenario:
    """Its kernel then sends a reset, as for a connection that it has forgotten."""

    def run(job: Job) -> float:
        _up(job)
        job.hosts[host].cgroup.freeze()
        time.sleep(UNREAD_S)
        at = time.monotonic()
        job.hosts[host].cgroup.kill()
        return at

    return run


def _stopped(job: Job) -> None:
    """A stop must still reach all ranks: how long that takes is what the case measures."""
    process = job.hosts["algo-2"].process
    assert process is not None
    at = time.monotonic()
    process.send_signal(signal.SIGTERM)
    job.measured = job.end(at + START_S) - at


def supervisor_paused(seconds: float) -> Scenario:
    """The supervisor of algo-2 alone stands still for so long; its ranks go on."""

    def run(job: Job) -> float:
        at = signalled(signal.SIGSTOP, "algo-2")(job)
        process = job.hosts["algo-2"].process
        assert process is not None
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)
        job.wait_for(r"no sign of life from algo-2 for [\d.]+ s; it is back", 1, START_S)
        _stopped(job)
        return at

    return run


def bad_network(lost: float, late: float, seconds: float) -> Scenario:
    """From before the start packets are lost, and some overtake others."""

    def run(job: Job) -> float:
        job.network.bad_cable(job.helper, str(CABLE_S), str(lost), str(late))
        _up(job)
        at = time.monotonic()
        time.sleep(seconds)
        _stopped(job)
        return at

    return run


def moved(job: Job) -> float:
    """algo-2 gets another address, and must be there still after the time of a lost host."""
    _up(job)
    at = time.monotonic()
    job.network.move("algo-2")
    time.sleep(MOVED_S)
    _stopped(job)
    return at


def reset(*hosts: str) -> Scenario:
    """The control connection is reset for each of these hosts in turn; a stop must still reach all ranks."""

    def run(job: Job) -> float:
        _up(job)
        at = time.monotonic()
        for host in hosts:
            other = next(name for name in HOSTS if name != host)
            said = job.helper(other, str(PROGRAMS / "resets.py"), job.network.addresses[host], str(CONTROL_PORT))
            assert said == "reset\n", said
            time.sleep(RESET_S + 0.5)  # a side that waits in vain has given up by then
        assert not any(host.joined(0) for host in job.hosts.values()), job.show()
        _stopped(job)
        return at

    return run


def narrowed(action: str, mtu: int) -> Scenario:
    """The network of algo-2 loses large packets from now on; then its last rank comes to grief."""

    def run(job: Job) -> float:
        _up(job)
        job.network.narrow("algo-2", mtu)
        return job.inject(action)

    return run


def signalled(number: int, *hosts: str) -> Scenario:
    def do(job: Job) -> None:
        for host in hosts:
            process = job.hosts[host].process
            assert process is not None
            process.send_signal(number)

    return when_up(do)


def paused(job: Job) -> float:
    """algo-2 stands still for a minute, and must find out by itself that the job is over."""
    _up(job)
    at = time.monotonic()
    job.hosts["algo-2"].cgroup.freeze()
    gone = job.end(at + PAUSE_S, ["algo-1"])
    time.sleep(max(0.0, at + PAUSE_S - time.monotonic()))
    woken = time.monotonic()
    job.hosts["algo-2"].cgroup.freeze(False)
    job.end(woken + 15)
    job.measured = max(gone - at, job.hosts["algo-2"].left_at - woken)
    return at


def supervisor_killed(host: str) -> Scenario:
    """SIGKILL to one supervisor: the ranks that it leaves alone must end too."""

    def run(job: Job) -> float:
        at = signalled(signal.SIGKILL, host)(job)
        ranks_gone = at + 15
        while job.hosts[host].cgroup.pids():
            assert time.monotonic() < ranks_gone, f"the ranks of {host} are still there\n{job.show()}"
            time.sleep(0.02)
        ranks_gone = time.monotonic()
        other = next(name for name in HOSTS if name != host)
        job.measured = max(ranks_gone, job.end(at + 30, [other])) - at
        return at

    return run


def at_the_start(*hosts: str) -> Scenario:
    """The fault is there from the beginning."""
    return lambda job: job.start(*hosts)


def other_order(job: Job) -> float:
    """Each host's file lists itself first."""
    path = job.hosts["algo-2"].ml / "input/config/resourceconfig.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hosts": HOSTS[::-1]}))
    return job.start()


def _open(job: Job, at: float) -> float:
    """The gate opens: the leader shows who is there."""
    job.wait_for(r"(?m)^algorun .*engine", 1)
    job.measured = time.monotonic() - at
    return at


def late_host(job: Job) -> float:
    job.start("algo-1")
    time.sleep(LATE_S)
    return _open(job, job.start("algo-2"))


def late_name(job: Job) -> float:
    job.start()
    time.sleep(LATE_S)
    at = time.monotonic()
    job.hosts["algo-2"].learn("algo-1")
    return _open(job, at)


def busy_port(job: Job) -> float:
    job.helper("algo-1", str(PROGRAMS / "holds_port.py"), job.network.addresses["algo-1"], str(CONTROL_PORT))
    return job.start()


def on_its_own(job: Job) -> float:
    """The program has its fault built in."""
    job.start()
    injected = job.hosts["algo-2"].ml / "injected-0"
    job.until(injected.exists, "the first fault", UP_S)
    return float(injected.read_text())


# ---- checks ---------------------------------------------------------------------------------------------------------


def saved(job: Job) -> None:
    for rank in range(4):
        host = HOSTS[rank // 2]
        assert (job.hosts[host].ml / f"checkpoints/rank-{rank}").read_text() == "complete", job.show()
    assert all(host.closing_line.startswith("stopped ") for host in job.hosts.values()), job.show()


def stacks(job: Job) -> None:
    """Stacks of all ranks are kept, that of the odd one shows where it sleeps."""
    for rank in range(4):
        path = job.hosts[HOSTS[rank // 2]].ml / f"output/data/stacks-rank-{rank:05d}.txt"
        assert path.exists(), f"no {path.name}\n{job.show()}"
        text = path.read_text()
        assert "training.py" in text, text
        assert ("in stuck" in text) == (rank == 3), text


def warned(pattern: str) -> Callable[[Job], None]:
    def check(job: Job) -> None:
        texts = "".join(host.text for host in job.hosts.values())
        assert re.search(pattern, texts), f"{pattern!r} is not in the logs\n{job.show()}"

    return check


def three_ranks(job: Job) -> None:
    text = "".join(host.text for host in job.hosts.values())
    for rank, host in ((0, "algo-1"), (1, "algo-1"), (2, "algo-2")):
        assert f"[{rank} {host}] up {rank} 3" in text, job.show()


def resumed(job: Job) -> None:
    text = "".join(host.text for host in job.hosts.values())
    for attempt, step in ((0, 0), (1, 1), (2, 11)):
        steps = [int(found) for found in re.findall(rf"resumed attempt={attempt} step=(\d+)", text)]
        assert len(steps) == 4, f"attempt {attempt}: {steps}\n{job.show()}"
        assert len(set(steps)) == 1, steps
        assert steps[0] >= step, steps


def told(job: Job) -> float:
    """From a stop until the last rank has heard of it."""
    stamps = [float(path.read_text()) for host in job.hosts.values() for path in host.ml.glob("told-?")]
    assert len(stamps) == 4, f"{len(stamps)} ranks were told\n{job.show()}"
    return max(stamps) - job.fault_at


def since_the_last(job: Job) -> float:
    """From the last fault until the last host has left."""
    faults = [float(path.read_text()) for host in job.hosts.values() for path in host.ml.glob("injected-?")]
    assert len(faults) == 2, f"{len(faults)} faults\n{job.show()}"
    return max(host.left_at for host in job.hosts.values()) - max(faults)


def restarts(job: Job) -> float:
    """The longest time from a fault until all ranks of the next attempt have begun, before they import anything."""
    stamps = {path.name: float(path.read_text()) for host in job.hosts.values() for path in host.ml.glob("*-*[0-9]")}
    attempts = sum(name.startswith("began-0-") for name in stamps)
    assert attempts > 1, f"no restart\n{job.show()}"
    return max(
        max(stamps[f"began-{rank}-{attempt}"] for rank in range(4)) - stamps[f"injected-{attempt - 1}"]
        for attempt in range(1, attempts)
    )
