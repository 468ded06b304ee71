"""Real ranks as real processes: `Ranks` gives them torchrun's variables, as a launcher does."""

import contextlib
import gc
import json
import multiprocessing
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self, TextIO

from algorun.common.free_ports import hold as hold_port

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120
DDP = "algorun_train.jobs.ddp"
# A model and steps small enough that a test costs little more than the start of Python.
# To load these costs a rank more than its training. So ranks are forked from a process that has loaded them, which
# neither computes nor starts a thread; that the entrypoint starts from nothing as well is shown where launchers start it.
# Nothing of this project is among them: each rank reads its environment while it loads the project's own modules.
LOADED = [
    "torch",
    "torch._dynamo",
    "torch.distributed.pipelining",
    "torch.distributed.tensor",
    "torch.utils.tensorboard",
    "numpy.ma",
    "PIL.ImageOps",
    "pytest",  # programs of tests import the models of tests
    "xml.sax.saxutils",
]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(LOADED)
SMALL = ["--width", "16", "--depth", "1", "--epochs", "2", "--batch-size", "16", "--image-size", "8"]


TRANSFORMERS = [f"transformers.models.{name}.modeling_{name}" for name in ("gpt2", "llama", "bert")]


def load_once(*modules: str) -> None:
    """Adds libraries that are loaded once, before ranks are forked. Call it while pytest imports the test's module.

    A rank that loads transformers itself takes 2.4 s of CPU, a forked one 0.6 s. What is not installed is passed over.
    """
    LOADED.extend(module for module in modules if module not in LOADED)
    FORKS.set_forkserver_preload(LOADED)


def clean_environ(base: Path) -> dict[str, str]:
    """An environment without a launcher, whose /opt/ml is `base`."""
    base.mkdir(parents=True, exist_ok=True)
    drop = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environ = {k: v for k, v in os.environ.items() if k not in drop and not k.startswith(("SM_", "OMPI_"))}
    ours = {
        "SAGEMAKER_BASE_DIR": str(base),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(ROOT),
    }
    return environ | ours


def _held(stream: TextIO, text: str, gate: Path) -> Callable[[str], int]:
    """Its `write`, which does not return from a line with `text` before the file `gate` is there."""
    write = stream.write

    def waiting(words: str) -> int:
        written = write(words)
        if text in words:
            stream.flush()  # the caller would do so afterwards
            deadline = time.monotonic() + LIMIT_S
            while not gate.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        return written

    return waiting


def _as_rank(environ: dict[str, str], log: Path, program: str, args: list[str], hold: str | None) -> None:
    """What `python -u -m <program>` (or `python -u <program>.py`) does, in a process that is there already."""
    with log.open("w") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)
        if hold is not None:
            stream.write = _held(stream, hold, log.with_suffix(".go"))
    gc.freeze()  # what was loaded before stays: to look for garbage in it takes 0.1 s of CPU each time, and copies its memory
    multiprocessing.process._parent_process = None  # a program that is started has none
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(log.parent)
    sys.argv = [program, *args]
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__")


class Ranks:
    """`hosts` x `slots` ranks of an entrypoint; each host has a folder of its own, as on SageMaker.

    A rank that writes a line with the text `hold` stays in it until `signal` has sent its signal: a run of a few
    milliseconds a step would have ended before a signal from here reached it.
    """

    def __init__(
        self,
        base: Path,
        hosts: int,
        slots: int,
        args: list[str],
        program: str = DDP,
        hold: str | None = None,
        **environ: str,
    ) -> None:
        self.base, world = base, hosts * slots
        self._port = hold_port("127.0.0.1")  # from all tests beside this one
        port = self._port.getsockname()[1]
        self.processes, self.logs = [], []
        for rank in range(world):
            host = base / f"host{rank // slots}"
            variables = clean_environ(host) | {
                "SM_CURRENT_HOST": f"algo-{rank // slots + 1}",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank % slots),
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(slots),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            self.logs.append(base / f"rank{rank}.log")
            self.logs[-1].write_text("")  # nobody waits for what an earlier run on this base has said
            self.logs[-1].with_suffix(".go").unlink(missing_ok=True)
            channels = sorted((host / "input" / "data").glob("*"))
            variables |= {f"SM_CHANNEL_{folder.name.upper()}": str(folder) for folder in channels}
            arguments = (variables | environ, self.logs[-1], program, args, hold)
            self.processes.append(FORKS.Process(target=_as_rank, args=arguments))
            self.processes[-1].start()

    def text(self, rank: int = 0) -> str:
        return self.logs[rank].read_text()

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while text not in self.text():
            assert time.monotonic() < deadline, f"no {text!r} in:\n{self.text()}"
            assert self.processes[0].is_alive(), f"ended before {text!r}:\n{self.text()}"
            time.sleep(0.01)

    def signal(self, number: int, ranks: list[int] | None = None) -> None:
        for rank in ranks if ranks is not None else range(len(self.processes)):
            with contextlib.suppress(ProcessLookupError):  # its peers may have ended at the first one's death
                os.kill(self.processes[rank].pid, number)
        for log in self.logs:
            log.with_suffix(".go").touch()

    def codes(self, limit_s: float = LIMIT_S) -> list[int]:
        """All exit codes, by rank, after all have ended. `limit_s` is the time for two ranks, which two cores run at once."""
        deadline = time.monotonic() + limit_s * max(len(self.processes) / 2, 1)
        for process in self.processes:
            process.join(max(deadline - time.monotonic(), 0))
        assert not any(process.is_alive() for process in self.processes), self.text()
        self._port.close()
        return [process.exitcode for process in self.processes]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        self._port.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def by_itself(folder: Path, program: Path, *args: str, **environ: str) -> tuple[int, str]:
    """Exit code and output of a program that somebody starts without a launcher, forked as ranks are.

    torch is loaded already, which takes 1.3 s of CPU, and nothing of this project is.
    """
    log = folder / "by-itself.log"
    arguments = (clean_environ(folder / "ml") | environ, log, str(program), list(args), None)
    process = FORKS.Process(target=_as_rank, args=arguments)
    process.start()
    try:
        process.join(LIMIT_S)
        assert process.exitcode is not None, log.read_text()
    finally:
        process.kill()
        process.join()
    return process.exitcode, log.read_text()


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

    from algorun_train.data import digits

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
