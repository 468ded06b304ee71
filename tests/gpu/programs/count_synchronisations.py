"""Trains ddp and counts where it waits for the GPU: in steps of the loop, and elsewhere.

torch warns of each operation that waits (`torch.cuda.set_sync_debug_mode`). Reports, evaluations and checkpoints have
to wait; a step must not, or the GPU idles while Python prepares the next one. torch does not warn of a copy from
pageable memory that was asked not to wait, although CUDA may wait for the stream first: the profiler names those.
"""

import json
import os
import sys
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import TextIO

import torch

LOOP = str(Path("algorun_train", "loop", "training_loop.py"))
WORD = "called a synchronizing"
FIRST_STEPS = 2  # DDP lays its buckets out anew, and libraries make their handles
PROFILED = (3, 5)  # from the call of one step to that of another: with 8 ranks an epoch of the digits has 6


class Watch:
    """Counts the warnings of one process. `steps` is how many steps of the loop were begun."""

    def __init__(self) -> None:
        self.steps = self.in_steps = self.elsewhere = 0
        self.places: dict[str, int] = {}

    def show(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        """In the place of `warnings.showwarning`."""
        if WORD not in str(message):
            sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))
            return
        frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
        if not in_a_step(frames):
            self.elsewhere += 1
        elif self.steps > FIRST_STEPS:
            self.in_steps += 1
            place = next((f for f in frames if f"{os.sep}algorun_train{os.sep}" in f.f_code.co_filename), frames[0])
            name = f"{Path(place.f_code.co_filename).name}:{place.f_lineno}"
            self.places[name] = self.places.get(name, 0) + 1

    def result(self, copies: int, pageable_copies: int) -> str:
        found = {
            "steps": self.steps,
            "in_steps": self.in_steps,
            "elsewhere": self.elsewhere,
            "copies": copies,
            "pageable": pageable_copies,
        }
        places = [f"{name} ({count} times)" for name, count in sorted(self.places.items())]
        return "synchronisations: " + json.dumps(found | {"places": places})


def in_a_step(frames: list[FrameType]) -> bool:
    """Whether the loop's own functions on the stack are those of a step: fetching a batch, or computing with it."""
    names = {frame.f_code.co_name for frame in frames if frame.f_code.co_filename.endswith(LOOP)}
    meter = {frame.f_code.co_name for frame in frames if frame.f_code.co_filename.endswith("meter.py")}
    return "_train_epoch" in names and not names & {"_report_step", "_save"} and "fold" not in meter


def copied(events: Iterable[str]) -> tuple[int, int]:
    """Copies from or to the host among the profiler's events, such as `Memcpy HtoD (Pinned -> Device)`, and how many of
    them are from or to pageable memory."""
    copies = [event for event in events if "Memcpy HtoD" in event or "Memcpy DtoH" in event]
    return len(copies), sum("Pageable" in event for event in copies)


class Copies:
    """Profiles the GPU's own events between two steps."""

    def __init__(self) -> None:
        self.found = (0, 0)
        self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])

    def at(self, step: int) -> None:
        """To be called when a step begins."""
        if step not in PROFILED:
            return
        torch.cuda.set_sync_debug_mode("default")  # the profiler's own waits are no concern of the loop
        if step == PROFILED[0]:
            self._profiler.start()
        else:
            torch.cuda.synchronize()
            self._profiler.stop()
            self.found = copied(event.name for event in self._profiler.events())
        torch.cuda.set_sync_debug_mode("warn")


def main() -> int:
    from algorun.inside.stop_flag import StopFlag
    from algorun_train.jobs import ddp
    from algorun_train.loop.data_parallel_steps import DataParallelSteps

    watch, step = Watch(), DataParallelSteps.step
    copies = Copies() if torch.cuda.is_available() else None

    def counted(self: DataParallelSteps, *args: object) -> torch.Tensor:
        watch.steps += 1
        if copies:
            copies.at(watch.steps)
        return step(self, *args)  # type: ignore[arg-type]

    DataParallelSteps.step = counted  # type: ignore[method-assign,assignment]
    warnings.simplefilter("always")
    warnings.showwarning = watch.show
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_sync_debug_mode("warn")
    stop = StopFlag()
    stop.install()
    code = ddp.main(sys.argv[1:], stop)
    if os.environ["RANK"] == "0":
        print(watch.result(*(copies.found if copies else (0, 0))), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
