"""How far each rank of this host is: one small file, mapped here and by the ranks (rank_steps writes)."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass
from algorun.timing.activities import NAMES

# As rank_steps writes it: six words and a spare one, the seconds of each activity, which one runs since when, the
# group, the workers of its loader plus one, what it has worked through, the last step, what was no training until then,
# whether the seconds are those of a GPU, and when the program last reported progress (progress_report writes it).
RECORD = struct.Struct(f"@QddQ d8xd {len(NAMES)}d QdQ Qddd dddQ d")
RECORD_BYTES = 256  # whole cache lines for each, so that ranks do not slow each other down
LONGEST_FACTOR = 10  # times the longest pause so far: a shorter one may be the end of an epoch, or a checkpoint


@dataclass(frozen=True, slots=True)
class Steps:
    """One rank's progress: the optimizer steps, its last step or sign of life (this host's monotonic clock), the longest
    time between two steps in seconds, the pid of the process that counts (0: none has made a step yet), and when torch was
    imported and the first step was over (as last_at; 0.0: not yet).

    `activities`: the seconds of each activity (timing.activities.NAMES) so far, all 0 if the program does not say them.
    `group`: ranks of one number do the same work, as far as the program says so. `workers`: of its loader of batches, None
    if it is not seen. `samples`, `tokens`, `flops`: this rank's share of what the job has trained on; 0: not said.
    `step_at`: the end of the last step, as last_at. `beside`: seconds of evaluations and saves between the first and the last step.
    `on_gpu`: the seconds are what the rank's GPU spent (inside/rank_gpu_times.py), else the CPU.
    `progress_at`: the last call of algorun.progress(), as last_at; 0.0: none yet.
    """

    count: int = 0
    last_at: float = 0.0
    longest_s: float = 0.0
    pid: int = 0
    torch_at: float = 0.0
    first_step_at: float = 0.0
    activities: tuple[float, ...] = (0.0,) * len(NAMES)
    group: int = 0
    workers: int | None = None
    samples: float = 0.0
    tokens: float = 0.0
    flops: float = 0.0
    step_at: float = 0.0
    beside: float = 0.0
    on_gpu: bool = False
    progress_at: float = 0.0


def has_no_step(steps: Steps, now: float, limit_s: float) -> bool:
    """True where the last step is too long ago. False before the first step: another rule (control/hang/standstill.py) holds."""
    return steps.last_at > 0 and now - steps.last_at > max(limit_s, LONGEST_FACTOR * steps.longest_s)


def _mapped(path: str, size: int) -> mmap.mmap:
    """A new file of zeros, mapped."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(file, bytes(size), 0)  # on a full disk this is an error; writing to a mapped page would be SIGBUS
        return mmap.mmap(file, size)
    finally:
        os.close(file)


class StepBoard:
    """The file `steps` of a run folder, with one record per rank of the host. Raises UserError where it cannot be made.

    It goes with the run folder, or when it is closed.
    """

    def __init__(self, folder: str, ranks: int) -> None:
        self._path = os.path.join(folder, "steps")
        try:
            self._map = _mapped(self._path, max(1, ranks) * RECORD_BYTES)
        except OSError as error:
            raise UserError("TMPDIR", f"{self._path}: {error.strerror}", fix="name a folder with room") from None

    def read(self, local_rank: int) -> Steps:
        """One rank's progress now."""
        count, last_at, longest_s, pid, torch_at, first_step_at, *times = RECORD.unpack_from(
            self._map, local_rank * RECORD_BYTES
        )
        (
            *seconds,
            runs,
            since,
            group,
            workers,
            samples,
            tokens,
            flops,
            step_at,
            beside_first,
            beside,
            on_gpu,
            progress_at,
        ) = times
        if runs:
            seconds[runs - 1] += max(0.0, time.monotonic() - since)
        return Steps(
            *(count, last_at, longest_s, pid, torch_at, first_step_at, tuple(seconds), group),
            workers=workers - 1 if workers else None,
            samples=samples,
            tokens=tokens,
            flops=flops,
            step_at=step_at,
            beside=beside - beside_first,
            on_gpu=bool(on_gpu),
            progress_at=progress_at,
        )

    def close(self) -> None:
        """Removes the file: no rank of this attempt lives any more, and the next attempt makes its own."""
        self._map.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
