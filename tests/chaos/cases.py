"""The fault table: what is done to a job of two hosts, and what everybody must see then."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from launcher import __version__

from .job import CONTROL_PORT, HOSTS, PROGRAMS, ROOT, Job, Setup, algorun, training

HEARTBEAT_S = 3.0  # its timeout, shortened; F8 keeps the default of 10
HANG_S = 5.0
GRACE_S = 2.0
GATE_S = 3.0
LATE_S = 20.0
PAUSE_S = 60.0
NATIVE = ("native",)
ALL = ("native", "torchrun", "mpirun")
SHORT_HEARTBEAT = {"ALGORUN_HEARTBEAT_TIMEOUT_S": f"{HEARTBEAT_S:g}"}
SHORT_HANG = {"ALGORUN_HANG_S": f"{HANG_S:g}"}

Scenario = Callable[[Job], float]
"""starts the hosts, does it, returns the monotonic time of the fault"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One fault. `codes` of the survivors; `says` are patterns of output/failure, none for a job that ends well."""

    id: str
    what: str
    bound_s: float | None
    command: list[str]
    scenario: Scenario
    code: int
    says: tuple[str, ...] = ()
    check: Callable[[Job], None] | None = None
    engines: tuple[str, ...] = NATIVE
    quick: tuple[str, ...] = ()
    survivors: tuple[str, ...] = HOSTS
    same: bool = True
    """all survivors have the same text in output/failure (two sides of a cut cannot agree)"""
    environ: Mapping[str, str] = field(default_factory=dict)
    setups: Mapping[str, Setup] = field(default_factory=dict)
    hyperparameters: Mapping[str, str] = field(default_factory=dict)
    repeats: int = 1
    per: int = 1
    """the seconds are divided by so many"""
    waits: bool = False
    """mostly waits for a limit: may run beside others"""


# ---- scenarios ------------------------------------------------------------------------------------------------------


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


def killed(host: str) -> Scenario:
    return when_up(lambda job: job.hosts[host].cgroup.kill())


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
        job.until(lambda: not job.hosts[host].cgroup.pids(), f"the ranks of {host} have ended", 15)
        ranks_gone = time.monotonic()
        other = next(name for name in HOSTS if name != host)
        job.measured = max(ranks_gone, job.end(at + 30, [other])) - at
        return at

    return run


def at_the_start(*hosts: str) -> Scenario:
    """The fault is there from the beginning."""
    return lambda job: job.start(*hosts)


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
    injected = job.hosts["algo-2"].ml / "injected"
    job.until(injected.exists, "the first fault", 60)
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
        import re

        texts = "".join(host.text for host in job.hosts.values())
        assert re.search(pattern, texts), f"{pattern!r} is not in the logs\n{job.show()}"

    return check


def three_ranks(job: Job) -> None:
    text = "".join(host.text for host in job.hosts.values())
    for rank, host in ((0, "algo-1"), (1, "algo-1"), (2, "algo-2")):
        assert f"[{rank} {host}] up {rank} 3" in text, job.show()


def resumed(job: Job) -> None:
    import re

    text = "".join(host.text for host in job.hosts.values())
    for attempt, step in ((0, 0), (1, 1), (2, 11)):
        steps = [int(found) for found in re.findall(rf"resumed attempt={attempt} step=(\d+)", text)]
        assert len(steps) == 4, f"attempt {attempt}: {steps}\n{job.show()}"
        assert len(set(steps)) == 1, steps
        assert steps[0] >= step, steps


# ---- the table ------------------------------------------------------------------------------------------------------

RAISED = (r"rank 3 on algo-2, exit 1\b.*: ValueError: bad batch 17", r"training\.py\", line \d+, in fault")
LIGHT = training("light")
BUSY, QUIET = training("busy"), training("quiet")
WITH_STEPS = training("busy", "--optimizer")
SHORT = training("light", "--seconds", "0.5")
OTHER_VERSION = (ROOT / "launcher/__init__.py").read_text().replace(f'"{__version__}"', '"0.0.1"')
RESUME = {"ALGORUN_RESTARTS": "2"}


def _from_tar(name: str) -> Setup:
    """This host's code is a tarball of its own, made by the test below the job folder."""
    return Setup(command=algorun("train"), environ={"CHAOS_TAR": name})


CASES = [
    Case(id="F1", what="a rank raises, peers in all_reduce", bound_s=5, command=BUSY, scenario=a_rank("raise"),
         code=1, says=RAISED, engines=ALL, quick=ALL),
    Case(id="F2", what="a rank raises, peers quiet", bound_s=5, command=QUIET, scenario=a_rank("raise"),
         code=1, says=RAISED, engines=ALL),
    Case(id="F3", what="SIGKILL to a rank", bound_s=5, command=BUSY, scenario=a_rank("SIGKILL"), code=137,
         says=(r"rank 3 on algo-2, exit 137\b.*not sent by the launcher",), engines=ALL),
    Case(id="F4", what="a rank allocates past the memory limit", bound_s=5, command=LIGHT, scenario=a_rank("allocate"),
         code=137, says=(r"rank 3 on algo-2, exit 137\b", r"(?i)memory", r"(?i)peak", r"\b(200|0\.2|209)"),
         setups={"algo-2": Setup(memory_mb=200)}),
    Case(id="F5a", what="SIGSEGV in a rank", bound_s=5, command=LIGHT, scenario=a_rank("SIGSEGV"), code=139,
         says=(r"rank 3 on algo-2, exit 139\b",), quick=NATIVE),
    Case(id="F5b", what="SIGBUS: /dev/shm of 1 MiB is full", bound_s=5, command=LIGHT, scenario=a_rank("full_shm"),
         code=135, says=(r"rank 3 on algo-2, exit 135\b", r"/dev/shm"), setups={"algo-2": Setup(shm_mb=1)}, quick=NATIVE),
    Case(id="F5c", what="abort() in a rank", bound_s=5, command=LIGHT, scenario=a_rank("abort"), code=134,
         says=(r"rank 3 on algo-2, exit 134\b",)),
    Case(id="F6", what="sys.exit(7) in a rank", bound_s=5, command=LIGHT, scenario=a_rank("exit7"), code=7,
         says=(r"rank 3 on algo-2, exit 7\b",), quick=NATIVE),
    Case(id="F7a", what="host 2 is killed", bound_s=5, command=QUIET, scenario=killed("algo-2"), code=66,
         says=(r"^lost: algo-2, exit 66",), survivors=("algo-1",), engines=ALL),
    Case(id="F7b", what="the leader is killed", bound_s=5, command=QUIET, scenario=killed("algo-1"), code=66,
         says=(r"^lost: algo-1, exit 66",), survivors=("algo-2",), engines=ALL),
    Case(id="F8", what=f"a host is paused and wakes after {PAUSE_S:g} s", bound_s=15, command=LIGHT, scenario=paused,
         code=66, says=(r"^lost: algo-[12], exit 66",), same=False, waits=True),
    Case(id="F9", what="the network of a host is cut", bound_s=HEARTBEAT_S + 5, command=QUIET,
         scenario=when_up(lambda job: job.network.cut("algo-2")), code=66, says=(r"^lost: algo-[12], exit 66",),
         same=False, environ=SHORT_HEARTBEAT, engines=ALL),
    Case(id="F9q", what="the network of a host is cut (no torch)", bound_s=HEARTBEAT_S + 5, command=LIGHT,
         scenario=when_up(lambda job: job.network.cut("algo-2")), code=66, says=(r"^lost: algo-[12], exit 66",),
         same=False, environ=SHORT_HEARTBEAT, quick=NATIVE),
    Case(id="F10a", what="SIGKILL to the supervisor of host 2", bound_s=5, command=LIGHT,
         scenario=supervisor_killed("algo-2"), code=66, says=(r"^lost: algo-2, exit 66",), survivors=("algo-1",),
         quick=NATIVE),
    Case(id="F10b", what="SIGKILL to the leader's supervisor", bound_s=5, command=LIGHT,
         scenario=supervisor_killed("algo-1"), code=66, says=(r"^lost: algo-1, exit 66",), survivors=("algo-2",),
         quick=NATIVE),
    Case(id="F11", what="SIGSTOP to a rank", bound_s=HANG_S + 8, command=WITH_STEPS, scenario=a_rank("SIGSTOP"),
         code=67, says=(r"^hang: .*rank 3\b",), environ=SHORT_HANG),
    Case(id="F12", what="a rank sleeps outside the collective", bound_s=HANG_S + 8, command=WITH_STEPS,
         scenario=a_rank("sleep"), code=67, says=(r"^hang: .*rank 3\b", r"training\.py(:|\", line )\d+"),
         check=stacks, environ=SHORT_HANG, engines=ALL),
    Case(id="F13", what="SIGTERM to one host, flag protocol, 60 s save", bound_s=65,
         command=training("flag", "--save-s", "60"), scenario=signalled(signal.SIGTERM, "algo-2"), code=0, check=saved,
         engines=ALL, waits=True),
    Case(id="F13q", what="the same, 3 s save", bound_s=8, command=training("flag", "--save-s", "3"),
         scenario=signalled(signal.SIGTERM, "algo-2"), code=0, check=saved, quick=NATIVE),
    Case(id="F14", what="SIGTERM to all hosts, handler saves for 20 s", bound_s=25,
         command=training("handler", "--save-s", "20"), scenario=signalled(signal.SIGTERM, *HOSTS), code=0, check=saved,
         engines=ALL, waits=True),
    Case(id="F15", what=f"ranks ignore SIGTERM, grace {GRACE_S:g} s", bound_s=GRACE_S + 2, command=training("ignore"),
         scenario=signalled(signal.SIGTERM, "algo-1"), code=0, check=warned("outlasted the grace"),
         environ={"ALGORUN_GRACE_S": f"{GRACE_S:g}"}, quick=NATIVE),
    Case(id="F16", what=f"a host {LATE_S:g} s late", bound_s=5, command=SHORT, scenario=late_host, code=0, engines=ALL,
         waits=True),
    Case(id="F17", what=f"the leader's name {LATE_S:g} s late", bound_s=5, command=SHORT, scenario=late_name, code=0,
         setups={"algo-2": Setup(knows=("algo-2",))}, engines=ALL, waits=True),
    Case(id="F18", what=f"a host never comes, gate {GATE_S:g} s", bound_s=GATE_S + 2, command=LIGHT,
         scenario=at_the_start("algo-1"), code=65, says=(r"^gate: .*missing after 3 s: algo-2",), survivors=("algo-1",),
         environ={"ALGORUN_GATE_S": f"{GATE_S:g}"}, quick=NATIVE),
    Case(id="F19a", what="another image on one host", bound_s=3, command=LIGHT, scenario=at_the_start(), code=64,
         says=(rf"algorun version differs: {__version__} on algo-1, 0\.0\.1 on algo-2",),
         setups={"algo-2": Setup(instead={str(ROOT / "launcher/__init__.py"): OTHER_VERSION})}, quick=NATIVE),
    Case(id="F19b", what="another argv on one host", bound_s=3, command=LIGHT, scenario=at_the_start(), code=64,
         says=(r"program differs: .*light on algo-1, .*light --seconds 1 on algo-2",),
         setups={"algo-2": Setup(command=training("light", "--seconds", "1"))}, quick=NATIVE),
    Case(id="F19c", what="another source tar on one host", bound_s=3, command=algorun("train"), scenario=at_the_start(),
         code=64, says=(r"source differs: [0-9a-f]{8,}.* on algo-1, [0-9a-f]{8,}.* on algo-2",),
         setups={host: _from_tar(host) for host in HOSTS},
         hyperparameters={"sagemaker_program": "train.py", "sagemaker_submit_directory": "/mnt/ml/source.tar.gz"}),
    Case(id="F20", what="2 slots on one host, 1 on the other", bound_s=None, command=SHORT, scenario=at_the_start(),
         code=0, check=three_ranks, setups={"algo-2": Setup(environ={"ALGORUN_SLOTS": "1"})}, quick=NATIVE),
    Case(id="F21", what="raise on attempts 0 and 1, budget 2 (a restart)", bound_s=10,
         command=training("resume", "--fails", "2", "--steps", "40"), scenario=on_its_own, code=0, check=resumed,
         environ=RESUME, engines=ALL, repeats=20, per=2),
    Case(id="F21b", what="more failures than the budget of 1", bound_s=15,
         command=training("resume", "--fails", "9", "--steps", "90"), scenario=on_its_own, code=68,
         says=(r"^budget: ", r"ValueError: bad batch 17"), environ={"ALGORUN_RESTARTS": "1"}),
    Case(id="F22", what="restart after a hang", bound_s=HANG_S + 15,
         command=training("resume", "--optimizer", "--fails", "1", "--fault", "sleep", "--steps", "30"),
         scenario=on_its_own, code=0, environ={**SHORT_HANG, "ALGORUN_RESTARTS": "1"}),
    Case(id="F23", what="the control port is busy", bound_s=3, command=LIGHT, scenario=busy_port, code=64,
         says=(rf"\b{CONTROL_PORT}\b",), survivors=("algo-1",), quick=NATIVE),
    Case(id="F25a", what="the checkpoint disk is nearly full: a warning", bound_s=None, command=SHORT,
         scenario=at_the_start(), code=0, check=warned(r"(?i)warning.*checkpoints"),
         setups={"algo-2": Setup(disk_mb=2)}),
    Case(id="F25b", what="the checkpoint disk is full: a save fails", bound_s=5, command=LIGHT,
         scenario=a_rank("full_disk"), code=1, says=(r"rank 3 on algo-2, exit 1\b.*No space left on device",),
         setups={"algo-2": Setup(disk_mb=2)}, quick=NATIVE),
    Case(id="F28", what="memlock 64 KiB with an EFA device", bound_s=3, command=LIGHT, scenario=at_the_start(), code=69,
         says=(r"(?i)algo-2.*memlock",), setups={"algo-2": Setup(memlock=65536, efa=True)}),
]  # fmt: skip

REPEATS = {"native": 20, "torchrun": 5, "mpirun": 5}  # of F21: what restarts share is tested most where it is cheapest
