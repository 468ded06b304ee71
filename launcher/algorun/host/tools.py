"""What everything that acts on a host works with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from algorun.event_loop import Loop
from algorun.plan.engines.base import Programs

from .logs import Console
from .processes import Owner


@dataclass(frozen=True, slots=True)
class Tools:
    """One host's loop, processes and console. `run_dir` is its folder for sockets and passing files, `logs` that of
    its log files."""

    loop: Loop
    owner: Owner
    console: Console
    programs: Programs
    run_dir: str
    logs: Path
