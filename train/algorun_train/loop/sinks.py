"""Where reports go: the log, `metrics.jsonl` and TensorBoard's event file in the output folder. Rank 0 only."""

import json
import os
from pathlib import Path
from typing import Any

from algorun_train.common.files import write_text
from algorun_train.common.json_text import loads

from .metrics import TOKENS, EpochReport, StepReport, per_s, record
from .progress import Position

JSONL = "metrics.jsonl"
TENSORBOARD = "tensorboard"
EVENTS_NAME = "ALGORUN_TENSORBOARD_DIR"  # `submit --tensorboard` sets it: SageMaker copies this folder to S3
SPEEDS = tuple(per_s(unit) for unit in ("images", "sequences", TOKENS))
LOSSES = ("train_loss", "val_loss", "train_perplexity", "val_perplexity")
SCALARS = (*LOSSES, "val_accuracy", "learning_rate", *SPEEDS, "data_wait", "peak_memory_mib")


class Sinks:
    """Writes reports. `start` is where the run resumes: an existing file may have reports of later steps. These are
    removed, because the run writes them again."""

    def __init__(self, folder: Path, start: Position) -> None:
        file, resumed_at = folder / JSONL, start.step
        kept: list[str] = []
        if resumed_at and file.exists():
            kept = file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        write_text(file, "".join(line for line in kept if _is_before(start, line)))
        self._jsonl = file.open("a", encoding="utf-8")
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            print("warning: tensorboard is not installed, so no event file is written", flush=True)
            self._events = None
        else:
            events = os.environ.get(EVENTS_NAME) or str(folder / TENSORBOARD)
            self._events = SummaryWriter(events, purge_step=resumed_at + 1 if resumed_at else None)

    def write(self, report: StepReport | EpochReport) -> None:
        print(report, flush=True)
        flat = record(report)
        self._jsonl.write(json.dumps(flat) + "\n")
        self._jsonl.flush()
        if self._events:
            for name in SCALARS:
                if name in flat:
                    self._events.add_scalar(f"{flat['kind']}/{name}", flat[name], report.step)

    def close(self) -> None:
        self._jsonl.close()
        if self._events:
            self._events.close()


def _is_before(start: Position, line: str) -> bool:
    """Whether a line reports a step or an epoch before `start`. An epoch counts only if its evaluation was before `start`,
    not only its last step."""
    try:
        report: Any = loads(line)  # Any: whatever the file holds
        if report["kind"] == "epoch":
            return bool(report["epoch"] <= start.epoch)
        return bool(report["step"] <= start.step)
    except (ValueError, KeyError, TypeError):
        return False  # a kill cut the line short
