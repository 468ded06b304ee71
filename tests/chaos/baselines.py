"""The same scripts under the same faults, started by bare torchrun and bare mpirun."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .cases import CASES, Case
from .host import Setup
from .job import HOSTS, PROGRAMS, Job
from .table import BASELINES

CAP_S = 90.0
SHARED = ("F1", "F2", "F3", "F7a", "F7b", "F9", "F11", "F12", "F13", "F14")
FAULTS = [case for case in CASES if case.id in SHARED]
PEERS = ("torchrun", "mpirun")
PORT = "29500"


def script(case: Case) -> list[str]:
    """The training program of a case, with its arguments; nobody counts the steps of an optimizer here."""
    words = case.command[case.command.index(str(PROGRAMS / "training.py")) :]
    return [word for word in words if word != "--optimizer"]


def torchrun(case: Case) -> dict[str, Setup]:
    """torchrun on both hosts, as its documentation says."""
    common = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"]
    meet = ["--master-addr=algo-1", f"--master-port={PORT}"]
    return {
        host: Setup(command=[*common, f"--node-rank={rank}", *meet, *script(case)]) for rank, host in enumerate(HOSTS)
    }


def mpirun(case: Case, agent: Path) -> dict[str, Setup]:
    """mpirun on the first host; its remote shell enters the second one's namespaces."""
    argv = ["mpirun", "--allow-run-as-root", "-np", "4", "--host", "algo-1:2,algo-2:2", "--bind-to", "none"]
    mca = {"plm_rsh_agent": str(agent), "oob_tcp_if_include": "eth0", "btl_tcp_if_include": "eth0", "pml": "ob1"}
    for name, value in mca.items():
        argv += ["--mca", name, value]
    for name in ("MASTER_ADDR=algo-1", f"MASTER_PORT={PORT}", "SAGEMAKER_BASE_DIR", "GLOO_SOCKET_IFNAME"):
        argv += ["-x", name]
    return {"algo-1": Setup(command=[*argv, sys.executable, "-u", *script(case)]), "algo-2": Setup(command=[])}


def _write_agent(path: Path, job: Job) -> None:
    """`agent HOST COMMAND ..`, what mpirun takes for ssh."""
    hosts = {name: host.argv(["sh", "-c"]) for name, host in job.hosts.items()}
    path.write_text(
        f"#!{sys.executable} -I\nimport os, sys\nhosts = {json.dumps(hosts)}\n"
        "argv = [*hosts[sys.argv[1]], ' '.join(sys.argv[2:])]\nos.execvp(argv[0], argv)\n"
    )
    path.chmod(0o755)


def _stopped(job: Job, hosts: Sequence[str]) -> float:
    """SIGTERM to the main process of each host: the launcher's own, or the daemon that stands for it."""
    job.start()
    job.wait_for(r"\bup \d", 4)
    at = time.monotonic()
    for name in hosts:
        process = job.hosts[name].process
        os.kill(process.pid if process else min(job.hosts[name].cgroup.pids()), signal.SIGTERM)
    return at


def run(case: Case, peer: str, folder: Path) -> None:
    """One fault under one bare launcher, and its seconds into the table."""
    base = folder / f"{case.id}-bare-{peer}"
    agent = Path("/mnt/ml/agent")  # as the hosts see it
    setups = torchrun(case) if peer == "torchrun" else mpirun(case, agent)
    environ = {"GLOO_SOCKET_IFNAME": "eth0", "PYTHONUNBUFFERED": "1"}
    job = Job(base, peer, [], environ=environ, setups=setups)
    try:
        for host in job.hosts.values():  # the daemons look for it too
            _write_agent(host.ml / "agent", job)
        stops = {"F13": ("algo-2",), "F14": HOSTS}.get(case.id)
        at = _stopped(job, stops) if stops else case.scenario(job)
        gone = job.empty_at(case.survivors, at + CAP_S)
        text = f"> {CAP_S:g}" if gone is None else f"{gone - at:.1f}"
        if stops:
            saved = sum(len(list((host.ml / "checkpoints").glob("rank-?"))) for host in job.hosts.values())
            text += f" ({saved} of 4 saved)"
        BASELINES[case.id, peer] = text
    finally:
        job.close()
