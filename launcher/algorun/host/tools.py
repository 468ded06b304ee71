"""What everything that acts on a host works with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from algorun.common.event_loop import Loop
from algorun.common.fast_dataclasses import dataclass
from algorun.plan.engines.base import Programs

from .logs import Console
from .processes import Owner
from .times_file import TimesFile

if TYPE_CHECKING:
    from .step_trace import StepTrace


@dataclass(frozen=True, slots=True)
class Tools:
    """One host's loop, processes and console.

    `run_dir` is its folder for sockets and temporary files, `logs` the folder of its log files, `times` the file of what
    its ranks do, `trace` the trace of their steps where the job has one.
    """

    loop: Loop
    owner: Owner
    console: Console
    programs: Programs
    run_dir: str
    logs: Path
    times: TimesFile
    trace: StepTrace | None
