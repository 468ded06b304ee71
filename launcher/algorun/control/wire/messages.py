"""The messages between a host and the hub: what each one says. Pure.

A message is a frozen dataclass, and wire.py turns it into a line and back. `FROM_HOST` and `FROM_HUB` name all of them.
To add a message: write its class here, add it to one of the two tables, and handle it in `receive` (hub_messages.py) or
in `Supervisor.receive` (host/supervisor.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from algorun.common.fast_dataclasses import dataclass, field, replace
from algorun.control.failures.failure import Failure, RankLeft
from algorun.control.failures.non_finite import NonFiniteValue
from algorun.control.hang.call import LONGEST_MEMBERS, nearest
from algorun.control.hang.hang import Stack
from algorun.control.hang.host_look import HostLook
from algorun.timing.host_load import HostLoad
from algorun.timing.rank_times import RankTimes

MOST_FRAMES = 60  # of a stack in a message, innermost first
MOST_CALLS = 16  # collective calls of a rank in a message
MOST_PACES = 256  # ranks of a host in a message
ANSWER_S = 3.0  # for all hosts to send the stacks of their ranks
MOST_NAME = 150  # characters of a file or a function there


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the job ended, the same on all hosts. kind: ok, stopped or failed.

    `slow` names ranks that others waited for; `above` says what ranks spent more on than the others; `data` says that ranks
    waited for batches, and what helps.
    """

    kind: str
    code: int
    failure: Failure | None = None
    why: str = ""
    slow: str = ""
    above: str = ""
    data: str = ""


@dataclass(frozen=True, slots=True)
class Hello:
    """A host's first message: who it is, and what all hosts must agree on.

    `error` is this host's configuration error, which ends the job. The other fields belong to the connection: the hub proves
    itself by `challenge` (seal.py), `session` and `heard` let the host come back over another connection (session.py).
    """

    host: str
    digest: Mapping[str, str]
    error: str = ""
    challenge: str = ""
    session: str = ""
    heard: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """A host has its code and could start: what it carries, and what all hosts must agree on now."""

    slots: int
    digest: Mapping[str, str]
    master_addr: str = ""  # of the host that carries rank 0: where it will listen
    master_port: int = 0
    engine_port: int = 0  # another one there, for an engine's own rendezvous
    jax_port: int = 0  # another one there, for JAX's coordinator
    tf_port: int = 0  # the first of TensorFlow's consecutive ports on this host, one for each rank; 0 without TF_CONFIG
    newest: float = 0.0  # stamp of this host's newest checkpoint, by its own clock
    address: str = ""  # of this host, for an engine with a driver
    secret: str = ""  # of the leader, for such an engine


@dataclass(frozen=True, slots=True)
class NodeAlive:
    """The node of this host has joined the engine's cluster; the hub passes this on to the leader with `host`."""

    attempt: int
    host: str = ""


@dataclass(frozen=True, slots=True)
class MemoryKill:
    """The kernel has killed processes of this host for memory. `text` says how many, and what the limit is."""

    attempt: int
    text: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life, both ways. `heard` is how many messages its sender has heard in the session, None outside of one.

    `unheard` is the hub's: it receives no signs of life of this host, which connects anew.
    """

    heard: int | None = None
    unheard: bool = False


@dataclass(frozen=True, slots=True)
class Fail:
    """Something of this host has failed."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """A rank could not save while the job stops: the stop did not go well."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Hang:
    """A rank of this host has made no step for `idle_s` seconds."""

    idle_s: float


@dataclass(frozen=True, slots=True)
class RanksSilent:
    """No rank of this host has shown progress for `idle_s` seconds; 0.0: one goes on after all. Only a change is told."""

    attempt: int
    idle_s: float


@dataclass(frozen=True, slots=True)
class Looked:
    """What this host has seen of its ranks, as it was asked."""

    attempt: int
    look: HostLook


@dataclass(frozen=True, slots=True)
class Unmatched:
    """ALGORUN_PROGRESS has matched no line of this host's ranks so far. Told once."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What the time of this host's ranks was spent on so far, in this attempt. Hosts with many ranks send none."""

    attempt: int
    ranks: tuple[RankTimes, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """How busy this host was since its last report."""

    attempt: int
    load: HostLoad


@dataclass(frozen=True, slots=True)
class ClockAsked:
    """A host asks for the time of the hub's clock. `at`: that of its own."""

    at: float


@dataclass(frozen=True, slots=True)
class ClockTold:
    """The answer to the question that a host asked at `asked_at`, by its own clock; `at` by the hub's."""

    asked_at: float
    at: float


@dataclass(frozen=True, slots=True)
class StacksSent:
    """This host has sent the stacks of all its ranks."""


@dataclass(frozen=True, slots=True)
class Stop:
    """To the hub: this host was told to stop. From the hub: all hosts stop."""

    why: str


@dataclass(frozen=True, slots=True)
class Done:
    """All ranks of this host have ended well, or were stopped. The leader's `note` goes into the closing line. `cut_off`: the
    ranks that the stop has ended, before they could save."""

    note: str = ""
    cut_off: int = 0


@dataclass(frozen=True, slots=True)
class Bye:
    """A host leaves. `why` is the failure that it ends with: the hub needs it where it has given no verdict.

    `informed` is what another leader sends: the hosts that know its verdict, and will not come to this hub.
    """

    why: str = ""
    informed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartDaemon:
    """mpirun on the leader needs its daemon on `host`; the hub passes this on. `id` names the request."""

    id: str
    host: str
    command: str


@dataclass(frozen=True, slots=True)
class DaemonEnded:
    """The daemon of this request has ended with `code`; the hub passes this on to the leader."""

    id: str
    code: int


@dataclass(frozen=True, slots=True)
class Nonce:
    """The hub's first line: the connection's keys are made with this number (seal.py)."""

    nonce: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The hub has taken this connection; `heard` is how many messages of the session it has received."""

    heard: int


@dataclass(frozen=True, slots=True)
class Go:
    """All hosts have met: the slots of each and where rank 0 listens."""

    attempt: int
    master_addr: str
    master_port: int
    slots: Mapping[str, int] = field(default_factory=dict)
    engine_port: int = 0
    jax_port: int = 0
    tf_ports: Mapping[str, int] = field(default_factory=dict)  # the hosts' tf_port; without those that have none
    addresses: Mapping[str, str] = field(default_factory=dict)  # of all hosts, for an engine with a driver
    secret: str = ""  # by which the processes of such an engine know each other


@dataclass(frozen=True, slots=True)
class AskStacks:
    """Every host sends the stacks of its ranks."""


@dataclass(frozen=True, slots=True)
class LookClosely:
    """Every host looks at all processes of its ranks twice, `pause_s` seconds apart, and tells what it has seen."""

    pause_s: float


@dataclass(frozen=True, slots=True)
class Restart:
    """Another attempt follows, number `attempt`; `failure` ended the one before."""

    attempt: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class End:
    """The job is over."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Refuse:
    """The hub does not take this host."""

    why: str


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning for the log, mostly for the leader's."""

    text: str


Message = (
    Hello | Ready | NodeAlive | MemoryKill | Heartbeat | Fail | SaveFailed | RankLeft | Hang | RanksSilent | Looked
    | Unmatched | Pace | ClockAsked | ClockTold | Load | NonFiniteValue
    | Stack | StacksSent | Stop | Done | Bye
    | StartDaemon | DaemonEnded | Nonce | Welcome | Go | AskStacks | LookClosely | Restart | End | Refuse | Notice
)  # fmt: skip

# The names on the wire.
FROM_HOST: Mapping[str, type] = {
    "hello": Hello,
    "ready": Ready,
    "node_alive": NodeAlive,
    "memory_kill": MemoryKill,
    "heartbeat": Heartbeat,
    "fail": Fail,
    "save_failed": SaveFailed,
    "rank_left": RankLeft,
    "hang": Hang,
    "silent": RanksSilent,
    "looked": Looked,
    "unmatched": Unmatched,
    "pace": Pace,
    "load": Load,
    "clock_asked": ClockAsked,
    "non_finite": NonFiniteValue,
    "stack": Stack,
    "stacks_sent": StacksSent,
    "stop": Stop,
    "done": Done,
    "bye": Bye,
    "start_daemon": StartDaemon,  # the leader's only
    "daemon_ended": DaemonEnded,
}
FROM_HUB: Mapping[str, type] = {
    "nonce": Nonce,
    "welcome": Welcome,
    "go": Go,
    "ask_stacks": AskStacks,
    "look_closely": LookClosely,
    "restart": Restart,
    "stop": Stop,
    "end": End,
    "refuse": Refuse,
    "heartbeat": Heartbeat,
    "notice": Notice,
    "node_alive": NodeAlive,
    "clock_told": ClockTold,
    "start_daemon": StartDaemon,
    "daemon_ended": DaemonEnded,
}


def short(found: Stack) -> Stack:
    """As much of a rank's stack as fits a message; its host keeps all of it."""
    frames = tuple(replace(f, file=f.file[-MOST_NAME:], function=f.function[-MOST_NAME:]) for f in found.frames)
    calls = tuple(
        replace(
            call,
            group=call.group[:MOST_NAME],
            members=call.members if len(call.members) <= LONGEST_MEMBERS else "",
            operation=call.operation[:MOST_NAME],
            shapes=call.shapes[:MOST_NAME],
            dtypes=call.dtypes[:MOST_NAME],
            state=call.state[:MOST_NAME],
            file=call.file[-MOST_NAME:],
        )
        for call in nearest(found.calls, MOST_CALLS)
    )
    return replace(found, frames=frames[:MOST_FRAMES], text="", source=found.source[:MOST_NAME], calls=calls)


def bye(verdict: Verdict | None) -> Bye:
    """A host's last message, from how the job has ended for it."""
    failure = verdict.failure if verdict is not None else None
    return Bye("" if failure is None else failure.message if failure.rank is None else failure.headline())
