"""Open MPI's daemons (orted, in version 5 prted), started for mpirun through the control channel: no ssh, no keys.

On the leader, rsh processes ask for daemons; on every host, the supervisor starts the one it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from algorun.common.errors import UserError, exit_code
from algorun.control.wire.messages import DaemonEnded, Message, StartDaemon
from algorun.host.ranks.rank_port import Fields, Peer
from algorun.machine.openmpi import DAEMON_SESSIONS, DAEMONS, OpenMpi


def with_session(argv: list[str], major: int, folder: str) -> list[str]:
    """The daemon's command line with its session files in this host's own folder.

    mpirun repeats its own parameters there, the leader's folder among them; simulated hosts would share it.
    """
    option, name = DAEMON_SESSIONS[major]
    if name in argv[:-1]:
        at = argv.index(name) + 1
        return [*argv[:at], folder, *argv[at + 1 :]]
    return [*argv, option, name, folder]


class Daemons:
    """Who asked for which daemon, and which run here. `start_process(argv)` returns a pid, `send` goes to the hub.

    `openmpi` is this host's, None where the engine is another one: then nothing is started. `mpirun` is the job's command
    line of mpirun, as this host's plan has it.
    """

    def __init__(
        self,
        openmpi: OpenMpi | None,
        mpirun: Sequence[str],
        start_process: Callable[[list[str]], int],
        send: Callable[[Message], None],
    ) -> None:
        self._openmpi, self._mpirun, self._start_process, self._send = openmpi, mpirun, start_process, send
        self._asking: dict[str, Peer] = {}
        self._running: dict[int, str] = {}

    @property
    def busy(self) -> bool:
        """True while a daemon runs on this host."""
        return bool(self._running)

    def wanted(self, peer: Peer, message: Fields) -> None:
        """rsh asks for a daemon on a host."""
        key = os.urandom(4).hex()
        self._asking[key] = peer
        self._send(StartDaemon(key, str(message["daemon"]), str(message["command"])))

    def start(self, order: StartDaemon) -> str:
        """Starts this host's daemon, and nothing else: the leader can name neither another program nor parameters that no
        mpirun of this job has (machine/openmpi_daemon.py).

        Returns "" or the error.
        """
        from algorun.machine import openmpi_daemon  # imported late: most jobs do not use it

        name = DAEMONS[self._openmpi.major] if self._openmpi else "a daemon of Open MPI"
        try:
            words = openmpi_daemon.words_of(order.command)
            if self._openmpi is None or not words or os.path.basename(words[0]) != name:
                raise UserError("mpirun's daemon", "the leader asks for another program", allowed=name)
            own = openmpi_daemon.set_here(self._mpirun, os.environ)
            # The program is this host's, wherever the leader has its own.
            argv = [self._openmpi.daemon, *openmpi_daemon.accepted(words[1:], own)]
            self._running[self._start_process(argv)] = order.id
        except (UserError, ValueError) as error:
            self._send(DaemonEnded(order.id, 1))
            return f"{name} cannot be started: {error}"
        return ""

    def ended(self, message: DaemonEnded) -> None:
        """A daemon somewhere has ended: so does the rsh that asked for it."""
        peer = self._asking.pop(message.id, None)
        if peer is not None:
            peer.send({"leave": message.code})

    def exited(self, pid: int, returncode: int) -> bool:
        """A child of this host has ended; False if it was no daemon."""
        key = self._running.pop(pid, None)
        if key is None:
            return False
        self._send(DaemonEnded(key, exit_code(returncode)))
        return True
