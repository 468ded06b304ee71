"""What it costs that ranks note their activities: a job of two ranks with the launcher's hooks and without them, in turns.

    python bench/activities.py [--rounds 11] [--steps 400] [--repeats 200000]

Prints the CPU time of one activity, that of a backward, whose end is noted as exchange, and their share of a step of 50 ms;
then the ratio of the steps per second with hooks and without, paired by round. The job trains a small model in DDP (gloo)
with a DataLoader, so a step is short and the hooks weigh as much as they ever do. The time of one activity is that of the
note alone: the Python call around torch's function comes on top (about 0.2 us). A third job traces its steps
(ALGORUN_TRACE_STEPS): an activity then is two moments in the trace as well.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.quiet import paired_ratio, quartiles

LONGEST_S = 300.0  # of one job
STATED_S = 0.05  # the step that the share is of
TRACED_REPEATS = 4_000  # of one activity while steps are traced, and their buffer has room
TRACED = "2-1000"
BACKWARD = 40  # repeats of an activity for one of a backward, with the launcher's function around it and without
FIGURES = "figures "  # before a job's figures
PROGRAM = textwrap.dedent(
    f"""
    import json, sys, time, torch, torch.distributed as dist, torch.nn as nn
    from torch.utils.data import DataLoader, TensorDataset

    steps, repeats = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(8 * (steps + 1), 64), torch.randn(8 * (steps + 1), 1))
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    activities = sys.modules["algorun_rank_steps"].activities

    for index, (inputs, wanted) in enumerate(DataLoader(data, batch_size=8)):
        if index == 1:
            dist.barrier()
            begun = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
    dist.barrier()
    step_s = (time.perf_counter() - begun) / steps
    cpu = time.thread_time()
    for _ in range(repeats):
        activities.enter("forward")
        activities.leave()
    one_s = (time.thread_time() - cpu) / repeats

    def backwards(function):
        losses = [weight.sum() for _ in range(repeats // {BACKWARD})]
        cpu = time.thread_time()
        for loss in losses:
            function(loss)
        return (time.thread_time() - cpu) / len(losses)

    weight = torch.ones(1, requires_grad=True)
    noted = torch.autograd.backward
    pairs = [(backwards(noted), backwards(getattr(noted, "__wrapped__", noted))) for _ in range(9)]
    backward_s = sorted(a - b for a, b in pairs)[4]
    if dist.get_rank() == 0:
        print("{FIGURES}" + json.dumps({{"step_s": step_s, "one_s": one_s, "backward_s": backward_s, "torch": torch.__version__}}))
    dist.destroy_process_group()
    """
)
ALONE = ("data", "forward", "optimizer")  # each once in a step of PROGRAM, besides a backward that ends in exchange
A_STEP = (*ALONE, "backward", "exchange")


def job(folder: Path, steps: int, hooks: str, repeats: int) -> dict[str, float | str]:
    """The figures of one job; without hooks its steps alone count. Exits where it fails."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    argv = [sys.executable, "-m", "algorun", "simulate", "-j", "1x2", str(program), str(steps)]
    argv.append(str({"on": repeats, "off": BACKWARD, "traced": min(repeats, TRACED_REPEATS)}[hooks]))
    environ = {**os.environ, "ALGORUN_HOOKS": "off" if hooks == "off" else "", "OMP_NUM_THREADS": "1"}
    environ["ALGORUN_TRACE_STEPS"] = TRACED if hooks == "traced" else ""
    done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=LONGEST_S)
    lines = [line.split(FIGURES, 1)[1] for line in done.stdout.splitlines() if FIGURES in line]
    if done.returncode or not lines:
        sys.exit(f"error: the job ({hooks}) ended with {done.returncode}\n{done.stdout}{done.stderr}")
    found: dict[str, float | str] = json.loads(lines[0])
    seen = json.loads((folder / "algorun-simulate/algo-1/output/data/result.json").read_text())["times"]
    if hooks != "off" and not all(seen["activities"][name] for name in A_STEP):
        sys.exit(f"error: the job did not show its activities: {seen}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument(
        "--repeats", type=int, default=200_000, help="of an activity alone, 40 times those of a backward"
    )
    options = parser.parse_args()
    if options.repeats < BACKWARD:
        parser.error(f"--repeats: {options.repeats}; allowed: {BACKWARD} or more")
    rates: dict[str, list[float]] = {"on": [], "off": [], "traced": []}
    one_s: list[float] = []
    traced_s: list[float] = []
    backward_s: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for hooks in ("on", "off", "traced") if number % 2 else ("traced", "off", "on"):
                found = job(Path(folder), options.steps, hooks, options.repeats)
                rates[hooks].append(1 / float(found["step_s"]))
                if hooks == "traced":
                    traced_s.append(float(found["one_s"]))
                if hooks == "on":
                    one_s.append(float(found["one_s"]))
                    backward_s.append(float(found["backward_s"]))
    low, cost, high = quartiles(one_s)
    backward = quartiles(backward_s)[1]
    together = len(ALONE) * cost + backward
    print(f"torch {found['torch']}")
    print(f"an activity: {1e6 * cost:.2f} us of CPU time ({1e6 * low:.2f} - {1e6 * high:.2f}), {len(ALONE)} a step")
    low, traced, high = quartiles(traced_s)
    print(f"an activity while steps are traced: {1e6 * traced:.2f} us ({1e6 * low:.2f} - {1e6 * high:.2f})")
    print(f"a backward with its exchange: {1e6 * backward:.2f} us")
    print(f"together {1e6 * together:.1f} us, {together / STATED_S:.3%} of a step of {1e3 * STATED_S:g} ms")
    low, ratio, high = paired_ratio(rates["on"], rates["off"])
    print(f"steps/s with hooks over without: {ratio:.3f} ({low:.3f} - {high:.3f}), {options.rounds} rounds")
    low, ratio, high = paired_ratio(rates["traced"], rates["off"])
    print(f"steps/s traced over without hooks: {ratio:.3f} ({low:.3f} - {high:.3f})")
    print(f"a step takes {1e3 / quartiles(rates['on'])[1]:.2f} ms with hooks")


if __name__ == "__main__":
    main()
