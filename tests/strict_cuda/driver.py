"""Runs jobs of `jobs.py` on the strict device: `python -m tests.strict_cuda.driver OUT` reads their names, one in a line.

A name is of `jobs.JOBS` or of `mutations.MUTATIONS`: the latter is a job of which one line has been made wrong. A line with
the name answers when the job is over.

One process loads the device, torch and the libraries, and forks the ranks of all jobs. OUT/NAME/rankN.json says what each
rank waited for, in the steps, in saves and elsewhere, and its exit code (OUT/NAME/rankN.first: that of the first of two runs);
OUT/NAME/rankN.log has its output.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from algorun.common.free_ports import free_ports
from algorun.inside.stop_flag import StopFlag

from .jobs import FIRST_STEPS, JOBS, Job
from .mutations import MUTATIONS

ROOT = Path(__file__).resolve().parents[2]
OWN = ("/algorun_train/", "/smdistributed/", "/algorun/inside/")
MOST_RANKS = 4
FIRST_RUN = "first"  # ends the name of a result where the job runs again


def place(frame: FrameType | None) -> str:
    """`file.py:function` of the innermost frame of this project; what has none runs in a thread of autograd's."""
    while frame is not None:
        file = frame.f_code.co_filename
        if any(part in file for part in OWN) and "/strict_cuda/" not in file:
            return f"{Path(file).name}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "elsewhere"


class Watch:
    """What this rank waits for. A step begins where the loop asks for its batch, and ends where the stepper's `step` does. A save
    is what the loop calls to have its state written."""

    def __init__(self) -> None:
        self.steps = self.saves = 0
        self.working = self.saving = False
        self.in_steps: Counter[str] = Counter()
        self.in_saves: Counter[str] = Counter()
        self.others: Counter[str] = Counter()

    def add(self, what: str, frame: FrameType) -> None:
        """Listens to the device."""
        from tests.gpu.programs.count_synchronisations import in_a_step

        frames = [each for each, _ in traceback.walk_stack(frame)]
        inside = self.working or in_a_step(frames)
        if self.saving:
            self.in_saves[f"{what} at {place(frame)}"] += 1
        elif inside and self.steps > FIRST_STEPS:
            self.in_steps[f"{what} at {place(frame)}"] += 1
        elif not inside:
            self.others[f"{what} at {place(frame)}"] += 1

    def watched(self, step: Callable[..., object]) -> Callable[..., object]:
        """A stepper's `step` whose waits count."""

        def counted(*args: object, **kwargs: object) -> object:
            self.steps, self.working = self.steps + 1, True
            try:
                return step(*args, **kwargs)
            finally:
                self.working = False

        return counted

    def watched_save(self, save: Callable[..., object]) -> Callable[..., object]:
        """The `save` of checkpoints, whose waits count."""

        def counted(*args: object, **kwargs: object) -> object:
            self.saves, self.saving = self.saves + 1, True
            try:
                return save(*args, **kwargs)
            finally:
                self.saving = False

        return counted

    def result(self) -> dict[str, object]:
        """For JSON: waits per step, waits per save, and in all elsewhere."""
        return {
            "steps": self.steps,
            "saves": self.saves,
            "in_steps": _each(self.in_steps, self.steps - FIRST_STEPS),
            "in_saves": _each(self.in_saves, self.saves),
            "elsewhere": dict(sorted(self.others.items())),
        }


def _each(counted: Counter[str], times: int) -> dict[str, float]:
    """How often in one of `times` times."""
    return {name: round(count / max(times, 1), 3) for name, count in sorted(counted.items())}


def rank_main(job: Job, args: list[str], folder: Path, watch: Watch) -> int:
    """What one rank does, in its own process; returns its exit code."""
    from algorun_train.checkpoint.ddp_checkpoints import DdpCheckpoints
    from algorun_train.checkpoint.pipeline_checkpoints import PipelineCheckpoints
    from algorun_train.loop.data_parallel_steps import DataParallelSteps
    from algorun_train.loop.pipeline_steps import PipelineSteps
    from algorun_train.ranks.strict_cuda.waits import WAITS

    WAITS.listener = watch.add
    for kind in (DataParallelSteps, PipelineSteps):
        kind.step = watch.watched(kind.step)  # type: ignore[method-assign,assignment]
    for checkpoints in (DdpCheckpoints, PipelineCheckpoints):
        checkpoints.save = watch.watched_save(checkpoints.save)  # type: ignore[method-assign,assignment]
    os.chdir(folder)
    sys.argv = [job.program, *args]
    try:
        if job.program.endswith(".py"):
            runpy.run_path(str(ROOT / job.program), run_name="__main__")
        else:
            return int(importlib.import_module(job.program).main(args, StopFlag()))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def fork_rank(job: Job, args: list[str], folder: Path, environ: dict[str, str], before: Callable[[], None]) -> int:
    """Forks one rank; returns its process id. `before` runs in it first."""
    process = os.fork()
    if process:
        return process
    rank = environ["RANK"]
    with (folder / f"rank{rank}.log").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    for name in [name for name in os.environ if name.startswith("SM_")]:
        del os.environ[name]
    os.environ.update(environ)
    watch, code = Watch(), 1
    try:
        before()
        code = rank_main(job, args, folder, watch)
    finally:
        (folder / f"rank{rank}.json").write_text(json.dumps(watch.result() | {"code": code}))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(job: Job, args: list[str], folder: Path, before: Callable[[], None] = lambda: None) -> list[int]:
    """Runs a job's ranks to their end; returns their exit codes."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_ports("127.0.0.1", 1)[0]
    ours = {
        "WORLD_SIZE": str(job.ranks), "LOCAL_WORLD_SIZE": str(job.ranks), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "SAGEMAKER_BASE_DIR": str(folder / "ml"), "SM_CURRENT_HOST": "algo-1",
    }  # fmt: skip
    started = [
        fork_rank(job, args, folder, ours | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, before)
        for rank in range(job.ranks)
    ]
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in started]


def replaced(args: list[str], others: tuple[str, ...]) -> list[str]:
    """`args` with the values that `others` give: pairs of an option and its value."""
    pairs = dict(zip(args[::2], args[1::2], strict=True)) | dict(zip(others[::2], others[1::2], strict=True))
    return [word for pair in pairs.items() for word in pair]


def make(folder: Path) -> None:
    """Data and model folders that jobs read. In a process of its own: whoever computes starts threads."""
    process = os.fork()
    if process == 0:
        from tests.train.model_folders import write_language_model, write_text, write_vit
        from tests.train.training_runs import write_images

        write_vit(folder / "vit", classes=3)
        write_images(folder / "images", ["a", "b", "c"], 40)
        write_language_model(folder / "llama")
        write_language_model(folder / "dropping", attention_dropout=0.1)
        write_text(folder / "text", 150)
        os._exit(0)
    os.waitpid(process, 0)


def load() -> None:
    """The device, torch, and what all ranks import."""
    os.environ["LOCAL_WORLD_SIZE"] = str(MOST_RANKS)
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    os.environ["HF_HUB_OFFLINE"] = "1"
    from algorun_train.ranks.strict_cuda import loader

    loader.load()
    import torch

    torch.set_num_threads(1)
    for name in ("torch._dynamo", "torch.distributed.pipelining", "torch.distributed.tensor", "torch.utils.tensorboard",
                 "transformers.models.llama.modeling_llama", "transformers.models.vit.modeling_vit", "peft",
                 "algorun_train.jobs.ddp_job", "algorun_train.jobs.pipeline_job"):  # fmt: skip
        importlib.import_module(name)


def main(out: Path) -> None:
    """Runs the jobs that standard input names, one after the other, below `out`."""
    load()
    made = out / "made"
    made.mkdir(parents=True, exist_ok=True)
    make(made)
    for line in sys.stdin:
        name = line.strip()
        mutation = MUTATIONS.get(name)
        job = mutation.job if mutation else JOBS[name]
        args = [word.format(made=made) for word in job.args]
        codes = run(job, args, out / name, mutation.make_wrong) if mutation else run(job, args, out / name)
        if job.again and not mutation and not any(codes):
            for file in (out / name).glob("rank*.json"):  # the run that resumes writes another
                file.rename(file.with_suffix(f".{FIRST_RUN}"))
            run(job, replaced(args, job.again), out / name)
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
