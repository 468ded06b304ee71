"""What the hub does with each message of a host. Pure."""

from __future__ import annotations

from algorun.common.fast_dataclasses import replace
from algorun.control.failures.failure import RankLeft
from algorun.control.failures.non_finite import NonFiniteValue
from algorun.control.hang.hang import Stack
from algorun.control.wire.messages import (
    Bye,
    ClockAsked,
    ClockTold,
    DaemonEnded,
    Done,
    Fail,
    Hang,
    Heartbeat,
    Load,
    Looked,
    MemoryKill,
    Message,
    NodeAlive,
    Notice,
    Pace,
    RanksSilent,
    Ready,
    SaveFailed,
    StacksSent,
    StartDaemon,
    Stop,
    Unmatched,
)

from .hub import Hub, Sends


def receive(hub: Hub, now: float, host: str, message: Message) -> Sends:
    """The answers to a message of a host that has joined. Raises ValueError on a message that no host may send."""
    hub.heard(now, host)
    match message:
        case Heartbeat():
            return []
        case Ready():
            return hub.ready(now, host, message)
        case Fail(failure):
            return hub.fail(now, replace(failure, host=host))
        case SaveFailed(failure):
            hub.attempts.save_failed(now, replace(failure, host=host))
            return []
        case RankLeft():
            return hub.rank_left(now, replace(message, host=host))
        case Hang(idle_s):
            return hub.hang(now, idle_s)
        case NonFiniteValue():
            hub.non_finite(now, replace(message, host=host))
            return []
        case RanksSilent(attempt, idle_s):
            return hub.silent(now, host, idle_s) if attempt == hub.attempts.number else []
        case Looked(attempt, look):
            return hub.looked(now, host, look) if attempt == hub.attempts.number else []
        case Unmatched():
            line = hub.reports.unmatched(host, [each for each, ready in hub.gate.ready.items() if ready.slots])
            return [(hub.leader, Notice(line))] if line else []
        case Pace():
            line = hub.reports.paces.heard(host, message, hub.attempts.number, hub.gate.slots)
            return [(hub.leader, Notice(line))] if line else []
        case Load(attempt, load):
            lines = hub.reports.loads.heard(now, host, attempt, load) if attempt == hub.attempts.number else []
            return [(hub.leader, Notice(line)) for line in lines]
        case ClockAsked(at):
            return [(host, ClockTold(at, now))]
        case Stack():
            return hub.stack(message)
        case StacksSent():
            return hub.stacks_sent(now, host)
        case Stop(why):
            return hub.stop(now, why)
        case Done():
            return hub.done(now, host, message)
        case Bye(why, informed):
            return hub.bye(now, host, informed, why)
        case NodeAlive():
            return [(hub.leader, replace(message, host=host))]
        case MemoryKill(attempt, text):
            hub.attempts.memory_kill(host, attempt, text)
            return []
        case StartDaemon() if host == hub.leader:
            return [(message.host, message)]
        case DaemonEnded():
            return [(hub.leader, message)]
        case other:
            raise ValueError(f"a host cannot send {type(other).__name__}")
