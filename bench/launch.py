"""Seconds from a launcher's start to the last rank's first line, and from the last rank's last line to its exit.

Every launcher and its bare peer run on this machine in the same rounds, one after the other: a slow moment of the machine hits
all of them. The figures are medians over the rounds; a difference to a peer is the median of the differences within a round.

    python bench/launch.py [--rounds 7] [--json FILE]
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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.processes import leave_by_signals

LIMIT_S = 180.0
PROGRAM = """\
import os, time
first = time.time()
rank = os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or "0"  # AWS's toolkit gives none to a single process
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
Run = Callable[[Path], tuple[float, float]]  # marks folder to (start, end) in Unix seconds


class Broken(Exception):
    """A launch that failed or did not end in its time: no figure, and no reason to lose those of the others."""


@dataclass
class Launch:
    """One way to start ranks: a name, the peer that it is held against, and how to run it once."""

    name: str
    peer: str
    run: Run
    ranks: int
    start_s: list[float] = field(default_factory=list)
    tail_s: list[float] = field(default_factory=list)
    broken: str = ""

    def once(self, scratch: Path) -> None:
        """Runs it, checks that every rank left its marks, keeps the two times; not once more after it broke."""
        if self.broken:
            return
        marks = scratch / f"marks-{uuid.uuid4().hex[:8]}"
        marks.mkdir()
        try:
            started, ended = self.run(marks)
            first, last = ([read(marks / f"{kind}-{rank}") for rank in range(self.ranks)] for kind in ("first", "last"))
        except Broken as error:
            self.broken = str(error)
            print(f"{self.name}: {error}", file=sys.stderr, flush=True)
        else:
            self.start_s.append(max(first) - started)
            self.tail_s.append(ended - max(last))


def read(mark: Path) -> float:
    if not mark.exists():
        raise Broken(f"a rank left no mark {mark.name}")
    return float(mark.read_text())


def measure(launches: list[Launch], rounds: int, scratch: Path) -> None:
    """One uncounted run each, then the rounds. Nothing runs before a single round, whose figures mean nothing anyway."""
    for launch in launches if rounds > 1 else ():
        launch.once(scratch)
        launch.start_s.clear()
        launch.tail_s.clear()
    for number in range(rounds):
        for launch in launches:
            launch.once(scratch)
        print(f"round {number + 1} of {rounds}", flush=True)


def report(launches: list[Launch]) -> list[dict[str, object]]:
    """Prints the table; returns its rows. A launch that broke has a row without figures."""
    by_name = {launch.name: launch for launch in launches}
    rows: list[dict[str, object]] = []
    print(f"\n{'launch':40} {'start s':>8} {'over peer':>10} {'tail s':>8} {'over peer':>10}  rounds")
    for launch in launches:
        if launch.broken or not launch.start_s:
            rows.append({"launch": launch.name, "rounds": 0, "broken": launch.broken})
            print(f"{launch.name:40} {'broken' if launch.broken else 'no rounds'}")
            continue
        start, tail = statistics.median(launch.start_s), statistics.median(launch.tail_s)
        row: dict[str, object] = {"launch": launch.name, "rounds": len(launch.start_s)}
        row |= {"start_s": start, "tail_s": tail}
        over = ["", ""]
        peer = by_name.get(launch.peer)
        if peer is not None and peer.start_s and not peer.broken:
            more = [
                statistics.median(a - b for a, b in zip(mine, theirs, strict=False))
                for mine, theirs in ((launch.start_s, peer.start_s), (launch.tail_s, peer.tail_s))
            ]
            row |= {"peer": peer.name, "start_over_peer_s": more[0], "tail_over_peer_s": more[1]}
            over = [f"{value:+.3f}" for value in more]
        rows.append(row)
        print(f"{launch.name:40} {start:8.3f} {over[0]:>10} {tail:8.3f} {over[1]:>10}  {len(launch.start_s)}")
    return rows


# What root and two cores need.
ENVIRON = {"OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def process(argv: list[str], **extra: str) -> Run:
    """A launch that is one process of this machine."""

    def run(marks: Path) -> tuple[float, float]:
        started = time.time()
        try:
            done = subprocess.run(
                argv,
                env={**os.environ, **ENVIRON, "MARKS": str(marks), **extra},
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


def contenders(scratch: Path) -> list[Launch]:
    """The launchers that this machine has, each beside its bare peer."""
    marking, spawner = scratch / "program.py", scratch / "spawner.py"
    marking.write_text(PROGRAM)
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
    if toolkit.exists():
        path = f"{toolkit.parent}:{os.environ['PATH']}"
        run = process([str(toolkit)], SAGEMAKER_BASE_DIR=str(job_folder(scratch / "toolkit")), PATH=path)
        launches.append(Launch("sagemaker-training, 1 rank", "python", run, 1))
    else:
        print("no sagemaker-training beside this Python: its row is absent")
    return launches


def job_folder(base: Path) -> Path:
    """The /opt/ml tree of a job on one host, which runs the program."""
    for part in ("input/config", "code", "model", "output/data"):
        (base / part).mkdir(parents=True)
    # The toolkit waits for its own host name to resolve, for minutes.
    resources = {"current_host": "localhost", "hosts": ["localhost"], "network_interface_name": "lo"}
    values = {"sagemaker_program": "program.py"}
    for name, value in (("resourceconfig", resources), ("hyperparameters", values), ("inputdataconfig", {})):
        (base / "input" / "config" / f"{name}.json").write_text(json.dumps(value))
    (base / "code" / "program.py").write_text(PROGRAM)
    return base


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    leave_by_signals()
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}")
    with tempfile.TemporaryDirectory(prefix="algorun-bench-") as folder:
        launches = contenders(Path(folder))
        measure(launches, options.rounds, Path(folder))
        rows = report(launches)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return int(any(launch.broken for launch in launches))


if __name__ == "__main__":
    sys.exit(main())
