"""Readers of what this host's own processes say: exceptions of ranks, the ranks' socket, daemons of mpirun."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
from typing import Any
from unittest import mock

from algorun.control.failures.failure import Failure
from algorun.control.wire import wire
from algorun.control.wire.messages import DaemonEnded, Fail, StartDaemon
from algorun.host.engines.daemons import Daemons
from algorun.host.ranks import ranks
from algorun.host.ranks.rank_port import Peer, RankPort, parse_non_finite, parse_raised
from algorun.host.ranks.ranks import RankRules, Ranks
from algorun.host.tools import Tools
from algorun.job import config
from algorun.job.request import LaunchRequest
from algorun.machine import openmpi_daemon
from algorun.machine.openmpi import OpenMpi
from algorun.plan import cluster, plan

from . import mutations
from .reader import PART, Reader, scratch
from .readers_config import MACHINE, PROGRAMS, base
from .readers_control import FROM_HUB, StepLoop, line

OPEN_MPI = OpenMpi("/usr/bin/mpirun", True, 4, "orted")
MPIRUN = ("mpirun", "--mca", "x", "1")


class NoOwner:
    """Stands for the owner of processes: nothing is started here, and above all nothing is killed."""

    def own(self, session: int) -> None:
        assert 0 < session < 1 << 22, "no process has this number"

    def forget_ended(self) -> None: ...


class NoConsole:
    full = False

    def put(self, fd: int, data: bytes) -> None: ...

    def say(self, text: str) -> None: ...


@functools.cache
def planned() -> tuple[Any, Any]:
    """A job of two ranks on this host, started by torchrun."""
    folder = base()
    config_folder = folder / "input" / "config"
    for name in ("hyperparameters", "inputdataconfig"):
        (config_folder / f"{name}.json").unlink(missing_ok=True)
    (config_folder / "resourceconfig.json").write_text(json.dumps({"current_host": "algo-1", "hosts": ["algo-1"]}))
    request = LaunchRequest(target="train.py", slots=2, engine="torchrun", cwd=str(folder / "code"))
    job = config.read_config(request, {"SAGEMAKER_BASE_DIR": str(folder)})
    slots = cluster.assumed_slots(job, cluster.own_slots(job, MACHINE))
    made = plan.make(job, cluster.resolve(job, slots), MACHINE, PROGRAMS)
    return made, made.hosts[0]


def read_ranks(data: bytes) -> None:
    """Pieces for the ranks' socket, each from one of three processes (its first byte), into what the supervisor does."""
    made, host = planned()
    loop, broken = StepLoop(), []
    clients: dict[int, socket.socket] = {}
    with (
        contextlib.closing(loop),
        mock.patch.dict(os.environ, {"TMPDIR": str(scratch())}),
        mock.patch.object(ranks, "send"),
    ):
        daemons = Daemons(OPEN_MPI, MPIRUN, lambda argv: 1, lambda message: None)

        def heard(peer: Peer, message: dict[str, Any] | None) -> None:
            if message is not None and "daemon" in message:
                daemons.wanted(peer, message)
            else:
                all_ranks.peer_message(peer, message)

        port = RankPort(loop, lambda raised: None, heard)
        all_ranks = Ranks(
            Tools(loop, NoOwner(), NoConsole(), PROGRAMS, port.folder, scratch() / "ranks", mock.Mock(), mock.Mock()), made, host, RankRules(),
            lambda local_rank, returncode, age_s, tail, printed: None, broken.append, 1.0,
        )  # fmt: skip
        try:
            for piece in data.split(PART)[:24]:
                number = (piece[:1] or b"0")[0] % 3
                if number not in clients:
                    clients[number] = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                    clients[number].connect(port.folder + "/ranks")
                    clients[number].setblocking(False)
                with contextlib.suppress(OSError):
                    clients[number].sendall(piece[1:])
                loop.turn()
        finally:
            for client in clients.values():
                client.close()
            loop.turn()
            all_ranks.close()
            port.close()
        assert not os.path.exists(port.folder)


def read_daemons(data: bytes) -> None:
    """What the hub passes on of other hosts' daemons."""
    started: list[list[str]] = []

    def start(argv: list[str]) -> int:
        started.append(argv)
        return len(started)

    daemons = Daemons(OPEN_MPI, MPIRUN, start, lambda message: None)
    near, far = socket.socketpair()
    with near, far:
        asked: list[StartDaemon] = []
        asking = Daemons(OPEN_MPI, MPIRUN, start, asked.append)
        asking.wanted(Peer(near), {"daemon": "algo-2", "command": "orted"})
        try:
            message = wire.decode(data.replace(b"@ID@", asked[0].id.encode()))
        except ValueError:
            return
        if isinstance(message, StartDaemon):
            daemons.start(message)
        if isinstance(message, DaemonEnded):
            asking.ended(message)
        own = openmpi_daemon.set_here(MPIRUN, {})
        assert all(argv[0] == "orted" and openmpi_daemon.accepted(argv[1:], own) == argv[1:] for argv in started)


RANK_MESSAGES = [
    b'{"rank": 0, "local_rank": 0, "pid": 5}', b'{"started": 99999}', b'{"exited": 0}', b'{"failed": "no"}',
    b'{"daemon": "algo-2", "command": "orted -mca x 1"}', b'{"rank": 1, "local_rank": 1, "pid": 6}',
]  # fmt: skip
RANK_STREAMS = [
    PART.join(b"0" + each + b"\n" for each in RANK_MESSAGES[:3]),
    PART.join((b"0" + RANK_MESSAGES[0] + b"\n", b"1" + RANK_MESSAGES[5] + b"\n", b"1" + RANK_MESSAGES[3] + b"\n")),
    b"2" + RANK_MESSAGES[4] + b"\n",
]
DAEMON_MESSAGES = [line(DaemonEnded("@ID@", 1)), line(FROM_HUB[-1])]
RAISED = b"\0".join((b"0", b"1234", b"5.5", b"ValueError", b"x", b"Traceback ..\nValueError: x"))


def read_raised(data: bytes) -> None:
    """A datagram of a rank's exception; what it says fits a message to the hub."""
    parse_non_finite(data)
    raised = parse_raised(data)
    if raised is not None:
        failure = Failure("exception", "algo-1", 1, f"{raised.type}: {raised.message}", raised.rank, raised.traceback)
        told = wire.decode(wire.encode(Fail(failure)).rstrip(b"\n")).failure
        assert told.host == "algo-1"
        assert told.secondary in (True, False)


READERS = [
    Reader(
        "exception-datagram",
        read_raised,
        lambda: [RAISED],
        mutations.words(b"\0", ["nan", "-inf", "9" * 5000, "²", "DistNetworkError " * 500]),
        1500,
    ),
    Reader("rank-stream", read_ranks, lambda: RANK_STREAMS, mutations.in_pieces(mutations.as_json), 200),
    Reader("daemon-message", read_daemons, lambda: DAEMON_MESSAGES, mutations.as_json, 600),
]
