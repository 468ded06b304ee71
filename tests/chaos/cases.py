"""The fault table: what is done to a job of two hosts, and what everybody must see then."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from algorun import __version__

from .host import Setup
from .job import CONTROL_PORT, HOSTS, ROOT, Job, algorun, training
from .scenarios import (
    LATE_S,
    PAUSE_S,
    Scenario,
    a_rank,
    at_the_start,
    bad_network,
    busy_port,
    gap,
    killed,
    killed_with_unread_bytes,
    late_host,
    late_name,
    moved,
    narrowed,
    on_its_own,
    other_order,
    paused,
    reset,
    restarts,
    resumed,
    saved,
    signalled,
    since_the_last,
    stacks,
    supervisor_killed,
    supervisor_paused,
    three_ranks,
    told,
    warned,
    when_up,
)

HEARTBEAT_S = 3.0  # its timeout, shortened; F8 keeps the default of 10
HANG_S = 5.0
GRACE_S = 2.0
INIT_S = 3.0  # as in training.py
GATE_S = 3.0
LOOK_S = 1.5  # until a leader looks for others
REPEATS = 5  # of races that a rank's end may lose; --chaos-repeats 20 asks for more
MTU = 1000  # bytes: heartbeats and the verdict pass, a long failure does not
BACK_S = 3.0  # from the end of a gap until the leader has told of it: reconnected, and at its next beat
NATIVE = ("native",)
ALL = ("native", "torchrun", "mpirun")
SHORT_HEARTBEAT = {"ALGORUN_HEARTBEAT_TIMEOUT_S": f"{HEARTBEAT_S:g}"}
SHORT_HANG = {"ALGORUN_HANG_S": f"{HANG_S:g}"}


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
    measure: Callable[[Job], float] | None = None
    """seconds, where the end of the last host is not what counts"""
    waits: bool = False
    """mostly waits for a limit: may run beside others"""


RAISED = (r"rank 3 on algo-2, exit 1\b.*: ValueError: bad batch 17", r"training\.py\", line \d+, in fault")
LIGHT, FLAG = training("light"), training("flag")
BUSY, QUIET = training("busy"), training("quiet")
WITH_STEPS = training("busy", "--optimizer")
SHORT = training("light", "--seconds", "0.5")
OTHER_VERSION = (ROOT / "launcher/algorun/common/__init__.py").read_text().replace(f'"{__version__}"', '"0.0.1"')
RESUME = {"ALGORUN_RESTARTS": "2"}


LEFT = r"rank 3 on algo-2 left with 0 after step \d+ while 3 ranks still trained"
MISSED = rf"^left: {LEFT}\b.*RuntimeError: .*by peer"


def _gap(id: str, gap_s: float, timeout_s: float, **options: Any) -> Case:
    """A gap in the network that is shorter than the time-out."""
    return Case(
        id=id, what=f"the network of a host is gone for {gap_s:g} s, time-out {timeout_s:g} s: until it is back",
        bound_s=BACK_S, scenario=gap(gap_s), code=0, environ={"ALGORUN_HEARTBEAT_TIMEOUT_S": f"{timeout_s:g}"},
        waits=True, **options,
    )  # fmt: skip


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
    Case(id="F7c", what="host 2 is killed with unread bytes (a reset)", bound_s=5, command=QUIET,
         scenario=killed_with_unread_bytes("algo-2"), code=66, says=(r"^lost: algo-2, exit 66",), survivors=("algo-1",),
         engines=ALL),
    Case(id="F7d", what="the leader is killed with unread bytes (a reset)", bound_s=5, command=LIGHT,
         scenario=killed_with_unread_bytes("algo-1"), code=66, says=(r"^lost: algo-1, exit 66",), survivors=("algo-2",),
         quick=NATIVE),
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
         check=stacks, environ=SHORT_HANG, engines=ALL, quick=NATIVE),
    Case(id="F13", what="SIGTERM to one host, flag protocol, 60 s save", bound_s=65,
         command=training("flag", "--save-s", "60"), scenario=signalled(signal.SIGTERM, "algo-2"), code=0, check=saved,
         engines=ALL, waits=True),
    Case(id="F13q", what="the same, 3 s save", bound_s=8, command=training("flag", "--save-s", "3"),
         scenario=signalled(signal.SIGTERM, "algo-2"), code=0, check=saved, quick=NATIVE),
    Case(id="F13t", what="SIGTERM to one host, until every rank is told", bound_s=1,
         command=training("flag", "--save-s", "2"), scenario=signalled(signal.SIGTERM, "algo-2"), code=0, check=saved, engines=ALL, quick=NATIVE, measure=told),
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
         setups={"algo-2": Setup(instead={str(ROOT / "launcher/algorun/common/__init__.py"): OTHER_VERSION})}, quick=NATIVE),
    Case(id="F19b", what="another argv on one host", bound_s=3, command=LIGHT, scenario=at_the_start(), code=64,
         says=(r"program differs: .*light on algo-1, .*light --seconds 1 on algo-2",),
         setups={"algo-2": Setup(command=training("light", "--seconds", "1"))}, quick=NATIVE),
    Case(id="F19c", what="another source tar on one host", bound_s=3, command=algorun("train"), scenario=at_the_start(),
         code=64, says=(r"source differs: [0-9a-f]{8,}.* on algo-1, [0-9a-f]{8,}.* on algo-2",),
         setups={host: _from_tar(host) for host in HOSTS},
         hyperparameters={"sagemaker_program": "train.py", "sagemaker_submit_directory": "/mnt/ml/source.tar.gz"}),
    Case(id="F19d", what="another order of hosts on one host", bound_s=LOOK_S + 3, command=LIGHT, scenario=other_order,
         code=64, says=(r"hosts differs: algo-1,algo-2 on algo-1, algo-2,algo-1 on algo-2",), quick=NATIVE),
    Case(id="F20", what="2 slots on one host, 1 on the other", bound_s=None, command=SHORT, scenario=at_the_start(),
         code=0, check=three_ranks, setups={"algo-2": Setup(environ={"ALGORUN_SLOTS": "1"})}, quick=NATIVE),
    Case(id="F20b", what="the same, with equal slots wished", bound_s=3, command=SHORT, scenario=at_the_start(), code=64,
         says=(r"slots differs: 2 on algo-1, 1 on algo-2",), environ={"ALGORUN_EQUAL_SLOTS": "1"},
         setups={"algo-2": Setup(environ={"ALGORUN_SLOTS": "1"})}, quick=NATIVE),
    Case(id="F21", what="raise on attempts 0 and 1, budget 2 (a restart)", bound_s=10,
         command=training("resume", "--fails", "2", "--steps", "40"), scenario=on_its_own, code=0, check=resumed,
         environ=RESUME, engines=ALL, repeats=20, measure=restarts),
    Case(id="F21b", what="more failures than the budget of 1, from the last", bound_s=5,
         command=training("resume", "--fails", "9", "--steps", "90"), scenario=on_its_own, code=68,
         says=(r"^budget: ", r"ValueError: bad batch 17"), environ={"ALGORUN_RESTARTS": "1"}, quick=NATIVE,
         measure=since_the_last),
    Case(id="F22", what="restart after a hang", bound_s=HANG_S + 15,
         command=training("resume", "--optimizer", "--fails", "1", "--fault", "sleep", "--steps", "30"),
         scenario=on_its_own, code=0, environ={**SHORT_HANG, "ALGORUN_RESTARTS": "1"},
         measure=restarts),
    Case(id="F23", what="the control port is busy", bound_s=3, command=LIGHT, scenario=busy_port, code=64,
         says=(rf"\b{CONTROL_PORT}\b.* by python\S* \(pid \d+\)",), survivors=("algo-1",), quick=NATIVE),
    Case(id="F25a", what="the checkpoint disk is nearly full: a warning", bound_s=None, command=SHORT,
         scenario=at_the_start(), code=0, check=warned(r"(?i)warning.*checkpoints"),
         setups={"algo-2": Setup(disk_mb=2)}, quick=NATIVE),
    Case(id="F25b", what="the checkpoint disk is full: a save fails", bound_s=5, command=LIGHT,
         scenario=a_rank("full_disk"), code=1, says=(r"rank 3 on algo-2, exit 1\b.*No space left on device",),
         setups={"algo-2": Setup(disk_mb=2)}, quick=NATIVE),
    Case(id="F28", what="memlock 64 KiB with an EFA device", bound_s=3, command=LIGHT, scenario=at_the_start(), code=69,
         says=(r"(?i)algo-2.*memlock",), setups={"algo-2": Setup(memlock=65536, efa=True)}, quick=NATIVE),
    Case(id="F29a", what="a rank leaves with 0, peers in all_reduce", bound_s=5, command=WITH_STEPS,
         scenario=a_rank("leave"), code=1, says=(MISSED,), engines=ALL, repeats=REPEATS),
    Case(id="F29q", what="one run of F29a", bound_s=5, command=WITH_STEPS, scenario=a_rank("leave"), code=1, says=(MISSED,),
         quick=NATIVE),
    Case(id="F29b", what="a rank leaves with 0, peers wait", bound_s=HANG_S + 8, command=training("store", "--optimizer"),
         scenario=a_rank("leave"), code=67, says=(rf"^hang: {LEFT}\b.*others wait in",), environ=SHORT_HANG, engines=ALL,
         repeats=REPEATS),
    Case(id="F29c", what=f"a rank leaves with 0 before they meet, limit {INIT_S:g} s", bound_s=INIT_S + 5,
         command=training("early"), scenario=on_its_own, code=1,
         says=(r"^left: rank 3 on algo-2 left with 0 while 3 ranks still ran\b.*(wait timeout|waiting for clients)",), engines=ALL,
         repeats=REPEATS),
    _gap("F30a", 4, 7, command=FLAG, check=saved, engines=ALL, repeats=3),
    _gap("F30b", 7.4, 10, command=FLAG, check=saved, engines=ALL, repeats=3),
    _gap("F30c", 6, 7, command=LIGHT, repeats=3),
    _gap("F30q", 4, 7, command=LIGHT, quick=NATIVE),
    Case(id="F31", what="resets of the control connection, one side each time: until a stop has ended the job", bound_s=3,
         command=FLAG, scenario=reset("algo-2", "algo-1", "algo-2", "algo-1"), code=0, check=saved, engines=ALL, waits=True),
    Case(id="F31q", what="one reset of the control connection", bound_s=3, command=LIGHT, scenario=reset("algo-2"), code=0,
         quick=NATIVE),
    Case(id="F30n", what="no name resolves any more during a gap of 4 s, time-out 7 s: until it is back", bound_s=BACK_S,
         command=LIGHT, scenario=gap(4, names=False), code=0, environ={"ALGORUN_HEARTBEAT_TIMEOUT_S": "7"}, waits=True),
    Case(id="F33", what="a supervisor alone stands still for 6 s: until a stop has ended the job", bound_s=3, command=LIGHT,
         scenario=supervisor_paused(6), code=0, waits=True),
    Case(id="F34", what="10 % of all packets are lost, 25 % overtaken, for 20 s: until a stop has ended the job", bound_s=5,
         command=LIGHT, scenario=bad_network(0.1, 0.25, 20), code=0, waits=True),
    Case(id="F35", what="a host gets another address (ALGORUN_TOKEN): until a stop has ended the job", bound_s=3, command=LIGHT,
         scenario=moved, code=0, environ={**SHORT_HEARTBEAT, "ALGORUN_TOKEN": "chaos"}, waits=True),
    Case(id="F35a", what="a host gets another address (no token)", bound_s=2 * HEARTBEAT_S + 10, command=LIGHT,
         scenario=when_up(lambda job: job.network.move("algo-2")), code=66, says=(r"^lost: algo-[12], exit 66",), same=False,
         environ=SHORT_HEARTBEAT, waits=True),
    Case(id="F32", what="the network loses large packets, a rank raises", bound_s=2 * HEARTBEAT_S + 20, command=LIGHT,
         scenario=narrowed("raise_long", MTU), code=66, says=(r"^lost: algo-[12], exit 66",), same=False,
         environ=SHORT_HEARTBEAT),
]  # fmt: skip
