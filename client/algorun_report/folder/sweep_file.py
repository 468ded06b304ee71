"""Reads `sweep.json`: the jobs of a sweep and their results, the best one first."""

from __future__ import annotations

from pathlib import Path

from algorun_report.run_report import Sweep, SweepRow

from .json_files import read_object
from .log_files import shown

FILE = "sweep.json"


def read_sweep(folder: Path, fix: str) -> Sweep | None:
    """None without the file. Raises UserError if it is damaged."""
    file = read_object(folder / FILE, fix)
    if file is None:
        return None
    names, rows = file.texts("names"), []
    for each in file.tables("rows"):
        parameters = each.texts("parameters")
        if len(parameters) != len(names):
            raise each.wrong(f"parameters has {len(parameters)} values for {len(names)} names")
        values = tuple(map(shown, parameters))
        rows.append(SweepRow(shown(each.text("job")), shown(each.text("status")), values, each.number("value")))
    return Sweep(tuple(map(shown, names)), shown(file.text("metric")), tuple(rows))
