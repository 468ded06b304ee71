"""Seconds from a launcher's start to the last rank's first line, and from the last rank's last line to its exit.

Every launcher and its bare peer run in the same rounds (rounds.py). One host always; two hosts as containers of the
image algorun:cpu where Docker has it.

    python bench/launch.py [--rounds 7] [--no-containers | --only-containers] [--no-toolkit] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.containers import IMAGE, LIMIT_S, has_image, in_containers
from bench.jobs import MPI, job_folder, job_folders, program
from bench.rounds import Broken, Launch, Run, leave_by_signals, measure, report

SPAWNER = """\
import os, subprocess, sys
ranks = []
for rank in range(int(sys.argv[1])):
    ranks.append(subprocess.Popen([sys.executable, sys.argv[2]], env=dict(os.environ, RANK=str(rank))))
sys.exit(max(rank.wait() for rank in ranks))
"""


def environ(**extra: str) -> dict[str, str]:
    """This environment, with what root and two cores need."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **extra,
    }


def process(argv: list[str], **extra: str) -> Run:
    """A launch that is one process of this machine."""

    def run(marks: Path) -> tuple[float, float]:
        started = time.time()
        try:
            done = subprocess.run(
                argv,
                env=environ(MARKS=str(marks), **extra),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Broken(f"{argv}: > {LIMIT_S:g} s") from None
        ended = time.time()
        if done.returncode != 0:
            raise Broken(
                f"{argv} left with {done.returncode}:\n{done.stdout.decode()[-2000:]}{done.stderr.decode()[-2000:]}"
            )
        return started, ended

    return run


def one_host(scratch: Path, with_toolkit: bool) -> list[Launch]:
    """All launches on this machine."""
    marking, spawner = scratch / "program.py", scratch / "spawner.py"
    marking.write_text(program())
    spawner.write_text(SPAWNER)
    python, script = sys.executable, str(marking)
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
        tree = job_folder(scratch / "toolkit", "localhost", ["localhost"])
        path = f"{toolkit.parent}:{os.environ['PATH']}"
        run = process([str(toolkit)], SAGEMAKER_BASE_DIR=str(tree), PATH=path)
        launches.append(Launch("sagemaker-training, 1 rank", "python", run, 1))
    elif with_toolkit:
        print(
            "sagemaker-training is not installed beside this Python (pip install sagemaker-training): its rows are absent"
        )
    return launches


def two_hosts(scratch: Path, with_toolkit: bool) -> list[Launch]:
    """All launches on two containers with two ranks each."""
    hosts = ["algo-1", "algo-2"]
    trees = job_folders(scratch / "trees", hosts)
    script = "/opt/ml/code/program.py"
    bare = {
        host: f"torchrun --nnodes=2 --node-rank={rank} --nproc-per-node=2 --master-addr=algo-1 --master-port=29511 {script}"
        for rank, host in enumerate(hosts)
    }
    mpirun = (
        "mpirun -np 4 --host algo-1:2,algo-2:2 --bind-to none --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0"
        f" -x MARKS -x PATH python {script}"
    )

    def algorun(engine: str) -> Run:
        commands = dict.fromkeys(hosts, "algorun train")
        return in_containers(scratch, trees, commands, ALGORUN_ENGINE=engine, ALGORUN_SLOTS="2")

    launches = [
        Launch("2 containers: algorun native", "", algorun("native"), 4),
        Launch("2 containers: torchrun", "", in_containers(scratch, trees, bare), 4),
        Launch("2 containers: algorun torchrun", "2 containers: torchrun", algorun("torchrun"), 4),
        Launch("2 containers: mpirun over ssh", "", in_containers(scratch, trees, {"algo-1": mpirun, "algo-2": "true"}), 4),
        Launch("2 containers: algorun mpirun", "2 containers: mpirun over ssh", algorun("mpirun"), 4),
    ]  # fmt: skip
    if with_toolkit:  # its tail is a fixed 30 s, so that it runs once
        alone = job_folders(scratch / "toolkit-mpi", hosts[:1], MPI)
        starter = "python -c 'from sagemaker_training.cli.train import main; main()'"
        run = in_containers(scratch, alone, {hosts[0]: starter})
        launches.append(Launch("1 container: sagemaker-training, MPI x2", "", run, 2, 1))
    return launches


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--no-containers", action="store_true")
    where.add_argument("--only-containers", action="store_true")
    parser.add_argument("--no-toolkit", action="store_true", help="sagemaker-training's MPI runs take 30 s each")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    if options.only_containers and not has_image():
        sys.exit(f"no image {IMAGE}: ./build.sh build --variant cpu")
    leave_by_signals()
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}")
    with tempfile.TemporaryDirectory(prefix="algorun-bench-") as folder:
        scratch = Path(folder)
        launches = [] if options.only_containers else one_host(scratch, not options.no_toolkit)
        measure(launches, options.rounds, scratch)
        if options.no_containers or not has_image():
            print(f"two containers: not measured ({'not wished' if options.no_containers else f'no image {IMAGE}'})")
        else:
            two = two_hosts(scratch, not options.no_toolkit)
            measure(two, options.rounds, scratch)
            launches += two
        rows = report(launches)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return int(any(launch.broken for launch in launches))


if __name__ == "__main__":
    sys.exit(main())
