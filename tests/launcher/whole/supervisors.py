"""Supervisors that a test starts one by one, as the hosts of a job do."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from tests.conftest import clean_environ
from tests.ports import own_port

ADDRESSES = "algo-1=127.0.0.1,algo-2=127.0.0.2"


def started(tmp_path, marker, host, hosts, arguments, folder="", before=(), **environ):
    """A supervisor of one host, whose file lists these hosts. `before`: words before its command."""
    base = tmp_path / (folder or host)
    (base / "input" / "config").mkdir(parents=True)
    (base / "input" / "config" / "resourceconfig.json").write_text(json.dumps({"hosts": hosts, "current_host": host}))
    env = clean_environ(ALGORUN_TEST=marker, SAGEMAKER_BASE_DIR=str(base), GLOO_SOCKET_IFNAME="lo", **environ)
    argv = [*before, sys.executable, "-I", "-m", "algorun", "run", *map(str, arguments)]
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def by_hand(
    tmp_path, marker, programs, delays=(0, 0), own=({}, {}), before=((), ()), meanwhile=lambda port: None, **environ
):
    """Supervisors started by hand, with arguments and variables of their own; their exit codes, outputs and seconds."""
    hosts, port, began = ["algo-1", "algo-2"], str(own_port()), time.monotonic()
    children = {}
    for delay, host in sorted(zip(delays, hosts, strict=True)):
        time.sleep(max(0.0, began + delay - time.monotonic()))
        arguments = programs[hosts.index(host)]
        if arguments is not None:
            variables = {"ALGORUN_ADDRESSES": ADDRESSES, "ALGORUN_CONTROL_PORT": port, **environ}
            variables |= own[hosts.index(host)]
            children[host] = started(
                tmp_path, marker, host, hosts, arguments, before=before[hosts.index(host)], **variables
            )
    meanwhile(int(port))
    outs = {host: child.communicate(timeout=60)[0] for host, child in children.items()}
    return [children[h].returncode for h in hosts if h in children], outs, time.monotonic() - began
