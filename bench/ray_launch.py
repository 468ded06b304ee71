"""Ray on hosts that are containers: what works, what start and end take, and what a fault does.

AWS's sample launcher (aws-samples/sample-ray-on-amazon-sagemaker-training-jobs) is measured beside algorun, in turns, in
containers of the same image, if you give it: `--sample FILE` is its scripts/launcher.py, and `--download` fetches this file
from GitHub. Without one of them the rows of the sample are absent.

    python bench/ray_launch.py [--turns 3] [--hosts 2] [--late 0] [--sample FILE | --download] [--parts works,times,faults] [--json FILE]

Needs Docker, the image algorun:cpu, and pip with an index that has Ray. Ray is installed into an image on top; the part
`requirements` has it in a requirements.txt beside the script, which is installed when the job starts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import ray_faults
from bench.containers import IMAGE, has_image
from bench.ray_hosts import OURS, Launcher, image, job, sample, wheels, wish
from bench.rounds import leave_by_signals

SAMPLE = "aws-samples/sample-ray-on-amazon-sagemaker-training-jobs"
REVISION = "dd39486f1271fe1a271be327a3880ba8ce1d3932"  # of 2026-07-23
URL = f"https://raw.githubusercontent.com/{SAMPLE}/{REVISION}/scripts/launcher.py"
PARTS = ("works", "requirements", "times", "faults")
LIMIT_S = 300.0  # for a job without a fault
# What the driver prints, behind the prefixes of launcher and Ray.
SAYS = re.compile(r"(tasks on|actors on|Ray Data sum|worker \d of|TorchTrainer \{).*")
TRAIN = Launcher("algorun, Ray from requirements.txt", ("algorun", "train"), {})


@dataclass(frozen=True)
class Turn:
    """Seconds of one job."""

    launcher: str
    first_s: float
    """from the start of the last container to the driver's first line"""
    ready_s: float
    """from there until a task has run on every host"""
    tail_s: float
    """from the driver's last line until the last container has ended"""


class Bench:
    """What all parts share: where jobs have their folders, and with which options their containers run."""

    def __init__(self, scratch: Path, name: str, hosts: int, options: Sequence[str], late_s: float = 0.0) -> None:
        self.scratch, self.image, self.options, self.late_s = scratch, name, tuple(options), late_s
        self.hosts = [f"algo-{number + 1}" for number in range(hosts)]
        self.jobs = 0

    def folder(self) -> Path:
        self.jobs += 1
        return self.scratch / f"job-{self.jobs}"

    def turn(self, launcher: Launcher, mode: str, hosts: list[str] | None = None, **more: object) -> Turn:
        """One job that must end well. Prints what its driver printed."""
        hosts = hosts or self.hosts
        settings = {"image": self.image, "options": self.options, **more}
        with job(self.folder(), hosts, launcher=launcher, environ={"MODE": mode}, **settings) as made:
            made.start(hosts, self.late_s)
            ends = made.ends(hosts, LIMIT_S)
            log = made.log(made.leader)
            if [end and end[0] for end in ends.values()] != [0] * len(hosts):
                logs = "\n".join(f"--- {host}: {ends[host]}\n{made.log(host)[-4000:]}" for host in hosts)
                raise SystemExit(f"{launcher.name}, {mode}: {made.failure(made.leader)}\n{logs}")
            first, ready, last = (made.wait_for(name, 0) for name in ("first", "ready", "last"))
            started = max(made.at(host, "StartedAt") for host in hosts)
            ended = max(end[1] for end in ends.values() if end)
        said = [found[0][:200] for line in log.splitlines() if (found := SAYS.search(line))]
        print("", *dict.fromkeys(said), sep="\n    ", flush=True)
        return Turn(launcher.name, first - started, ready - first, ended - last)


def works(bench: Bench) -> None:
    """Tasks and actors on two and three hosts; Ray Data and TorchTrainer on two."""
    for count in (2, 3):
        hosts = [f"algo-{number + 1}" for number in range(count)]
        modes = "tasks,actors" if count == 3 else "tasks,actors,data,train"
        print(f"{count} hosts: {modes}", flush=True)
        bench.turn(OURS, modes, hosts)


def requirements(bench: Bench, ray: str) -> Turn:
    """Ray from a requirements.txt beside the script, in containers of the image without Ray."""
    text = bench.scratch / "requirements.txt"
    text.write_text(f"--no-index\n--find-links /wheels\n{wish(ray)}\n")
    launcher = Launcher(TRAIN.name, TRAIN.words, {"requirements.txt": text})
    options = (*bench.options, "--volume", f"{wheels(ray)}:/wheels:ro")
    hyperparameters = {"sagemaker_program": "driver.py", "algorun_engine": "ray"}
    return bench.turn(launcher, "tasks", image=IMAGE, options=options, hyperparameters=hyperparameters)


def times(bench: Bench, launchers: list[Launcher], turns: int) -> list[Turn]:
    """Both launchers in turns."""
    found = []
    for number in range(turns):
        for launcher in launchers:
            found.append(bench.turn(launcher, "tasks"))
            print(f"turn {number + 1} of {turns}: {found[-1]}", flush=True)
    return found


def faults(bench: Bench, launchers: list[Launcher], names: str, limit_s: float) -> list[ray_faults.Result]:
    results = []
    for fault in ray_faults.FAULTS:
        for launcher in launchers if names in fault.name else []:
            environ, options = {"MODE": fault.mode, **fault.environ}, (*bench.options, *fault.options)
            with job(bench.folder(), bench.hosts, bench.image, launcher, environ, options) as made:
                try:
                    results.append(ray_faults.observe(fault, made, limit_s))
                    print(results[-1], flush=True)
                except TimeoutError as error:
                    print(f"{fault.name}, {launcher.name}: no row: {error}", file=sys.stderr, flush=True)
    return results


def show(turns: list[Turn]) -> None:
    """Medians of each launcher, and the ratio of the first to each."""
    print("\n| launcher | first line s | a task on every host s | tail s | turns |\n|---|---|---|---|---|")
    names = list(dict.fromkeys(turn.launcher for turn in turns))
    medians = {
        name: [
            statistics.median(getattr(turn, what) for turn in turns if turn.launcher == name)
            for what in ("first_s", "ready_s", "tail_s")
        ]
        for name in names
    }
    for name, values in medians.items():
        cells = [f"{value:.2f}" for value in values]
        if name != names[0]:
            cells = [
                f"{cell} (x {value / own:.2f})"
                for cell, value, own in zip(cells, values, medians[names[0]], strict=True)
            ]
        print(f"| {name} | {' | '.join(cells)} | {sum(turn.launcher == name for turn in turns)} |")


def find_sample(options: argparse.Namespace, scratch: Path) -> list[Launcher]:
    """AWS's launcher, if the user gave it or wants it to be fetched."""
    if options.sample is not None:
        return [sample(options.sample.resolve())]
    if not options.download:
        print("neither --sample nor --download: the rows of AWS's sample are absent")
        return []
    file = scratch / "launcher.py"
    try:
        with urllib.request.urlopen(URL, timeout=60) as answer:
            file.write_bytes(answer.read())
    except OSError as error:
        sys.exit(f"--download: {URL}: {error}; fix: --sample FILE with a copy of it")
    return [sample(file)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--hosts", type=int, default=2, help="of the parts requirements, times and faults; at least 2")
    parser.add_argument(
        "--late", type=float, default=0.0, help="seconds by which the last host starts after the others"
    )
    parser.add_argument("--parts", default=",".join(PARTS), help=f"with commas, of {', '.join(PARTS)}")
    parser.add_argument("--fault", default="", help="only faults whose name has this text")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds that a host has after a fault")
    parser.add_argument("--ray", default="2.60.0", help="version of Ray, for both launchers")
    parser.add_argument(
        "--docker-option", action="append", default=[], help="a further option of `docker run` (repeatable)"
    )
    parser.add_argument("--sample", type=Path, metavar="FILE", help="scripts/launcher.py of AWS's sample")
    parser.add_argument("--download", action="store_true", help=f"fetch this file: {URL}")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts {','.join(sorted(unknown))}: allowed: {', '.join(PARTS)}")
    if options.hosts < 2 or options.turns < 1 or options.late < 0:
        parser.error("--hosts: at least 2; --turns: at least 1; --late: at least 0")
    if not has_image():
        sys.exit(f"no image {IMAGE}: ./build.sh build --variant cpu")
    leave_by_signals()
    load = os.getloadavg()[0]
    print(f"Ray {options.ray}, {os.cpu_count()} CPUs (load {load:.0f}), {platform.system()} {platform.release()}")
    scratch = Path(tempfile.mkdtemp(prefix="algorun-bench-ray-"))
    turns: list[Turn] = []
    results: list[ray_faults.Result] = []
    try:
        launchers = [OURS, *find_sample(options, scratch)]
        bench = Bench(scratch, image(options.ray), options.hosts, options.docker_option, options.late)
        if "works" in parts:
            works(bench)
        if "times" in parts:
            turns += times(bench, launchers, options.turns)
        if "requirements" in parts:
            turns.append(requirements(bench, options.ray))
        if turns:
            show(turns)
        if "faults" in parts:
            results = faults(bench, launchers, options.fault, options.limit)
            ray_faults.show(results)
    finally:
        give_back(scratch)
        shutil.rmtree(scratch, ignore_errors=True)
        if options.json:
            rows = {"turns": [asdict(turn) for turn in turns], "faults": ray_faults.rows(results)}
            options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


def give_back(folder: Path) -> None:
    """Makes the files that root wrote in containers the caller's, so that they can be removed."""
    argv = ["run", "--rm", "--network", "none", "--entrypoint", "chown", "--volume", f"{folder}:/back", IMAGE, "-R"]
    subprocess.run(
        ["docker", *argv, f"{os.getuid()}:{os.getgid()}", "/back"], capture_output=True, timeout=120, check=False
    )


if __name__ == "__main__":
    sys.exit(main())
