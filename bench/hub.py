"""What the hub costs: a real leader, and simulated hosts that speak the real protocol over real TCP.

The leader is the command line with a job of N hosts whose own rank sleeps. The other N-1 hosts live in one process,
each with a loopback address and the launcher's own link (network/link.py): hello, ready, a heartbeat each second, and
every 10 s a report of what its ranks do and one of how busy it is. At the end one of them reports a failure, and all
leave with the verdict. The leader's own ranks make no steps, so the hub reads and keeps all reports but compares no
ranks (0.03 s for 8,000 ranks).
Measured, as medians over the rounds:

- share: CPU time of the leader's supervisor while all hosts run, in percent of one core (/proc/PID/stat)
- gate: from the first connection until the last host has `go`
- verdict: from one host's `fail` until the last host has `end`; the blame window (1 s) is in it

    python bench/hub.py [--hosts 64,256,512,1000] [--ranks 8] [--rounds 3] [--seconds 20] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from algorun.common.event_loop import Loop
from algorun.common.free_ports import free_ports
from algorun.control.failures.failure import Failure
from algorun.control.wire import wire
from algorun.control.wire.messages import Bye, End, Fail, Go, Heartbeat, Hello, Load, Message, Pace, Ready, Refuse
from algorun.job import config
from algorun.job.request import LaunchRequest
from algorun.machine import probe
from algorun.network import channel
from algorun.network.channel import ControlChannel
from algorun.plan import agreement, cluster
from algorun.timing.activities import NAMES
from algorun.timing.host_load import HostLoad
from algorun.timing.rank_times import RankTimes

LEADER = "127.0.0.1"
CODE = 7  # of the failure at the end
LIMIT_S = 120.0  # for each phase of a round
SETTLE_S = 2.0  # between the last `go` and the measured time
SLEEPS = "import time\ntime.sleep(3600)\n"
LOAD = HostLoad(
    *(True, 10.0, 8, 0.0123, 0.4567, 96, 123456789.123, 234567890.234, 0.4321, 1 << 40, None, 8, 0, 0, ()),
)
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Round:
    """One round with one number of hosts. `share` in percent of a core, the others in seconds and bytes."""

    hosts: int
    share: float
    gate_s: float
    verdict_s: float
    go_bytes: int


def cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


class _User:
    """One simulated host above its channel."""

    def __init__(self, hosts: Hosts, host: str) -> None:
        self._hosts, self._host = hosts, host

    def receive(self, message: Message) -> None:
        self._hosts.heard(self._host, message)

    def hub_lost(self, reason: str) -> None:
        self._hosts.give_up(f"{self._host}: {reason}")

    def leave(self) -> None:
        """A follower waits for nobody."""

    def tell(self, text: str) -> None:
        print(f"{self._host}: {text}", file=sys.stderr)


class Hosts:
    """All hosts but the leader, in one loop."""

    def __init__(self, job: config.JobConfig, leader_pid: int, seconds: float) -> None:
        machine = probe.look(job.environ)
        self._job, self._pid, self._seconds = job, leader_pid, seconds
        self._first = agreement.at_first(job, machine)
        slots = cluster.own_slots(job, machine).value
        self._ready = Ready(slots, agreement.at_the_start(job, machine, "", slots))
        self._loop = Loop()
        self._links: dict[str, ControlChannel] = {}
        self._waiting = set(job.resources.hosts[1:])
        self._running: set[str] = set()
        self._started = self._failed_at = self.gate_s = self.verdict_s = self.share = 0.0
        self.go_bytes = 0
        self.trouble = ""

    def run(self) -> None:
        """From the first connection until every host has the verdict."""
        self._started = self._loop.now()
        for host in self._job.resources.hosts[1:]:
            self._join(host)
        self._loop.after(2 * LIMIT_S + self._seconds, lambda: self.give_up("the round took too long"))
        self._loop.run()
        for link in self._links.values():
            link.close()
        self._loop.close()

    def give_up(self, why: str) -> None:
        self.trouble = self.trouble or why
        self._loop.stop()

    def _join(self, host: str) -> None:
        self._links[host] = channel.follow(self._loop, self._job, Hello(host, self._first), _User(self, host))
        self._links[host].send(self._ready)
        self._beat(host)

    def _beat(self, host: str) -> None:
        self._links[host].send(Heartbeat())
        self._loop.after(self._job.limits.heartbeat_s, lambda: self._beat(host))

    def _report(self, host: str, ranks: range) -> None:
        """What the ranks do: everything in equal parts."""
        now = self._loop.now()
        seconds = tuple(round(now / len(NAMES), 4) for _ in NAMES)
        self._links[host].send(Pace(0, tuple(RankTimes(each, 0, int(now), round(now, 4), seconds) for each in ranks)))
        self._links[host].send(Load(0, LOAD))
        self._loop.after(self._job.limits.times_s, lambda: self._report(host, ranks))

    def heard(self, host: str, message: Message) -> None:
        match message:
            case Go(slots=slots):
                first = slots[host] * self._job.resources.hosts.index(host)
                self._report(host, range(first, first + slots[host]))
                self._waiting.discard(host)
                self._running.add(host)
                if not self._waiting:
                    self.gate_s = self._loop.now() - self._started
                    self.go_bytes = len(wire.encode(message))
                    self._loop.after(SETTLE_S, self._measure)
            case End(verdict):
                self._running.discard(host)
                self._links[host].send(Bye())
                if verdict.code != CODE:
                    self.give_up(f"{host}: verdict {verdict}")
                if not self._running:
                    self.verdict_s = self._loop.now() - self._failed_at
                    self._loop.stop()
            case Refuse(why):
                self.give_up(f"{host} was refused: {why}")
            case _:
                pass

    def _measure(self) -> None:
        at, used = self._loop.now(), cpu_s(self._pid)
        self._loop.after(self._seconds, lambda: self._measured(at, used))

    def _measured(self, at: float, used: float) -> None:
        self.share = 100 * (cpu_s(self._pid) - used) / (self._loop.now() - at)
        self._failed_at = self._loop.now()
        failing = self._job.resources.hosts[1]
        self._links[failing].send(Fail(Failure("exit", failing, CODE, "the end of a round")))


def address(number: int) -> str:
    """The loopback address of host `number`."""
    return f"127.0.{number // 250}.{number % 250 + 1}"


def job_folder(base: Path, count: int) -> tuple[dict[str, str], Path]:
    """Writes a job of `count` hosts; returns the environment and the program of the leader."""
    names = [f"algo-{number}" for number in range(1, count + 1)]
    folder = base / "input" / "config"
    folder.mkdir(parents=True)
    resources = {"current_host": names[0], "hosts": names, "network_interface_name": "lo"}
    (folder / "resourceconfig.json").write_text(json.dumps(resources))
    program = base / "sleeps.py"
    program.write_text(SLEEPS)
    addresses = ",".join(f"{name}={address(number)}" for number, name in enumerate(names))
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("ALGORUN_", "SM_", "SAGEMAKER_"))},
        "SAGEMAKER_BASE_DIR": str(base),
        "ALGORUN_ADDRESSES": addresses,
        "ALGORUN_CONTROL_PORT": str(free_ports(LEADER, 1)[0]),
        "TRAINING_JOB_ARN": "arn:aws:sagemaker:eu-west-1:1:training-job/bench",
    }
    return environ, program


def listening(port: int, leader: subprocess.Popen[bytes]) -> None:
    """Waits until the leader's hub takes connections."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and leader.poll() is None:
        with socket.socket() as probing:
            if probing.connect_ex((LEADER, port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError("the leader does not listen")


def measure(count: int, ranks: int, seconds: float) -> Round:
    """One round."""
    with tempfile.TemporaryDirectory(prefix="algorun-hub-") as folder:
        environ, program = job_folder(Path(folder), count)
        argv = [sys.executable, "-I", "-m", "algorun", "run", "--slots", str(ranks), str(program)]
        with open(Path(folder, "leader.log"), "wb") as log:
            leader = subprocess.Popen(argv, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            job = config.read_config(LaunchRequest(target=str(program), slots=ranks, cwd=folder), environ)
            listening(job.control.port, leader)
            hosts = Hosts(job, leader.pid, seconds)
            hosts.run()
            if not hosts.trouble and leader.wait(LIMIT_S) != CODE:
                hosts.trouble = f"the leader left with {leader.returncode}"
        finally:
            leader.kill()
            leader.wait()
        if hosts.trouble:
            raise RuntimeError(f"{count} hosts: {hosts.trouble}\n{Path(folder, 'leader.log').read_text()[-2000:]}")
        return Round(count, hosts.share, hosts.gate_s, hosts.verdict_s, hosts.go_bytes)


def medians(rounds: Sequence[Round]) -> dict[str, float]:
    """The middle of each figure."""
    rows = [asdict(each) for each in rounds]
    return {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}


def show(rows: Sequence[Mapping[str, float]], troubles: Mapping[int, str]) -> None:
    print("| hosts | share of a core | gate s | verdict s | go bytes |\n|---|---|---|---|---|")
    for count, text in troubles.items():
        print(f"{count} hosts did not get through: {text}", file=sys.stderr)
    for row in rows:
        print(
            f"| {row['hosts']:.0f} | {row['share']:.1f} % | {row['gate_s']:.2f} | {row['verdict_s']:.2f} "
            f"| {row['go_bytes']:.0f} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="64,256,512,1000", help="numbers of hosts, with commas")
    parser.add_argument("--ranks", type=int, default=8, help="of each host")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="measured time of each round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go")
    options = parser.parse_args()
    counts = [int(word) for word in options.hosts.split(",")]
    rounds: dict[int, list[Round]] = {count: [] for count in counts}
    troubles: dict[int, str] = {}
    for number in range(options.rounds):
        for count in counts:
            try:
                rounds[count].append(measure(count, options.ranks, options.seconds))
            except RuntimeError as error:
                troubles[count] = str(error).splitlines()[0]
                continue
            print(f"round {number + 1}: {rounds[count][-1]}", file=sys.stderr, flush=True)
    rows = [medians(rounds[count]) for count in counts if rounds[count]]
    show(rows, troubles)
    if options.json:
        all_rounds = [asdict(each) for count in counts for each in rounds[count]]
        text = json.dumps({"medians": rows, "rounds": all_rounds, "troubles": troubles}, indent=2)
        options.json.write_text(text + "\n")
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
