"""Open MPI's remote shell (plm_rsh_agent), a program of its own: `rsh.py HOST COMMAND ..`.

mpirun asks it to start orted on a host. It passes the wish to the supervisor beside it, which sends it over the
control channel; the host's own supervisor starts orted. No sshd, no keys.
"""

from __future__ import annotations

import json
import os
import socket
import sys

START_TIMEOUT_S = 60.0


def main() -> int:
    """The program: lives as long as the daemon that it asked for, and returns its exit code."""
    if len(sys.argv) < 3:
        print("usage: rsh.py HOST COMMAND ..", file=sys.stderr)
        return 64
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.settimeout(START_TIMEOUT_S)
    channel.connect(os.environ["ALGORUN_RUN_DIR"] + "/ranks")
    channel.sendall(json.dumps({"daemon": sys.argv[1], "command": " ".join(sys.argv[2:])}).encode() + b"\n")
    channel.settimeout(None)  # as long as the job: the supervisor owns this process and ends it
    with channel.makefile("rb") as answers:
        line = answers.readline()
    return int(json.loads(line)["leave"]) if line else 70


if __name__ == "__main__":
    sys.exit(main())
