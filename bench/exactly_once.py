"""Real jobs that are killed and go on with other numbers of ranks: how often was each sample trained on?

    python bench/exactly_once.py [--jobs 20] [--ddp-jobs 4] [--peer-jobs 4] [--together 3] [--json FILE]

A job trains on 96 samples in 2 epochs. A seeded clock ends it: SIGKILL of a rank, SIGKILL of a host (its supervisor), or
SIGTERM. It is then started again, until it has ended by itself. All programs run under `algorun simulate`, with the same kills.

What counts is what the surviving model was trained on. In the scripts the model is its own ledger (bench/once/counting.py).
The bundled `ddp` writes the images of each step into a ledger; steps that a later run repeats do not count.

accelerate and transformers.Trainer are measured twice: started again with the same ranks, and with another number of them.
Their batches divide the 96 samples at any number of ranks, so that they fill no batch with samples of its begin.
"""

import argparse
import importlib.metadata
import importlib.util
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil
from PIL import Image

from bench.rounds import leave_by_signals

TOP = Path(__file__).resolve().parent.parent
EPOCHS, SAMPLES = 2, 96  # as in bench/once/counting.py, which imports torch
DELAY_S = (0.4, 1.8)  # after a run's first step; training takes about 4 s in all
LIMIT_S = 180.0  # for one run
KINDS = ("rank", "host", "stop")


@dataclass(frozen=True)
class Run:
    """One start of a job, and how it is ended."""

    hosts: int
    slots: int
    batch: int
    workers: int
    kill: str
    delay_s: float


@dataclass(frozen=True)
class Program:
    """What is run: `script` of bench/once. `layouts` are hosts x ranks; `batches` are sizes per rank."""

    name: str
    script: str
    layouts: Sequence[tuple[int, int]]
    batches: Sequence[int]
    changes: bool
    kills: int = 2
    workers: Sequence[int] = (0, 1, 2)
    package: str = "torch"

    def runs(self, draw: random.Random) -> list[Run]:
        """The killed runs and the one that ends by itself."""
        found: list[Run] = []
        for number in range(self.kills + 1):
            layout, batch, workers = (draw.choice(each) for each in (self.layouts, self.batches, self.workers))
            if found and not self.changes:
                layout, batch, workers = (found[0].hosts, found[0].slots), found[0].batch, found[0].workers
            while found and self.changes and layout[0] * layout[1] == found[-1].hosts * found[-1].slots:
                layout = draw.choice(self.layouts)
            kill = draw.choice(KINDS) if number < self.kills else ""
            found.append(Run(*layout, batch, workers, kill, draw.uniform(*DELAY_S)))
        return found


ANY, FEW = ((1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (2, 2)), ((1, 1), (1, 2), (2, 1), (1, 3))
PROGRAMS = (
    Program("algorun.data, other ranks, batch, workers", "by_algorun.py", ANY, (1, 2, 3, 5), True),
    Program("ddp, other ranks, batch, workers", "by_ddp.py", ANY[:5], (2, 3, 5), True, workers=(1, 2)),
    Program("accelerate, same ranks", "by_accelerate.py", FEW, (2, 4), False, 1, package="accelerate"),
    Program("accelerate, other ranks", "by_accelerate.py", FEW, (4,), True, 1, package="accelerate"),
    Program("transformers.Trainer, same ranks", "by_trainer.py", FEW, (2, 4), False, 1, package="transformers"),
    Program("transformers.Trainer, other ranks", "by_trainer.py", FEW, (4,), True, 1, package="transformers"),
)


@dataclass(frozen=True)
class Result:
    program: str
    job: int
    runs: list[Run]
    killed: int
    missing: int
    double: int
    error: str = ""


def carry_out(program: Program, job: int, seed: int, scratch: Path) -> Result:
    """Runs, kills and resumes one job, and counts."""
    draw = random.Random(f"{seed} {program.name} {job}")
    runs, folder, killed = program.runs(draw), scratch / f"{program.script}-{program.changes}-{job}", 0
    for number, run in enumerate(runs):
        ledger = folder / "ledgers" / f"run-{number}"
        ledger.mkdir(parents=True)
        with (folder / f"run-{number}.log").open("w+") as log:
            process = start(program, run, ledger, scratch / "images", log)
            try:
                killed += bool(run.kill) and ended_by_us(process, run, folder / f"run-{number}.log", draw)
                code = process.wait(LIMIT_S)
            finally:
                process.kill()
        if code == 0 and is_done(folder):
            missing, double = judge(counts(folder))
            return Result(program.name, job, runs[: number + 1], killed, missing, double)
    return Result(program.name, job, runs, killed, 0, 0, error=(folder / f"run-{number}.log").read_text()[-2000:])


def start(program: Program, run: Run, ledger: Path, images: Path, log: object) -> subprocess.Popen:
    folder = ledger.parent.parent
    argv = [sys.executable, "-m", "algorun", "simulate", "-j", f"{run.hosts}x{run.slots}", "--resume"]
    argv += ["--out", str(folder / "hosts"), str(TOP / "bench" / "once" / program.script)]
    own = ["--batch-size", str(run.batch), "--workers", str(run.workers)]
    if program.script == "by_ddp.py":
        own += ["--checkpoint-dir", str(folder / "checkpoints"), "--checkpoint-interval-s", "0.2", "--augment", "none"]
        own += ["--train", str(images), "--validation", str(images), "--image-size", "8", "--cache-mb", "0"]
        own += ["--epochs", str(EPOCHS), "--width", "8", "--depth", "1", "--model-dir", str(folder / "model")]
        own = [str(ledger), *own]
    else:
        own += ["--folder", str(folder)]
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("SM_", "ALGORUN_"))}
    environ |= {"PYTHONPATH": str(TOP), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen([*argv, *own], env=environ, cwd=folder, stdout=log, stderr=log)


def ended_by_us(process: subprocess.Popen, run: Run, log: Path, draw: random.Random) -> bool:
    """Waits for the first step and the clock, then kills. False if the job had ended before."""
    deadline = time.monotonic() + LIMIT_S
    while "trained step" not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    try:
        process.wait(run.delay_s)
        return False
    except subprocess.TimeoutExpired:
        pass
    if run.kill == "stop":
        process.send_signal(signal.SIGTERM)
    elif run.kill == "host":
        draw.choice(psutil.Process(process.pid).children()).kill()
    else:
        pids = [line.rpartition(" ")[2] for line in log.read_text().splitlines() if "pid " in line]
        with_it = psutil.Process(int(draw.choice(pids)))
        with_it.kill()
    return True


def is_done(folder: Path) -> bool:
    return (folder / "counts.json").exists() or (folder / "model" / "model.pt").exists()


def counts(folder: Path) -> list[list[int]]:
    """How often each sample was trained on: one row for each epoch, or one row for all of them."""
    if (folder / "counts.json").exists():
        return json.loads((folder / "counts.json").read_text())
    return [from_ledgers(folder / "ledgers")]


def from_ledgers(folder: Path) -> list[int]:
    """Of each run the steps before the first step of any later run: the later run went on from there."""
    runs: list[list[list[int]]] = []
    for run in sorted(folder.iterdir()):
        lines = [line for file in run.iterdir() for line in file.read_text().splitlines()]
        runs.append([[int(word) for word in line.split()] for line in lines])
    found: Counter[int] = Counter()
    for number, steps in enumerate(runs):
        end = min((step for later in runs[number + 1 :] for step, *_ in later), default=sys.maxsize)
        found.update(image for step, *images in steps if step < end for image in images)
    return [found[sample] for sample in range(SAMPLES)]


def judge(rows: list[list[int]]) -> tuple[int, int]:
    """The samples missing and the samples trained on once too often, over all epochs."""
    expected = EPOCHS // len(rows)
    every = list(itertools.chain.from_iterable(rows))
    return sum(max(expected - n, 0) for n in every), sum(max(n - expected, 0) for n in every)


def make_images(folder: Path) -> None:
    """Image n is entirely of the grey n, in one of two classes."""
    for number in range(SAMPLES):
        file = folder / str(number % 2) / f"{number:03d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, number, number)).save(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20, help="of a script with algorun.data")
    parser.add_argument("--ddp-jobs", type=int, default=4, help="of the bundled ddp")
    parser.add_argument("--peer-jobs", type=int, default=4, help="of each peer, with the same and with other ranks")
    parser.add_argument("--together", type=int, default=3, help="jobs at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    leave_by_signals()
    numbers = (args.jobs, args.ddp_jobs, *[args.peer_jobs] * 4)
    asked = [(program, job) for program, number in zip(PROGRAMS, numbers, strict=True) for job in range(number)]
    asked = [(program, job) for program, job in asked if importlib.util.find_spec(program.package)]
    begun, scratch = time.monotonic(), Path(tempfile.mkdtemp())
    try:
        make_images(scratch / "images")
        with ThreadPoolExecutor(args.together) as pool:
            results = list(pool.map(lambda each: carry_out(*each, args.seed, scratch), asked))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    show(results, time.monotonic() - begun)
    if args.json:
        args.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    ours = [result for result in results if "algorun" in result.program or result.program.startswith("ddp")]
    sys.exit(any(result.missing or result.double or result.error for result in ours))


def show(results: list[Result], seconds: float) -> None:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "accelerate", "transformers")
                         if importlib.util.find_spec(name))  # fmt: skip
    print(f"{versions}; {SAMPLES} samples x {EPOCHS} epochs, {seconds:.0f} s in all\n")
    print("| program | jobs | kills | starts | missing | double |\n|---|---|---|---|---|---|")
    for program in PROGRAMS:
        own = [result for result in results if result.program == program.name]
        ended = [result for result in own if not result.error]
        if own:
            starts = sum(len(result.runs) for result in own)
            missing, double = (" + ".join(str(getattr(r, key)) for r in ended) if any(getattr(r, key) for r in ended) else "0"
                               for key in ("missing", "double"))  # fmt: skip
            print(f"| {program.name} | {len(own)} | {sum(r.killed for r in own)} | {starts} | {missing} | {double} |")
        for result in own:
            if result.error:
                print(f"{result.program}, job {result.job} did not end by itself:\n{result.error}", file=sys.stderr)


if __name__ == "__main__":
    main()
