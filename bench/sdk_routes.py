"""Seconds to the last rank's first line and from the last rank's last line to the end, for each route of SDK v2.

What the SDK leaves in /opt/ml, run by the image's `train` under our launcher and under AWS's sagemaker-training in the
same image and the same rounds. The end of a job is the end of its last host. torch_distributed needs
sagemaker-pytorch-training beside the toolkit, which is installed for the toolkit alone. Needs the image algorun:cpu.

    python bench/sdk_routes.py [--rounds 3] [--route TEXT] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import launch
from launch import MPI, Launch, containers, has_image, in_containers, job_folder, measure, report

FRAMEWORK = "sagemaker-pytorch-training==3.0.0"
TORCH = {"sagemaker_torch_distributed_enabled": "true"}
MPI_MARKS = {**MPI, "sagemaker_mpi_custom_mpi_options": "-x MARKS"}  # the toolkit's mpirun passes on what it is told
# hyperparameters of the route, hosts, ranks; whether the toolkit's hosts outlast the job by minutes
ROUTES = {
    "plain script, 1 host": ({}, 1, 1, False),
    "plain script, 2 hosts": ({}, 2, 2, False),
    "torch_distributed, 1 host x 1": (TORCH, 1, 1, False),
    "torch_distributed, 2 hosts x 1": (TORCH, 2, 2, False),
    "mpi, 1 host x 2": (MPI_MARKS, 1, 2, True),
    "mpi, 2 hosts x 2": (MPI_MARKS, 2, 4, True),
}
# The toolkit gives no rank to the one process of a host.
BY_HOST = launch.PROGRAM.replace(
    'os.environ.get("OMPI_COMM_WORLD_RANK", "0")',
    'os.environ.get("OMPI_COMM_WORLD_RANK") or __import__("json").loads(os.environ["SM_HOSTS"]).index('
    'os.environ["SM_CURRENT_HOST"])',
)
TOOLKIT = "python -c 'from sagemaker_training.cli.train import main; main()'"


def framework(folder: Path) -> bool:
    """The toolkit's module for torchrun, in a folder of its own; False where it cannot be had."""
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), FRAMEWORK]
    return subprocess.run(argv, check=False, timeout=launch.LIMIT_S).returncode == 0


def routes(scratch: Path, names: dict[str, str], wish: str) -> list[Launch]:
    """Each route whose title begins with `wish`, under both launchers."""
    module = scratch / "framework"
    has_framework = framework(module)
    found = []
    for title, (hyperparameters, count, ranks, slow) in ROUTES.items():
        if not title.startswith(wish):
            continue
        hosts = list(names)[:count]
        for who, command in (("algorun", "train"), ("toolkit", TOOLKIT)):
            trees = scratch / f"{who}-{title.replace(' ', '-')}"
            for host in hosts:
                tree = job_folder(trees / host, host, hosts, dict(hyperparameters))
                (tree / "code" / "program.py").write_text(BY_HOST)
            extra = {}
            if who == "toolkit" and hyperparameters is TORCH:
                if not has_framework:
                    print(f"{FRAMEWORK} cannot be installed: its rows are absent")
                    continue
                extra = {
                    "PYTHONPATH": str(module),
                    "SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main",
                }
            run: Callable[[Path], tuple[float, float]] = in_containers(
                trees, names, dict.fromkeys(hosts, command), **extra
            )
            peer = f"{title}: sagemaker-training" if who == "algorun" else ""
            name = f"{title}: {'algorun' if who == 'algorun' else 'sagemaker-training'}"
            found.append(Launch(name, peer, run, ranks, 1 if slow else None))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--route", default="", help="only routes that begin so, such as plain or 'mpi, 1'")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    if not has_image():
        sys.exit(f"no image {launch.IMAGE}: ./build.sh build --variant cpu")
    launch.LIMIT_S = 400.0  # the toolkit's MPI followers
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}")
    with tempfile.TemporaryDirectory(prefix="algorun-bench-") as folder:
        scratch = Path(folder)
        with containers(scratch) as names:
            launches = routes(scratch, names, options.route)
            measure(launches, options.rounds, scratch)
        rows = report(launches)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
