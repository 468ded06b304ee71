"""Readers of the control channel's messages, and of the stream that they come in."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

from algorun.common.event_loop import Loop
from algorun.common.fast_dataclasses import replace
from algorun.control.failures.failure import Failure, RankLeft
from algorun.control.failures.non_finite import NonFiniteValue
from algorun.control.hang.call import CollectiveCall
from algorun.control.hang.hang import Stack, StackFrame
from algorun.control.hang.host_look import HostLook
from algorun.control.wire import wire
from algorun.control.wire.messages import (
    AskStacks,
    ClockAsked,
    ClockTold,
    DaemonEnded,
    Done,
    End,
    Fail,
    Go,
    Hang,
    Heartbeat,
    Hello,
    Load,
    LookClosely,
    Looked,
    MemoryKill,
    Message,
    NodeAlive,
    Nonce,
    Notice,
    Pace,
    RanksSilent,
    Ready,
    Refuse,
    Restart,
    SaveFailed,
    StacksSent,
    StartDaemon,
    Stop,
    Unmatched,
    Verdict,
    Welcome,
    bye,
)
from algorun.control.wire.seal import Seal
from algorun.job.config import LaunchRequest, read_config
from algorun.job.values import Sourced
from algorun.network.connection import Connection
from algorun.plan import cluster
from algorun.timing.host_figures import FolderFigures
from algorun.timing.host_load import HostLoad
from algorun.timing.rank_times import RankTimes

from . import mutations
from .reader import PART, Reader

JOB = read_config(LaunchRequest(target="ddp"), {"SAGEMAKER_BASE_DIR": "/nowhere"})

HOSTS = ("algo-1", "algo-2", "algo-3")
FAILURE = Failure(
    "exception", "algo-2", 1, "ValueError: x", 1, "Traceback ..\nValueError: x", "a hint",
    note="no restart: algo-3 was lost", others="also: lost: algo-3, exit 66\nthen: exit: rank 2 ..",
)  # fmt: skip
CHALLENGE, TOKEN = "0" * 32, "token"
TURNS = 3  # of the loop after each write: accept, read, answer


class StepLoop(Loop):
    """A loop that is turned by hand; names are not looked up, and what would be a thread runs at once."""

    def turn(self, times: int = TURNS) -> None:
        for _ in range(times):
            self.post(self.stop)
            self.run()

    def in_thread(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        try:
            result = work()
        except Exception as error:
            result = error
        self.post(lambda: done(result))


def line(message: Message) -> bytes:
    return wire.encode(message)


FROM_HOSTS = [
    Hello("algo-2", {"hosts": "algo-1,algo-2", "python version": "3.11"}, "", CHALLENGE, "5e55", 0),
    Ready(2, {"engine": "native", "program": "python -u x.py"}, "algo-2", 1234, 1235, 1236, 1237),
    NodeAlive(0),
    MemoryKill(0, "the kernel killed 1 process (a limit of 1.0 GiB)"),
    Heartbeat(0),
    Fail(FAILURE),
    SaveFailed(FAILURE),
    RankLeft("algo-2", 1, 20, 0),
    NonFiniteValue(1, 5, 5, 1, "nan", "0.weight", 2, 6, "epoch 1", 0.5, "end", "algo-2", 0, "step-4"),
    Hang(600.0),
    RanksSilent(0, 600.0),
    Looked(0, HostLook((0, 1), (2,), "computes", "reads or writes")),
    Unmatched(),
    Load(
        0,
        HostLoad(
            *(True, 10.0, 4, 0.25, 0.5, 96, 1e6, 2e6, 0.96, 1 << 40),
            fullest=FolderFigures("/opt/ml/checkpoints", 1 << 30, 1 << 40),
            gpus=4,
            idle=1,
            throttled=1,
            reasons=("thermal (hardware)",),
        ),
    ),
    Pace(0, (RankTimes(1, 0, 20, 12.5, (0.0, 1.0, 2.0, 0.5, 0.25, 0.0, 0.0)),)),
    Stack(1, "algo-2", 20, (StackFrame("/opt/ml/code/train.py", 3, "step"),), source="loss.item()"),
    Stack(
        2,
        "algo-2",
        20,
        calls=(
            CollectiveCall(
                "gloo:0", 3, "all_reduce", "0-3", "[[3, 4]]", "Float", "/opt/ml/code/train.py", 3, "started"
            ),
        ),
    ),
    ClockAsked(12.5),
    StacksSent(),
    Stop("SIGTERM on algo-2"),
    Done("loss=0.1"),
    bye(Verdict("failed", 1, FAILURE)),
    DaemonEnded("ab", 1),
]
FROM_HUB = [
    Nonce("00" * 16),
    Welcome(0),
    Go(0, "algo-1", 1234, dict.fromkeys(HOSTS, 2), 1235, 1236, dict.fromkeys(HOSTS, 1237)),
    Go(0, "algo-1", 1234, {"algo-1": 1, "algo-2": 0}, 1235, 1236, {}, dict.fromkeys(HOSTS, "10.0.0.1"), "5ec7e7"),
    NodeAlive(0, "algo-2"),
    Heartbeat(0, unheard=True),
    AskStacks(),
    LookClosely(10.0),
    Restart(1, FAILURE),
    Stop("SIGTERM on algo-1"),
    End(Verdict("failed", 1, FAILURE)),
    End(Verdict("ok", 0, None, "loss=0.1")),
    Refuse("no"),
    Notice("a warning"),
    ClockTold(12.5, 3.25),
    StartDaemon("ab", "algo-2", "orted -mca ess env"),
]


def parse(message: Message) -> None:
    """What hub and hosts rely on in a message that the codec has taken."""
    match message:
        case Hello():
            assert message.session.isascii()
        case Fail(failure) | SaveFailed(failure):
            assert fits(End(Verdict("failed", failure.code, failure)))
            assert failure.secondary in (True, False)
            failure.text()
        case RankLeft():
            assert min(message.rank, message.step, message.attempt) >= 0
        case Go():
            slots = {host: Sourced(count, "the gate") for host, count in message.slots.items()}
            if slots and all(message.slots.values()) and sum(message.slots.values()) <= 1 << 14:
                hosts = replace(JOB.resources, hosts=tuple(slots))
                cluster.resolve(replace(JOB, input=replace(JOB.input, resources=hosts)), slots)
            assert all(0 <= count <= wire.MOST_SLOTS for count in message.slots.values())
        case End(verdict):
            assert 0 <= verdict.code < 256
            assert (verdict.code == 0) == (verdict.failure is None)
        case Stop(why):
            assert fits(Stop(why))


def fits(message: Message) -> bool:
    """What came in fits a line, so what goes out to all hosts has to fit too."""
    try:
        return len(wire.encode(message)) <= wire.LONGEST
    except ValueError:
        return False


def read_message(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        message = wire.decode(data)
        parse(message)


@contextlib.contextmanager
def pair(loop: StepLoop) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a TCP connection over loopback."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        near = socket.create_connection(listener.getsockname(), timeout=1)
        far, _ = listener.accept()
    with near, far:
        yield near, far


def read_connection(data: bytes) -> None:
    """Pieces of a stream: the lines come out as they went in, however they were cut."""
    loop, lines, ended = StepLoop(), [], []
    with contextlib.closing(loop), pair(loop) as (near, far):
        connection = Connection(loop, far, lines.append, ended.append)
        with contextlib.suppress(OSError):
            for piece in data.split(PART):
                near.sendall(piece)
                loop.turn(1)
        near.shutdown(socket.SHUT_WR)
        for _ in range(1 + len(data) // 4096 + TURNS):
            loop.turn(1)
        connection.close()
    *whole, _ = data.replace(PART, b"").split(b"\n")
    assert lines == whole[: len(lines)]
    assert len(ended) == 1
    assert ended[0] == "line too long" or lines == whole


def read_sealed(data: bytes) -> None:
    """Lines of a hub as they may arrive: the next one in order opens, and nothing else does."""
    hub, host = (Seal(TOKEN, CHALLENGE, CHALLENGE, "algo-2", hub=side) for side in (True, False))
    said = [hub.close(line(message))[:-1] for message in FROM_HUB]
    heard = 0
    for each in data.split(b"\n"):
        with contextlib.suppress(ValueError):
            host.open(each)
            assert each == said[heard]
            heard += 1
    assert heard <= len(said)


def sealed_lines() -> list[bytes]:
    hub = Seal(TOKEN, CHALLENGE, CHALLENGE, "algo-2", hub=True)
    return [b"".join(hub.close(line(message)) for message in FROM_HUB)]


EACH = [line(message) for message in (*FROM_HOSTS, *FROM_HUB)]
READERS = [
    Reader("control-message", read_message, lambda: EACH, mutations.as_json, 3000),
    Reader("sealed-lines", read_sealed, sealed_lines, mutations.raw, 1000),
    Reader("connection", read_connection, lambda: [PART.join(EACH), b"".join(EACH)], mutations.in_pieces(mutations.raw), 300),
]  # fmt: skip
