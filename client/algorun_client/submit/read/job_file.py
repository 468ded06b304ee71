"""The job file, algorun.toml: defaults at the top, one table [task.NAME] for each task."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from algorun.common.errors import UserError

from . import sweep, tune, values
from .layers import REGION_KEYS, TASK_KEYS, TOP_KEYS, Layer, merged, of_table
from .sweep import TaskSweep
from .tune import TaskTune

NAME = "algorun.toml"
TWICE = re.compile(r"Cannot declare \('task', '([^']+)'\) twice \((at line \d+)")  # tomllib's words
SWEEP, TUNE = "sweep", "tune"  # the tables of a task that are no options


@dataclass(frozen=True, slots=True)
class JobFile:
    """A parsed job file; without tasks if there is none."""

    name: str = NAME
    folder: str = ""  # its folder, absolute; "" without a file
    defaults: Layer = field(default_factory=Layer)
    tasks: Mapping[str, Layer] = field(default_factory=dict)
    sweeps: Mapping[str, TaskSweep] = field(default_factory=dict)  # by task
    tunes: Mapping[str, TaskTune] = field(default_factory=dict)  # by task
    regions: Mapping[str, Layer] = field(default_factory=dict)  # what each region has of its own, by its name

    def layer_of(self, task: str, *, must_exist: bool) -> Layer:
        """The table of a task; of a point that of the task with the sweep or tune table. Without one an empty layer, or UserError."""
        if task in self.tasks:
            return self.tasks[task]
        if not must_exist:
            swept = (*self.sweeps, *self.tunes)
            return next((self.tasks[each] for each in swept if task.startswith(f"{each}.")), Layer())
        near = get_close_matches(task, self.tasks, n=1)
        raise UserError(
            "--task",
            f"{self.name} has no table [task.{task}], and no PROGRAM is named",
            allowed=", ".join(self.tasks) or "none",
            fix=f"did you mean {near[0]!r}?" if near else "name a program, or add the table",
        )

    @property
    def path(self) -> str:
        """The file itself, absolute; "" without one."""
        return f"{self.folder}/{self.name.rpartition('/')[2]}" if self.folder else ""

    def metrics(self, task: str) -> dict[str, str]:
        """The metrics of a task's table: name and regular expression. Raises UserError."""
        given = merged([self.defaults, self.tasks[task]]).tables.get("metrics", {})
        return {name: values.text(each.where, each.raw) for name, each in given.items()}


def read_job_file(named: str, folder: Path) -> JobFile:
    """The file that --file names, else algorun.toml in the current folder; an empty one if there is none.

    Raises UserError if it cannot be read.
    """
    path = folder / (named or NAME)
    if not named and not path.is_file():
        return JobFile()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError("--file", f"{named or NAME}: {error.strerror}", fix="name a readable file") from None
    return parse(content, named or NAME, str(path.resolve().parent))


def parse(content: bytes, name: str, folder: str) -> JobFile:
    """Reads a job file. `folder`: absolute; paths in the file count from there. Raises UserError."""
    try:
        top = tomllib.loads(content.decode("utf-8-sig"))  # editors of Windows write a byte order mark
    except UnicodeDecodeError as error:
        raise UserError(name, f"is not UTF-8 (byte {error.start})", fix="save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        if twice := TWICE.search(str(error)):
            raise UserError(
                name, f"two tasks are called {twice[1]!r} {twice[2]}", fix="rename one of the two"
            ) from None
        raise UserError(name, f"is not TOML: {error}", fix="docs/submit.md shows a job file") from None
    except RecursionError:
        raise UserError(name, "is nested too deep", allowed="tables as docs/submit.md shows them") from None
    tables = top.pop("task", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise UserError(name, "task is not a table of tasks", allowed="[task.NAME] for each task")
    regions = top.pop("regions", {})
    if not isinstance(regions, dict) or not all(isinstance(table, dict) for table in regions.values()):
        raise UserError(name, "regions is not a table of regions", allowed="[regions.NAME] for each region")
    layers: dict[str, Layer] = {}
    sweeps: dict[str, TaskSweep] = {}
    tunes: dict[str, TaskTune] = {}
    for task, table in tables.items():
        where = f"{name} [task.{task}"
        if SWEEP in table and TUNE in table:
            raise UserError(f"{where}]", "has both a sweep and a tune table", fix="drop one of the two")
        if SWEEP in table:
            sweeps[task] = sweep.parse(f"{where}.{SWEEP}]", table.pop(SWEEP))
        if TUNE in table:
            tunes[task] = tune.parse(f"{where}.{TUNE}]", table.pop(TUNE))
        layers[task] = of_table(f"{where}]", table, (*TASK_KEYS, SWEEP, TUNE), folder)
    return JobFile(
        name=name,
        folder=folder,
        defaults=of_table(name, top, TOP_KEYS, folder),
        tasks=layers,
        sweeps=sweeps,
        tunes=tunes,
        regions={
            region: of_table(f"{name} [regions.{region}]", table, REGION_KEYS, folder)
            for region, table in regions.items()
        },
    )
