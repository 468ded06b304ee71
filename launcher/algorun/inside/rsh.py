"""The remote shell of mpirun (plm_rsh_agent): `rsh.py HOST COMMAND ..`. It needs no sshd and no keys.

mpirun runs it on the leader to start a daemon (orted) on another host. It passes the request to the leader's supervisor,
which sends it over the control channel; the supervisor of that host starts the daemon.
"""

from __future__ import annotations

import json
import os
import socket
import sys

START_TIMEOUT_S = 60.0


def main() -> int:
    """Waits until the daemon ends; returns the daemon's exit code."""
    if len(sys.argv) < 3:
        print("usage: rsh.py HOST COMMAND ..", file=sys.stderr)
        return 64
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.settimeout(START_TIMEOUT_S)
    channel.connect(os.environ["ALGORUN_RUN_DIR"] + "/ranks")
    channel.sendall(json.dumps({"daemon": sys.argv[1], "command": " ".join(sys.argv[2:])}).encode() + b"\n")
    channel.settimeout(None)  # the daemon lives as long as the job; the supervisor ends this process
    with channel.makefile("rb") as answers:
        line = answers.readline()
    return int(json.loads(line)["leave"]) if line else 70


if __name__ == "__main__":
    sys.exit(main())
