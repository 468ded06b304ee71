"""Open MPI's orted, started for mpirun through the control channel: no ssh, no keys.

On the leader, rsh processes ask for daemons; on every host, the supervisor starts the one it is asked for.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from typing import Any

from .control.messages import Message
from .errors import UserError, exit_code
from .rank_port import Peer

DAEMON = "orted"
SESSION = "orte_tmpdir_base"  # the MCA parameter that names the folder of session files


def with_session(argv: list[str], folder: str) -> list[str]:
    """orted's command line with its session files in this host's own folder.

    mpirun repeats its own MCA parameters there, the leader's folder among them; simulated hosts would share it.
    """
    if SESSION in argv[:-1]:
        at = argv.index(SESSION) + 1
        return [*argv[:at], folder, *argv[at + 1 :]]
    return [*argv, "-mca", SESSION, folder]


class Daemons:
    """Who asked for which daemon, and which run here. `start_process(argv)` returns a pid, `send` goes to the hub."""

    def __init__(self, start_process: Callable[[list[str]], int], send: Callable[[Message], None]) -> None:
        self._start_process, self._send = start_process, send
        self._asking: dict[str, Peer] = {}
        self._running: dict[int, str] = {}

    @property
    def busy(self) -> bool:
        """True while a daemon runs on this host."""
        return bool(self._running)

    def wanted(self, peer: Peer, message: dict[str, Any]) -> None:
        """rsh asks for a daemon on a host."""
        key = os.urandom(4).hex()
        self._asking[key] = peer
        command = str(message.get("command", ""))
        self._send({"type": "daemon", "id": key, "host": str(message["daemon"]), "command": command})

    def start(self, message: Message, *, expected: bool) -> str:
        """Starts orted, and nothing else: whoever speaks for the leader cannot run another program. "" or the error."""
        key = str(message.get("id", ""))
        try:
            argv = shlex.split(str(message.get("command", "")))
            if not expected or not argv or os.path.basename(argv[0]) != DAEMON:
                raise UserError("daemon", f"the leader asks for something that is not {DAEMON}")
            argv[0] = DAEMON  # the one on PATH, wherever the leader has its own
            self._running[self._start_process(argv)] = key
        except (UserError, ValueError) as error:
            self._send({"type": "daemon_exit", "id": key, "code": 1})
            return f"{DAEMON} cannot be started: {error}"
        return ""

    def ended(self, message: Message) -> None:
        """A daemon somewhere has ended: so does the rsh that asked for it."""
        peer = self._asking.pop(str(message.get("id", "")), None)
        if peer is not None:
            code = message.get("code")
            peer.send({"leave": code if isinstance(code, int) and 0 <= code < 256 else 1})

    def exited(self, pid: int, returncode: int) -> bool:
        """A child of this host has ended; False if it was no daemon."""
        key = self._running.pop(pid, None)
        if key is None:
            return False
        self._send({"type": "daemon_exit", "id": key, "code": exit_code(returncode)})
        return True
