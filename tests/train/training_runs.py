"""Real ranks as real processes: `Ranks` starts the entrypoint the way a launcher does, with torchrun's variables."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120
DDP = ("-m", "train.ddp")
# A model and steps small enough that a test costs little more than the start of Python.
SMALL = ["--width", "16", "--depth", "1", "--epochs", "2", "--batch-size", "16", "--image-size", "8"]


def clean_environ(base: Path) -> dict[str, str]:
    """An environment without a launcher, whose /opt/ml is `base`."""
    base.mkdir(parents=True, exist_ok=True)
    drop = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environ = {k: v for k, v in os.environ.items() if k not in drop and not k.startswith(("SM_", "OMPI_"))}
    return environ | {"SAGEMAKER_BASE_DIR": str(base), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Ranks:
    """`hosts` x `slots` ranks of an entrypoint; each host has a folder of its own, as on SageMaker."""

    def __init__(
        self, base: Path, hosts: int, slots: int, args: list[str], program: Sequence[str] = DDP, **environ: str
    ) -> None:
        self.base, world, port = base, hosts * slots, free_port()
        self.processes, self.logs = [], []
        for rank in range(world):
            host = base / f"host{rank // slots}"
            variables = clean_environ(host) | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank % slots),
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(slots),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            self.logs.append(base / f"rank{rank}.log")
            with self.logs[-1].open("w") as log:
                process = subprocess.Popen(
                    [sys.executable, "-u", *program, *args],
                    env=variables | environ,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=base,
                )
            self.processes.append(process)

    def text(self, rank: int = 0) -> str:
        return self.logs[rank].read_text()

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while text not in self.text():
            assert time.monotonic() < deadline, f"no {text!r} in:\n{self.text()}"
            assert self.processes[0].poll() is None, f"ended before {text!r}:\n{self.text()}"
            time.sleep(0.01)

    def signal(self, number: int, ranks: list[int] | None = None) -> None:
        for rank in ranks if ranks is not None else range(len(self.processes)):
            self.processes[rank].send_signal(number)

    def codes(self) -> list[int]:
        """All exit codes, by rank, after all have ended."""
        deadline = time.monotonic() + LIMIT_S
        return [process.wait(max(deadline - time.monotonic(), 0)) for process in self.processes]

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()


def once(args):
    """`args` with the last value of every option."""
    pairs = dict(zip(args[::2], args[1::2], strict=True))
    return [word for pair in pairs.items() for word in pair]


def epochs(base: Path) -> list[dict]:
    """The epoch records of a run's metrics.jsonl."""
    lines = (base / "output" / "data" / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == "epoch"]


def write_images(root: Path, classes: list[str], count: int, seed: int = 0) -> Path:
    """An image folder of PNG and JPEG files in mixed sizes and modes, written from the embedded digits."""
    import numpy as np
    from PIL import Image

    from train.data import digits

    pixels, labels = digits.load()
    random = np.random.RandomState(seed)
    for number, name in enumerate(classes):
        folder = root / name
        folder.mkdir(parents=True)
        members = np.flatnonzero(labels == number)
        for i in range(count):
            side = int(random.randint(20, 60))
            image = Image.fromarray(pixels[members[i]]).resize((side, side + 3), Image.Resampling.BICUBIC)
            if i % 3 == 0:
                image = image.convert("L")
            image.save(folder / (f"{i}.png" if i % 2 else f"{i}.JPG"))
    return root
