"""`make demo-pipeline`: a GPT on 2 hosts x 2 ranks is killed half way, and goes on in another layout.

It trains on the sources of Python's standard library, as two pipelines of two stages. A rank is killed; the same command
with four stages goes on from the checkpoint, until the loss is below 60 % of what it was at the start. What is left:
one artifact, the partition, and pictures of the planned and the measured schedule.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

OUT = Path("algorun-simulate/demo-pipeline")
KILLED_AT, ENOUGH = 100, 0.6
CLOSING = ("failed ", "stopped ", "ok ")  # begins the last line of a job
LIMIT_S = 1200
# Two pipelines take 64 sequences each, one takes 128: a step is the same in both layouts.
TRAIN = [
    *("pipeline", "--width", "64", "--depth", "4", "--context", "64", "--epochs", "1", "--log-interval", "10"),
    *("--warmup-epochs", "0.2"),
    *("--checkpoint-interval-s", "5", "--explain"),
]


def simulate(*options: str, resume: bool = False) -> subprocess.Popen[str]:
    launch = [Path(sys.executable).with_name("algorun"), "simulate", "-j", "2x2", "--out", OUT]
    argv = [*launch, *(["--resume"] if resume else []), *TRAIN, *options]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def follow(job: subprocess.Popen[str], until: int | None = None) -> list[tuple[int, float]]:
    """Shows a job's lines and returns (step, train_loss); at step `until` a rank of host 2 is killed."""
    assert job.stdout is not None
    losses, checkpoint = [], False
    for line in job.stdout:
        print(line, end="", flush=True)
        checkpoint |= "checkpoint:" in line
        if found := re.search(r"step: (\d+)/\d+ .*train_loss: ([0-9.]+)", line):
            losses.append((int(found[1]), float(found[2])))
            if until and checkpoint and losses[-1][0] >= until:
                print(f"--- kill -9 of rank 3 at step {losses[-1][0]}", flush=True)
                os.kill(rank_of_host_two(), signal.SIGKILL)
                show_end(list(job.stdout))
    job.wait(LIMIT_S)
    return losses


def show_end(lines: list[str]) -> None:
    """Shows how the job has ended, and counts the rest: the other ranks print the same traceback about the one that is gone."""
    closing = [line for line in lines if line.startswith(CLOSING)]
    print("".join(closing or lines), end="", flush=True)
    if closing:
        of_ranks = sum(line.startswith("[") for line in lines)
        logs = f"{OUT / 'previous-1'}/algo-*/output/data/logs"  # where the second job moves them
        print(f"--- as it should; {of_ranks} lines more of the ranks that lost rank 3 are in {logs}", flush=True)


def rank_of_host_two() -> int:
    """The process of rank 3, by its environment."""
    for entry in Path("/proc").iterdir():
        try:
            environ = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if b"RANK=3" in environ and b"algorun_train.jobs.pipeline" in command:
            return int(entry.name)
    raise SystemExit("rank 3 is not there")


def main() -> int:
    shutil.rmtree(OUT, ignore_errors=True)
    print("=== two pipelines of two stages (dp 2 x pp 2)", flush=True)
    first = simulate("--pp", "2", "--batch-size", "64")
    before = follow(first, until=KILLED_AT)
    assert first.returncode not in (0, None), "the job outlived its rank"
    print("=== the same job as one pipeline of four stages (pp 4), from the checkpoint", flush=True)
    second = simulate("--pp", "4", "--batch-size", "128", resume=True)
    after = follow(second)
    assert second.returncode == 0, second.returncode
    start, end = before[0][1], after[-1][1]
    output, model = OUT / "algo-1/output/data", OUT / "algo-1/model"
    assert after[0][0] > before[0][0], "the second job began anew"
    print(f"loss {start:.3f} -> {end:.3f} ({end / start:.0%}); resumed after step {after[0][0] - 1} at the latest")
    print(f"artifact {model / 'model.pt'}; pictures {output / 'schedule.svg'}; partition {output / 'partition.json'}")
    if end >= ENOUGH * start:
        print(f"the loss is not below {ENOUGH:.0%} of its start", file=sys.stderr)
        return 1
    return 0 if all((output / name).is_file() for name in ("schedule.svg", "schedule-trace.json")) else 1


if __name__ == "__main__":
    sys.exit(main())
