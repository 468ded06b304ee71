"""Whether slow ranks are named, and only they: jobs with one delayed rank, and jobs in which no rank is delayed.

    python bench/slowness.py [--layouts 2x2 2x4] [--sizes 0.05 0.2 1] [--parts PART ..] [--rounds 1] [--clean 4] [--seconds 8] [--json FILE]

Delays one part of a rank's step (data, forward, backward, optimizer, saving, or what no activity names) by a share of the
whole step, and looks for that rank and that part in the verdict on slow ranks, and in the order of what ranks spent more on
than the others. Hosts report every 2 s, so the jobs are short. The delayed script waits where a GPU would compute, so two
cores carry eight ranks. `--clean` is the number of even jobs of each kind: a script in DDP, a script in FSDP2, and the
bundled `ddp` and `pipeline`. Every second one runs beside four busy processes for each core.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

LONGEST_S = 300.0  # of one job
OTHER = "what no activity names"
PARTS = ("data", "forward", "backward", "optimizer", "saving", OTHER)
BUSY_FOR_EACH_CORE = 4
DDP = "--epochs 20 --width 32 --depth 2"
PIPELINE = "--pp 2 --model vit --epochs 15"
SCRIPT = textwrap.dedent(
    """
    import io, sys, time, torch, torch.distributed as dist, torch.nn as nn
    from torch.utils.data import DataLoader, Dataset

    wrapper, part, delayed, size, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5])
    USUAL_S, EVERY = 0.01, 4  # of each of four parts; steps from one save to the next
    dist.init_process_group("gloo")

    def work(name, usual_s=USUAL_S, times=1):
        extra = size * 4 * USUAL_S * times if name == part and dist.get_rank() == delayed else 0.0
        if usual_s + extra:
            time.sleep(usual_s + extra)

    class Data(Dataset):
        def __len__(self):
            return 1_000_000
        def __getitem__(self, index):
            work("data")
            return torch.ones(4)

    class Slowly(torch.autograd.Function):
        @staticmethod
        def forward(context, inputs):
            work("forward")
            return inputs.clone()
        @staticmethod
        def backward(context, gradient):
            work("backward")
            return gradient

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        def forward(self, inputs):
            return self.last(Slowly.apply(self.first(inputs)))

    class Optimizer(torch.optim.SGD):
        def step(self, closure=None):
            work("optimizer")
            return super().step(closure)

    class Saved:
        def __reduce__(self):
            work("saving", 0.0, EVERY)
            return (int, ())

    model = Model()
    if wrapper == "fsdp2":
        from torch.distributed.fsdp import fully_shard
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(model, mesh=mesh)
    else:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = Optimizer(model.parameters(), lr=0.1)
    until = time.monotonic() + seconds
    go_on = torch.ones(1)
    for number, batch in enumerate(DataLoader(Data(), batch_size=1)):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        work("what no activity names", 0.0)
        if number % EVERY == 0:
            torch.save(Saved(), io.BytesIO())
        go_on.fill_(time.monotonic() < until)
        dist.broadcast(go_on, 0)
        if not go_on.item():
            break
    dist.destroy_process_group()
    """
)


@dataclass(frozen=True)
class Ending:
    """What one job says of its ranks: the line about slow ones, "" without one, and what ranks spent more on than others."""

    slow: str
    above: tuple[str, ...]


def ending(folder: Path, layout: str, words: Sequence[str]) -> Ending:
    """Runs a job. Exits where it fails."""
    argv = [sys.executable, "-m", "algorun", "simulate", "-j", layout, *words]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "ALGORUN_TIMES_S": "2"}
    done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=LONGEST_S)
    if done.returncode:
        sys.exit(f"error: {' '.join(argv)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    warned = [line for line in done.stdout.splitlines() if "warning: slow:" in line]
    result = json.loads((folder / "algorun-simulate/algo-1/output/data/result.json").read_text())
    return Ending(str(result.get("slow", "")) or "".join(warned), tuple(str(result.get("above", "")).split(", ")))


def delays(folder: Path, options: argparse.Namespace) -> list[dict[str, object]]:
    """One record for each job with a delayed rank."""
    found = []
    grid = itertools.product(range(options.rounds), options.layouts, options.parts, options.sizes)
    for number, (_, layout, part, size) in enumerate(grid):
        hosts, slots = map(int, layout.split("x"))
        rank = number * 5 % (hosts * slots)
        end = ending(folder, layout, [str(folder / "job.py"), "ddp", part, str(rank), str(size), str(options.seconds)])
        line = end.slow
        named = f"slow: rank {rank} on algo-{rank // slots + 1}:" in line
        stage = re.search("most of the excess in (.*?);", line)
        verdict = "right" if named and stage and stage[1] == part else "part" if named else "wrong" if line else "none"
        places = [place for place, each in enumerate(end.above, 1) if each.startswith(f"rank {rank} in {part} ")]
        place = places[0] if places else 0
        wrong = "" if verdict == "right" and place == 1 else f" {line} | {', '.join(end.above)}"
        print(f"{layout} {part}, rank {rank}, {size:.0%}: {verdict}, place {place or 'none'}{wrong}", flush=True)
        found.append(
            {
                "layout": layout,
                "part": part,
                "rank": rank,
                "size": size,
                "verdict": verdict,
                "place": place,
                "line": line,
            }
        )
    return found


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes compute meanwhile."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


def clean(folder: Path, options: argparse.Namespace) -> list[dict[str, object]]:
    """One record for each even job."""
    script = str(folder / "job.py")
    even = ["none", "0", "0", str(options.seconds)]
    kinds = {
        "ddp script": [script, "ddp", *even],
        "fsdp2 script": [script, "fsdp2", *even],
        "ddp": ["ddp", *DDP.split()],
        "pipeline": ["pipeline", *PIPELINE.split()],
    }
    found = []
    for number, (kind, words) in itertools.product(range(options.clean), kinds.items()):
        loaded = number % 2 == 1
        with busy(BUSY_FOR_EACH_CORE * (os.cpu_count() or 1) if loaded else 0):
            line = ending(folder, "2x2", words).slow
        print(f"even {kind}{' under load' if loaded else ''}: {line or 'nobody named'}", flush=True)
        found.append({"kind": kind, "loaded": loaded, "line": line})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", nargs="*", default=["2x2", "2x4"])
    parser.add_argument("--sizes", nargs="*", type=float, default=[0.05, 0.2, 1.0])
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--clean", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.py").write_text(SCRIPT)
        delayed, even = delays(folder, options), clean(folder, options)
    for size in options.sizes:
        counted = Counter(str(each["verdict"]) for each in delayed if each["size"] == size)
        places = Counter(int(str(each["place"])) for each in delayed if each["size"] == size)
        print(
            f"delay of {size:.0%}: of {sum(counted.values())} jobs the verdict names rank and part in {counted['right']}; "
            f"in the order of excesses they come first in {places[1]}, second in {places[2]}"
        )
    if even:
        false = [each for each in even if each["line"]]
        print(f"even jobs: a rank named in {len(false)} of {len(even)}")
    if options.json:
        options.json.write_text(json.dumps({"delays": delayed, "even": even}, indent=1) + "\n")


if __name__ == "__main__":
    main()
