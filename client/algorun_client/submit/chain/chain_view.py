"""What `submit --all` says: a line for each change of a task, or JSON."""

from __future__ import annotations

import sys
from typing import Protocol

from algorun_client.common import json_lines
from algorun_client.follow.line_text import shown

from .next_jobs import Status


class ChainView(Protocol):
    """Shows the tasks of a chain."""

    def change(self, task: str, status: Status, job: str = "", text: str = "") -> None:
        """A task has another status. `text`: why, or how it ended."""
        ...

    def phase(self, task: str, job: str, phase: str) -> None:
        """A job that runs is in another phase."""
        ...

    def note(self, text: str) -> None:
        """Something about the chain itself."""
        ...


class PlainChainView:
    """Lines on stderr."""

    def change(self, task: str, status: Status, job: str = "", text: str = "") -> None:
        if status is Status.RUNNING:
            return  # who created or joined the job has said so
        first, *rest = text.splitlines() or [""]
        self.note(f"{task}: {status.value}{': ' if first else ''}{first}")
        for line in rest:
            print(f"  {shown(line)}", file=sys.stderr)
        if status is Status.FAILED and job:
            self.note(f"{task}: its lines: algorun logs {job}")

    def phase(self, task: str, job: str, phase: str) -> None:
        self.note(f"{task}: {phase}")

    def note(self, text: str) -> None:
        print(f"algorun: {shown(text)}", file=sys.stderr, flush=True)


class JsonChainView:
    """One object a line on stdout, with event `task`."""

    def change(self, task: str, status: Status, job: str = "", text: str = "") -> None:
        json_lines.write("task", task=task, job=job, status=status.value, text=text)

    def phase(self, task: str, job: str, phase: str) -> None:
        json_lines.write("phase", task=task, job=job, phase=phase)

    def note(self, text: str) -> None:
        json_lines.write("note", text=text)
