"""A training loop on gloo that comes to grief on request: `training.py MODE [options]`.

busy     all ranks meet in an all-reduce at every step
quiet    they have met, and now none is inside a collective
store    each waits at every step for the others' word in the store, where no connection breaks
early    the last rank leaves before init_process_group
uneven   no torch; the last rank ends two seconds before the others
light    no torch at all
flag     SIGTERM sets a flag that is all-reduced; then all save and leave
handler  quiet, and the handler of SIGTERM saves and leaves (Python runs none inside a collective)
ignore   SIGTERM is ignored
resume   saves its step, fails as often as told, goes on from its checkpoint, ends

A file /mnt/ml/inject, `LOCAL_RANK ACTION`, asks one rank of this host for a fault. The rank notes the monotonic time in
/mnt/ml/injected-ATTEMPT first, and in began-RANK-ATTEMPT when it starts: the kernel has one such clock for all namespaces.
"""

import argparse
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

BASE = Path(os.environ.get("SAGEMAKER_BASE_DIR", "/mnt/ml"))
INJECT, CHECKPOINTS = BASE / "inject", BASE / "checkpoints"
for name, theirs in (("RANK", "RANK"), ("WORLD_SIZE", "SIZE"), ("LOCAL_RANK", "LOCAL_RANK")):
    os.environ.setdefault(name, os.environ.get(f"OMPI_COMM_WORLD_{theirs}", ""))  # under a bare mpirun
RANK, WORLD, LOCAL_RANK = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
STEP_S = 0.02
INIT_S = 3.0
EARLIER_S = 2.0
INTO_THE_COLLECTIVE_S = 0.3


def say(*words):
    """One line in one write: a bare mpirun mixes the pieces of several ranks."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def write(path, text):
    """Whole or not at all."""
    aside = path.with_name(f".{path.name}.{RANK}")
    with open(aside, "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(aside, path)


def save(seconds):
    """A checkpoint that takes its time."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(0.1, left))
    write(CHECKPOINTS / f"rank-{RANK}", "complete")
    say("saved", RANK)


def stuck():
    time.sleep(3600)


def allocate():
    held = []
    while True:
        held.append(b"x" * (16 << 20))


def full_shm():
    import mmap

    with open("/dev/shm/batch", "w+b") as file:
        os.unlink("/dev/shm/batch")
        file.truncate(16 << 20)
        with mmap.mmap(file.fileno(), 16 << 20) as memory:
            memory.write(b"x" * (16 << 20))


def full_disk():
    (CHECKPOINTS / "large").write_bytes(b"x" * (16 << 20))


def fault(action):
    time.sleep(INTO_THE_COLLECTIVE_S)
    write(BASE / f"injected-{ATTEMPT}", repr(time.monotonic()))
    if action == "raise":
        raise ValueError("bad batch 17")
    if action == "raise_long":
        raise ValueError("bad batch 17: " + "long " * 400)
    if action == "exit7":
        sys.exit(7)
    if action == "abort":
        os.abort()
    if action.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, action))
    else:
        {"sleep": stuck, "allocate": allocate, "full_shm": full_shm, "full_disk": full_disk, "leave": leave}[action]()


def leave():
    os._exit(0)


def wanted():
    """The fault that this rank is asked for."""
    try:
        local_rank, action = INJECT.read_text().split()
    except FileNotFoundError:  # the rank it is for takes it away while its neighbours look
        return
    if int(local_rank) == LOCAL_RANK:
        INJECT.unlink()
        fault(action)


def light(options):
    say("up", RANK, WORLD)
    until = time.monotonic() + options.seconds
    while time.monotonic() < until:
        wanted()
        time.sleep(STEP_S)


def main():
    write(BASE / f"began-{RANK}-{ATTEMPT}", repr(time.monotonic()))
    parser = argparse.ArgumentParser()
    parser.add_argument("mode")
    parser.add_argument("--save-s", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--fails", type=int, default=0)
    parser.add_argument("--fault", default="raise")
    parser.add_argument("--optimizer", action="store_true", help="steps that the launcher can count")
    options = parser.parse_args()
    stops = []
    if options.mode == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.mode == "flag":

        def note(*_):
            stops.append(1)
            write(BASE / f"told-{RANK}", repr(time.monotonic()))

        signal.signal(signal.SIGTERM, note)
    if options.mode == "handler":

        def leave(*_):
            save(options.save_s)
            os._exit(0)

        signal.signal(signal.SIGTERM, leave)
    if options.mode == "uneven":
        options.seconds += EARLIER_S * (RANK < WORLD - 1)
    if options.mode in ("light", "ignore", "uneven"):
        return light(options)
    return torch_loop(options, stops)


def torch_loop(options, stops):
    import torch
    import torch.distributed as dist

    if options.mode == "early" and RANK == WORLD - 1:
        fault("leave")
    dist.init_process_group("gloo", timeout=timedelta(seconds=INIT_S if options.mode == "early" else 1800))
    store = dist.distributed_c10d._get_default_store() if options.mode == "store" else None
    optimizer = None
    if options.optimizer:  # its import doubles the time to start
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
    mine = CHECKPOINTS / f"step-{RANK}"
    first = int(mine.read_text()) if options.mode == "resume" and mine.exists() else 0
    common = torch.tensor([float(first)])
    dist.all_reduce(common, dist.ReduceOp.MIN)
    first = int(common.item())
    if options.mode == "resume":
        say(f"resumed attempt={ATTEMPT} step={first}")
    step = first
    while not options.steps or step < options.steps:
        step += 1
        if options.mode == "store":
            store.set(f"{step}-{RANK}", "here")
            store.wait([f"{step}-{rank}" for rank in range(WORLD)])
            weight.grad = torch.ones(1)
            optimizer.step()
        elif options.mode not in ("quiet", "handler") or step <= first + 3:
            total = torch.tensor([float(bool(stops))])
            dist.all_reduce(total)
            if total.item():
                save(options.save_s)
                break
            if optimizer:
                weight.grad = torch.ones(1)
                optimizer.step()
        if step == first + 3:
            say("up", RANK, WORLD)
        if options.mode == "resume":
            write(mine, str(step))
            if options.fails > ATTEMPT and RANK == WORLD - 1 and step >= first + 10:
                fault(options.fault)
        wanted()
        time.sleep(STEP_S)
    dist.destroy_process_group()
    say(f"done attempt={ATTEMPT} step={step}")
    if options.mode == "flag":  # seconds of a stop are the launcher's, not those of four interpreters that unload torch
        os._exit(0)


main()
