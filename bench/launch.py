"""Seconds from a launcher's start to the last rank's first line, and from the last rank's last line to its exit.

Every launcher and its bare peer run in the same rounds, one after the other, so that a slow moment of the machine hits
both; the figures are medians over the rounds and the differences are medians of per-round differences. One host always;
two hosts as containers of the image algorun:cpu where Docker has it.

    python bench/launch.py [--rounds 7] [--no-containers] [--no-toolkit] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

IMAGE = os.environ.get("ALGORUN_IMAGE", "algorun:cpu")
LIMIT_S = 180.0
# Its first and its last act is a mark with the time: what a user's script sees of its launcher.
PROGRAM = """\
import os, time
first = time.time()
rank = os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK", "0")
folder = os.environ["MARKS"]
open(f"{folder}/first-{rank}", "w").write(repr(first))
open(f"{folder}/last-{rank}", "w").write(repr(time.time()))
"""
SPAWNER = """\
import os, subprocess, sys
ranks = []
for rank in range(int(sys.argv[1])):
    ranks.append(subprocess.Popen([sys.executable, sys.argv[2]], env=dict(os.environ, RANK=str(rank))))
sys.exit(max(rank.wait() for rank in ranks))
"""


@dataclass
class Launch:
    """One way to start ranks: a name, the peer that it is held against, and how to run it once."""

    name: str
    peer: str
    run: Callable[[Path], tuple[float, float]]  # marks folder to (start, end) in Unix seconds
    ranks: int
    rounds: int | None = None
    start_s: list[float] = field(default_factory=list)
    tail_s: list[float] = field(default_factory=list)

    def once(self, scratch: Path) -> None:
        """Runs it, checks that every rank left its marks, keeps the two times."""
        marks = scratch / f"marks-{uuid.uuid4().hex[:8]}"
        marks.mkdir()
        started, ended = self.run(marks)
        first = [float((marks / f"first-{rank}").read_text()) for rank in range(self.ranks)]
        last = [float((marks / f"last-{rank}").read_text()) for rank in range(self.ranks)]
        self.start_s.append(max(first) - started)
        self.tail_s.append(ended - max(last))


def environ(**extra: str) -> dict[str, str]:
    """This environment, with what root and two cores need."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **extra,
    }


def process(argv: list[str], **extra: str) -> Callable[[Path], tuple[float, float]]:
    """A launch that is one process of this machine."""

    def run(marks: Path) -> tuple[float, float]:
        started = time.time()
        done = subprocess.run(
            argv,
            env=environ(MARKS=str(marks), **extra),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
        ended = time.time()
        if done.returncode != 0:
            sys.exit(
                f"{argv} left with {done.returncode}:\n{done.stdout.decode()[-2000:]}{done.stderr.decode()[-2000:]}"
            )
        return started, ended

    return run


def job_folder(base: Path, host: str, hosts: list[str], hyperparameters: dict[str, str]) -> Path:
    """An /opt/ml tree with the program in its code folder."""
    shutil.rmtree(base, ignore_errors=True)
    for part in ("input/config", "code", "model", "output/data"):
        (base / part).mkdir(parents=True)
    resources = {"current_host": host, "hosts": hosts, "network_interface_name": "eth0" if len(hosts) > 1 else "lo"}
    hyperparameters = {"sagemaker_program": "program.py", **hyperparameters}
    for name, value in (("resourceconfig", resources), ("hyperparameters", hyperparameters), ("inputdataconfig", {})):
        (base / "input" / "config" / f"{name}.json").write_text(json.dumps(value))
    (base / "code" / "program.py").write_text(PROGRAM)
    return base


MPI = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}


def one_host(scratch: Path, with_toolkit: bool) -> list[Launch]:
    """All launches on this machine."""
    program, spawner = scratch / "program.py", scratch / "spawner.py"
    program.write_text(PROGRAM)
    spawner.write_text(SPAWNER)
    python, script = sys.executable, str(program)
    ours = [str(Path(python).parent / "algorun"), "run"]
    mpirun = ["mpirun", "-np", "2", "--bind-to", "none", "--oversubscribe"]
    base = {"SAGEMAKER_BASE_DIR": str(scratch / "ml")}
    launches = [
        Launch("python", "", process([python, script], RANK="0"), 1),
        Launch("algorun native, 1 rank", "python", process([*ours, script], **base), 1),
        Launch("spawner x2", "", process([python, str(spawner), "2", script]), 2),
        Launch("algorun native x2", "spawner x2", process([*ours, "--slots", "2", script], **base), 2),
        Launch("torchrun x2", "", process([python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script]), 2),
        Launch("algorun torchrun x2", "torchrun x2", process([*ours, "--engine", "torchrun", "--slots", "2", script], **base), 2),
    ]  # fmt: skip
    if shutil.which("mpirun"):
        launches += [
            Launch("mpirun x2", "", process([*mpirun, python, script]), 2),
            Launch("algorun mpirun x2", "mpirun x2", process([*ours, "--engine", "mpirun", "--slots", "2", script], **base), 2),
        ]  # fmt: skip
    else:
        print("mpirun is not on PATH: its rows are absent")
    toolkit = Path(python).parent / "train"
    if with_toolkit and toolkit.exists():
        # It waits for its own host name to resolve, for minutes.
        tree = job_folder(scratch / "toolkit", "localhost", ["localhost"], {})
        path = f"{toolkit.parent}:{os.environ['PATH']}"
        run = process([str(toolkit)], SAGEMAKER_BASE_DIR=str(tree), PATH=path)
        launches.append(Launch("sagemaker-training, 1 rank", "python", run, 1))
    elif with_toolkit:
        print(
            "sagemaker-training is not installed beside this Python (pip install sagemaker-training): its rows are absent"
        )
    return launches


def docker(*argv: str, **options: object) -> str:
    """One docker command; its output. Ends the benchmark where it fails."""
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        sys.exit(f"docker {' '.join(argv)}:\n{done.stderr}")
    return done.stdout.strip()


def has_image() -> bool:
    """True where a Docker engine has the image."""
    if shutil.which("docker") is None:
        return False
    done = subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, timeout=LIMIT_S, check=False)
    return done.returncode == 0


@contextmanager
def containers(scratch: Path) -> Iterator[dict[str, str]]:
    """Two idle containers algo-1 and algo-2 on a network of their own, with sshd for the bare mpirun."""
    mark = uuid.uuid4().hex[:8]
    network, names = f"algorunbench{mark}", {}
    keys = scratch / "ssh"
    keys.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / "id_ed25519")], check=True)
    (keys / "authorized_keys").write_text((keys / "id_ed25519.pub").read_text())
    (keys / "config").write_text(
        "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )
    for path in (keys, *keys.iterdir()):
        path.chmod(0o700 if path.is_dir() else 0o600)
    docker("network", "create", network)
    try:
        for host in ("algo-1", "algo-2"):
            folder = scratch / host
            folder.mkdir(exist_ok=True)
            names[host] = docker(
                "run", "-d", "--rm", "--hostname", host, "--network", network, "--network-alias", host, "-v", f"{scratch}:{scratch}",
                "-v", f"{keys}:/root/.ssh", "--entrypoint", "/bin/bash", IMAGE, "-c",
                "ssh-keygen -A >/dev/null; /usr/sbin/sshd; exec sleep infinity",
            )  # fmt: skip
        yield names
    finally:
        for name in names.values():
            subprocess.run(["docker", "rm", "-f", name], capture_output=True, check=False)
        subprocess.run(["docker", "network", "rm", network], capture_output=True, check=False)


def in_containers(
    scratch: Path, names: dict[str, str], commands: dict[str, str], **extra: str
) -> Callable[[Path], tuple[float, float]]:
    """A launch of a shell command in each container at the same time; its times are taken inside."""

    def run(marks: Path) -> tuple[float, float]:
        children = []
        for host, command in commands.items():
            environment = [
                f"-e{key}={value}" for key, value in {"MARKS": str(marks), "OMP_NUM_THREADS": "1", **extra}.items()
            ]
            environment.append(f"-eSAGEMAKER_BASE_DIR={scratch}/{host}")
            timed = (
                f"date +%s.%N > {marks}/start-{host}; {command}; code=$?; date +%s.%N > {marks}/end-{host}; exit $code"
            )
            argv = ["docker", "exec", *environment, names[host], "bash", "-c", timed]
            children.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        for child in children:
            out, _ = child.communicate(timeout=LIMIT_S)
            if child.returncode != 0:
                sys.exit(f"{child.args} left with {child.returncode}:\n{out.decode()[-3000:]}")
        starts = [float((marks / f"start-{host}").read_text()) for host in commands]
        ends = [float((marks / f"end-{host}").read_text()) for host in commands]
        return max(starts), max(ends)

    return run


def two_hosts(scratch: Path, names: dict[str, str], with_toolkit: bool) -> list[Launch]:
    """All launches on two containers with two ranks each."""
    hosts = list(names)
    for host in hosts:
        job_folder(scratch / host, host, hosts, {})
    script = scratch / "algo-1" / "code" / "program.py"
    bare = {
        host: f"torchrun --nnodes=2 --node-rank={rank} --nproc-per-node=2 --master-addr=algo-1 --master-port=29511 {script}"
        for rank, host in enumerate(hosts)
    }
    mpirun = (
        "mpirun -np 4 --host algo-1:2,algo-2:2 --bind-to none --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0"
        f" -x MARKS -x PATH python {script}"
    )
    ours = dict.fromkeys(hosts, "algorun train")

    def algorun(engine: str) -> Callable[[Path], tuple[float, float]]:
        return in_containers(scratch, names, ours, ALGORUN_ENGINE=engine, ALGORUN_SLOTS="2")

    launches = [
        Launch("2 containers: algorun native", "", algorun("native"), 4),
        Launch("2 containers: torchrun", "", in_containers(scratch, names, bare), 4),
        Launch("2 containers: algorun torchrun", "2 containers: torchrun", algorun("torchrun"), 4),
        Launch("2 containers: mpirun over ssh", "", in_containers(scratch, names, {"algo-1": mpirun}), 4),
        Launch("2 containers: algorun mpirun", "2 containers: mpirun over ssh", algorun("mpirun"), 4),
    ]
    if with_toolkit:  # its tail is a fixed 30 s, so that it runs once; its followers outlast the job by minutes
        starter = "python -c 'from sagemaker_training.cli.train import main; main()'"
        trees = scratch / "toolkit-mpi"
        job_folder(trees / hosts[0], hosts[0], hosts[:1], MPI)
        run = in_containers(trees, names, {hosts[0]: starter})
        launches.append(Launch("1 container: sagemaker-training, MPI x2", "", run, 2, 1))
    return launches


def report(launches: list[Launch]) -> list[dict[str, object]]:
    """Prints the table; returns its rows."""
    by_name = {launch.name: launch for launch in launches}
    rows: list[dict[str, object]] = []
    print(f"\n{'launch':40} {'start s':>8} {'over peer':>10} {'tail s':>8} {'over peer':>10}  rounds")
    for launch in launches:
        peer = by_name.get(launch.peer)
        start, tail = statistics.median(launch.start_s), statistics.median(launch.tail_s)
        row: dict[str, object] = {
            "launch": launch.name,
            "start_s": start,
            "tail_s": tail,
            "rounds": len(launch.start_s),
        }
        over = ["", ""]
        if peer is not None:
            more = [
                statistics.median(a - b for a, b in zip(mine, theirs, strict=False))
                for mine, theirs in ((launch.start_s, peer.start_s), (launch.tail_s, peer.tail_s))
            ]
            row |= {"peer": peer.name, "start_over_peer_s": more[0], "tail_over_peer_s": more[1]}
            over = [f"{value:+.3f}" for value in more]
        rows.append(row)
        print(f"{launch.name:40} {start:8.3f} {over[0]:>10} {tail:8.3f} {over[1]:>10}  {len(launch.start_s)}")
    return rows


def measure(launches: list[Launch], rounds: int, scratch: Path) -> None:
    """One uncounted run each, then the rounds."""
    for launch in launches:
        if launch.rounds is None:
            launch.once(scratch)
            launch.start_s.clear()
            launch.tail_s.clear()
    for number in range(rounds):
        for launch in launches:
            if launch.rounds is None or number < launch.rounds:
                launch.once(scratch)
        print(f"round {number + 1} of {rounds}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-containers", action="store_true")
    parser.add_argument("--no-toolkit", action="store_true", help="sagemaker-training's MPI runs take 30 s each")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}")
    with tempfile.TemporaryDirectory(prefix="algorun-bench-") as folder:
        scratch = Path(folder)
        launches = one_host(scratch, not options.no_toolkit)
        measure(launches, options.rounds, scratch)
        if options.no_containers or not has_image():
            print(f"two containers: not measured ({'not wished' if options.no_containers else f'no image {IMAGE}'})")
        else:
            with containers(scratch) as names:
                two = two_hosts(scratch, names, not options.no_toolkit)
                measure(two, options.rounds, scratch)
            launches += two
        rows = report(launches)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
