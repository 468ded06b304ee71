"""Folders of jobs as `algorun fetch` leaves them, with any number of hosts."""

from __future__ import annotations

import json
import math
from pathlib import Path

BEGIN = 1_795_400_000
JOB = "images-train-0003-5c81e2"
PHASES = ("Starting", 95), ("Downloading", 42), ("Training", 5000), ("Uploading", 11)
DEFINITIONS = [
    {"Name": "train:loss", "Regex": "train_loss: ([0-9\\.]+)"},
    {"Name": "grad_norm", "Regex": "grad_norm=([0-9.e+-]+)"},
]


def job_json(hosts: int = 2, **changes: object) -> dict[str, object]:
    """`job.json` of a completed job."""
    phases, at = [], float(BEGIN)
    for name, seconds in PHASES:
        phases.append({"name": name, "begin": at, "end": at + seconds})
        at += seconds
    return {
        "job": JOB,
        "kind": "training",
        "status": "Completed",
        "hosts": hosts,
        "instance": "ml.g5.12xlarge",
        "created": BEGIN,
        "ended": at,
        "billable_s": 1510,
        "training_s": 5042,
        "phases": phases,
        "failure": "",
        "metrics": DEFINITIONS,
        **changes,
    }


def line(host: int, step: int) -> str:
    """A line of a step, with four metrics."""
    loss = 2.3 * math.exp(-step / 2500) + 0.02 * math.sin(step * 0.7 + host) + 0.005 * host
    norm = 1 + 0.3 * math.cos(step / 400 + host)
    speed = 1900 + 25 * host + 60 * math.sin(step / 97)
    wait = 0.02 + 0.01 * math.sin(step / 350 + host) ** 2
    return f"[{host - 1} algo-{host}] step: {step} train_loss: {loss:.4f} grad_norm={norm:.3e} images_per_s: {speed:.1f} data_wait: {wait:.4f}"


NAMES = ("data", "forward", "backward", "exchange", "optimizer", "saving", "evaluation")


def write_rank_times(
    folder: Path, *, hosts: int = 2, ranks: int = 2, reports: int = 20, slow: int = 2, begin: float = BEGIN + 140.0
) -> None:
    """What the launchers of a job leave of their ranks' times: rank `slow` works more than the others. Two attempts."""
    folder.mkdir(parents=True, exist_ok=True)
    for host in range(hosts):
        mine = list(range(host * ranks, (host + 1) * ranks))
        lines: list[dict[str, object]] = [{"format": 1, "host": f"algo-{host + 1}", "activities": NAMES}]
        for attempt in (1, 2):
            start = begin + (attempt - 1) * (10.0 * reports + 30)
            lines.append({"attempt": attempt, "time": start, "ranks": mine})
            for at in range(reports):
                sums = [
                    [
                        round(10 * at * share, 3)
                        for share in ((0.1, 0.3, 0.4, 0.05, 0.05) if rank == slow else (0.05, 0.2, 0.3, 0.3, 0.05))
                    ]
                    for rank in mine
                ]
                rows = [
                    [*each, float(at // 8) if rank == 0 else 0.0, at // 5 * 0.5]
                    for rank, each in zip(mine, sums, strict=True)
                ]
                lines.append({"steps": [20 * at] * ranks, "time": start + 5 + 10 * at, "seconds": rows})
            if host == 0:
                lines.append({"slow": f"slow: rank {slow} on algo-2: its own work", "time": start + 45})
        path = folder / f"rank_times-algo-{host + 1}.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in lines))


def write_job(folder: Path, *, hosts: int = 2, steps: int = 50, timed: bool = True, more: tuple[str, ...] = ()) -> Path:
    """A folder with a log for each host; `more` are lines at the end of the first one."""
    logs = folder / "logs"
    logs.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps(job_json(hosts)))
    for host in range(1, hosts + 1):
        lines = [f"algorun 0.2.0  engine native  nnodes {hosts}", *(line(host, step) for step in range(steps))]
        lines += more if host == 1 else ()
        path = logs / f"algo-{host}-{BEGIN + 140}.log"
        path.write_text("".join(f"{each}\n" for each in lines))
        if timed:
            first = 1000 * (BEGIN + 140)
            path.with_suffix(".times").write_text("".join(f"{first + 500 * n}\n" for n in range(len(lines))))
    return folder
