"""Seconds to the last rank's first line and from the last rank's last line to the end, for each route of the SDKs.

What an SDK leaves in /opt/ml, run in containers of the same image in the same rounds: for SDK v2 by the image's `train`
beside AWS's sagemaker-training, for ModelTrainer of SDK v3 by `command="exec algorun train"` beside the SDK's own
drivers. The end of a job is the end of its last host.

What a peer needs and lacks here is said and its rows are absent: sagemaker-pytorch-training beside the toolkit for
torch_distributed and smddp (installed for the toolkit alone), .venv-sdk3 for ModelTrainer (`make .venv-sdk3/ready`).
Needs the image algorun:cpu.

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
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import model_trainer
from bench.containers import IMAGE, LIMIT_S, has_image, in_containers
from bench.jobs import MPI, job_folders, program
from bench.rounds import Launch, Run, leave_by_signals, measure, report

FRAMEWORK = "sagemaker-pytorch-training==3.0.0"
TOOLKIT = "python -c 'from sagemaker_training.cli.train import main; main()'"
SEEN_S = 3.0
SEEN = (
    f"its script works for {SEEN_S:g} s: the toolkit's followers look once a second for a process named orted, and a job"
    " that is over within that second they await for 20 minutes more"
)
OPEN = "the image has no smddprun, which is closed; in its place sagemaker-training starts the script by a bare mpirun"
PASS = "-x MARKS"  # the mpirun of the peers passes on what it is told


@dataclass(frozen=True, kw_only=True)
class Route:
    """One way through an SDK. `slow`: the peer waits half a minute by the clock, so that it has no uncounted run."""

    title: str
    hosts: int
    ranks: int
    work_s: float = 0.0
    slow: bool = False
    note: str = ""
    """what to know of the figures, printed before them"""


@dataclass(frozen=True, kw_only=True)
class Estimator(Route):
    """A route of SDK v2: what `distribution=` puts into the hyperparameters."""

    hyperparameters: dict[str, str] = field(default_factory=dict)
    framework: bool = False
    """the toolkit alone does not know it"""


@dataclass(frozen=True, kw_only=True)
class ModelTrainer(Route):
    """A route of SDK v3: the arguments of ModelTrainer."""

    options: dict[str, Any] = field(default_factory=dict)


TORCH = {"sagemaker_torch_distributed_enabled": "true"}
MPI_MARKS = {**MPI, "sagemaker_mpi_custom_mpi_options": PASS}
SMDDP = {
    "sagemaker_distributed_dataparallel_enabled": "true",
    "sagemaker_distributed_dataparallel_custom_mpi_options": PASS,
    "sagemaker_instance_type": "ml.p4d.24xlarge",
}
TORCHRUN_2 = {"distributed": {"type": "Torchrun", "process_count_per_node": 2}}
MPI_2 = {"distributed": {"type": "MPI", "process_count_per_node": 2, "mpi_additional_options": PASS.split()}}
ROUTES: list[Route] = [
    Estimator(title="plain script, 1 host", hosts=1, ranks=1),
    Estimator(title="plain script, 2 hosts", hosts=2, ranks=2),
    Estimator(title="torch_distributed, 1 host x 1", hosts=1, ranks=1, hyperparameters=TORCH, framework=True),
    Estimator(title="torch_distributed, 2 hosts x 1", hosts=2, ranks=2, hyperparameters=TORCH, framework=True),
    Estimator(title="smddp, 2 hosts x 1", hosts=2, ranks=2, hyperparameters=SMDDP, framework=True, work_s=SEEN_S,
              slow=True, note=f"{OPEN}; {SEEN}"),
    Estimator(title="mpi, 1 host x 2", hosts=1, ranks=2, hyperparameters=MPI_MARKS, slow=True),
    Estimator(title="mpi, 2 hosts x 2", hosts=2, ranks=4, hyperparameters=MPI_MARKS, work_s=SEEN_S, slow=True, note=SEEN),
    ModelTrainer(title="ModelTrainer basic, 1 host", hosts=1, ranks=1),
    ModelTrainer(title="ModelTrainer basic, 2 hosts", hosts=2, ranks=2),
    ModelTrainer(title="ModelTrainer Torchrun, 1 host x 2", hosts=1, ranks=2, options=TORCHRUN_2),
    ModelTrainer(title="ModelTrainer Torchrun, 2 hosts x 2", hosts=2, ranks=4, options=TORCHRUN_2),
    ModelTrainer(title="ModelTrainer MPI, 1 host x 2", hosts=1, ranks=2, options=MPI_2),
    ModelTrainer(title="ModelTrainer MPI, 2 hosts x 2", hosts=2, ranks=4, options=MPI_2, slow=True),
]  # fmt: skip


@cache
def framework(folder: Path) -> bool:
    """The toolkit's module for PyTorch, in a folder of its own; False where it cannot be had."""
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), FRAMEWORK]
    return subprocess.run(argv, check=False, timeout=LIMIT_S).returncode == 0


def pair(route: Route, ours: Run, peer: str, theirs: Run | None, rounds: int) -> Iterator[Launch]:
    """Ours and the peer, if there is one."""
    name = f"{route.title}: {peer}"
    yield Launch(f"{route.title}: algorun", name, ours, route.ranks)
    if theirs is not None:
        yield Launch(name, "", theirs, route.ranks, rounds if route.slow else None)


def estimator(route: Estimator, scratch: Path, rounds: int) -> Iterator[Launch]:
    """`train` and the toolkit on trees of the same content."""
    hosts = [f"algo-{number + 1}" for number in range(route.hosts)]

    def run(who: str, command: str, **extra: str) -> Run:
        trees = job_folders(scratch / who / route.title.replace(" ", "-"), hosts, route.hyperparameters, route.work_s)
        return in_containers(scratch, trees, dict.fromkeys(hosts, command), **extra)

    extra = {}
    if route.framework:
        module = scratch / "framework"
        if not framework(module):
            print(f"{route.title}: {FRAMEWORK} cannot be installed: the row of sagemaker-training is absent")
            yield from pair(route, run("algorun", "train"), "", None, rounds)
            return
        extra = {"PYTHONPATH": str(module), "SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main"}
    yield from pair(route, run("algorun", "train"), "sagemaker-training", run("toolkit", TOOLKIT, **extra), rounds)


def trainer(route: ModelTrainer, scratch: Path, rounds: int) -> Iterator[Launch]:
    """The same script by our command and by the SDK's drivers."""
    if not model_trainer.SDK.exists():
        print(f"{route.title}: no {model_trainer.SDK} (make .venv-sdk3/ready): its rows are absent")
        return

    def run(who: str, source: dict[str, str]) -> Run:
        folder = scratch / who / route.title.replace(" ", "-")
        options = {"source_code": {"entry_script": "program.py", **source}, **route.options}
        trees, commands, variables = model_trainer.job(folder, program(route.work_s), route.hosts, IMAGE, options)
        return in_containers(scratch, trees, commands, **variables)

    ours = run("algorun", {"command": "exec algorun train"})
    yield from pair(route, ours, "the SDK's driver", run("driver", {}), rounds)


def launches(scratch: Path, wish: str, rounds: int) -> Iterator[Launch]:
    """Each route whose title begins with `wish`, under both launchers."""
    for route in ROUTES:
        if route.title.startswith(wish):
            if route.note:
                print(f"{route.title}: {route.note}")
            if isinstance(route, Estimator):
                yield from estimator(route, scratch, rounds)
            elif isinstance(route, ModelTrainer):
                yield from trainer(route, scratch, rounds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--route", default="", help="only routes that begin so, such as plain or 'mpi, 1'")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    if not has_image():
        sys.exit(f"no image {IMAGE}: ./build.sh build --variant cpu")
    leave_by_signals()
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}")
    with tempfile.TemporaryDirectory(prefix="algorun-bench-") as folder:
        all_launches = list(launches(Path(folder), options.route, options.rounds))
        measure(all_launches, options.rounds, Path(folder))
    rows = report(all_launches)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return int(any(launch.broken for launch in all_launches))


if __name__ == "__main__":
    sys.exit(main())
