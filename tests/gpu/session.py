"""What a check is given: the machine, the sizes, and a way to run jobs whose end is sure."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from algorun.common.errors import exit_code
from algorun.machine.visible_gpus import VARIABLE, named

from .machine import ROOT, Machine
from .sizes import Sizes

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
KILL_S = 10.0  # between SIGTERM and SIGKILL of a job that outlasts its check
# What this machine's user has set for other jobs must not steer the checks.
FOREIGN = ("SAGEMAKER_", "SM_", "ALGORUN_", "TORCHELASTIC_", "OMPI_")
CONTRACT = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


class Skip(Exception):
    """A check cannot be made here. The text is the reason."""


def needs_a_compiler() -> None:
    """torch.compile calls it, on the CPU and by Triton on a GPU. Raises Skip where PATH has none."""
    if not any(map(shutil.which, ("c++", "g++", "gcc", "clang"))):
        raise Skip("needs a C++ compiler on PATH: torch.compile calls it")


class Wrong(Exception):
    """A check found something else than it must."""


class Late(Wrong):
    """A job had not ended when the check's time was over."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, with its unit, and how it came about."""

    name: str
    value: str
    how: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What a check has found in order: a note in a few words, and figures."""

    note: str
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended. `text` is all that it printed, stdout and stderr in one; `base` its /opt/ml."""

    code: int
    text: str
    seconds: float
    base: Path

    @property
    def failure(self) -> str:
        """The failure file, "" without one."""
        try:
            return (self.base / "output" / "failure").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    @property
    def summary(self) -> dict[str, float]:
        """The figures of a finished training."""
        return dict(json.loads((self.base / "output" / "data" / "summary.json").read_text(encoding="utf-8")))

    def must(self, code: int = 0) -> Outcome:
        """Itself. Raises Wrong for another exit code."""
        if self.code != code:
            said = self.failure or "\n".join(self.text.splitlines()[-15:])
            raise Wrong(f"exit code {self.code}, not {code}: {said.strip()}")
        return self

    def find(self, pattern: str) -> re.Match[str]:
        """The first match in the text. Raises Wrong without one."""
        found = re.search(pattern, self.text, re.MULTILINE)
        if found is None:
            last = "\n".join(self.text.splitlines()[-15:])
            raise Wrong(f"nothing printed matches {pattern!r}; the last lines: {last}")
        return found


@dataclass(slots=True)
class Session:
    """One run of the harness. `check` is the name of the check at work, `deadline` its end (time.monotonic).

    `found`: what a check keeps for later ones to compare with, by the check's name.
    """

    machine: Machine
    sizes: Sizes
    python: Path
    folder: Path
    check: str = ""
    deadline: float = 0.0
    found: dict[str, object] = field(default_factory=dict)

    def environ(self, **more: str) -> dict[str, str]:
        """This process's environment without what could steer a job. On the CPU no GPU shows.

        On GPUs the launcher chooses the threads of each rank: the Makefile's one thread is for tests on few cores.
        """
        foreign = (*CONTRACT, "OMP_NUM_THREADS")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN) and k not in foreign}
        if not self.machine.on_gpu:
            kept |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        return kept | {"PYTHONUNBUFFERED": "1"} | more

    def gpu(self, number: int) -> str:
        """The name of a GPU for CUDA_VISIBLE_DEVICES."""
        value = os.environ.get(VARIABLE)
        return str(number) if value is None else named(value)[number]

    @property
    def every_gpu(self) -> list[str]:
        """The options that start a rank per GPU, one on the CPU: a script alone would be one process per host."""
        return ["--slots", str(self.machine.count or 1)]

    def base(self, name: str = "job") -> Path:
        """A job's /opt/ml below the check's own folder, made where it is not there."""
        folder = self.folder / self.check / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def text(self, count: int) -> list[str]:
        """The options that make a job train on this many bytes of text; none for 0, the embedded text."""
        if not count:
            return []
        folder = self.base("text")
        (folder / "text.txt").write_text(("The quick brown fox jumps over the lazy dog.\n" * count)[:count])
        return ["--train", str(folder)]

    def run(self, *words: str, base: Path, stop: Stop | None = None, **environ: str) -> Outcome:
        """`algorun WORDS` until it ends; `stop` sends SIGTERM meanwhile. Raises Late once the check's time is over."""
        return self.python_program("-I", "-m", "algorun", *words, base=base, stop=stop, **environ)

    def python_program(self, *words: str, base: Path, stop: Stop | None = None, **environ: str) -> Outcome:
        """The interpreter with these arguments; otherwise as `run`."""
        begun = time.monotonic()
        log = base / "log.txt"
        with contextlib.ExitStack() as owner:
            with log.open("wb") as out, stops_wait():
                process = subprocess.Popen(
                    [str(self.python), *words],
                    cwd=base,
                    env=self.environ(SAGEMAKER_BASE_DIR=str(base), **environ),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                owner.callback(_end, process)
            self._wait(process, log, stop)
        text = log.read_text(encoding="utf-8", errors="replace")
        return Outcome(exit_code(process.wait()), text, time.monotonic() - begun, base)

    def _wait(self, process: subprocess.Popen[bytes], log: Path, stop: Stop | None) -> None:
        while process.poll() is None:
            if time.monotonic() > self.deadline:
                last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
                raise Late("no end within the check's time; the last lines: " + "\n".join(last))
            if stop is not None and stop.due(log):
                process.send_signal(signal.SIGTERM)
                stop = None
            time.sleep(0.05)


class Stop:
    """SIGTERM, `after_s` seconds after the first line that contains `word`."""

    def __init__(self, word: str, after_s: float) -> None:
        self._word, self._after_s = word, after_s
        self._since: float | None = None

    def due(self, log: Path) -> bool:
        if self._since is None and self._word in log.read_text(encoding="utf-8", errors="replace"):
            self._since = time.monotonic()
        return self._since is not None and time.monotonic() - self._since >= self._after_s


@contextlib.contextmanager
def stops_wait() -> Iterator[None]:
    """A stop that comes meanwhile takes effect afterwards: a job that has just been started has an owner by then."""
    came: list[int] = []
    before = {each: signal.signal(each, lambda number, _: came.append(number)) for each in STOPS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in came:
            signal.raise_signal(number)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left of a job: its supervisor ends the ranks, which have sessions of their own."""
    if process.poll() is not None:
        return
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_S)
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table. `run(session)` returns what was seen, or raises Skip or Wrong.

    `gpus` is the least number of GPUs, 0 for checks that the CPU can show as well. `modules` are packages that it needs.
    """

    name: str
    title: str
    run: Callable[[Session], Seen]
    limit_s: float
    gpus: int = 0
    modules: tuple[str, ...] = ()


def program(name: str) -> str:
    """The path of a program that runs as ranks."""
    return str(ROOT / "tests" / "gpu" / "programs" / name)
