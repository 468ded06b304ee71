"""`summary.json` in the output folder: the figures of a finished run, in the order in which a launcher shows them.

Absent while a run is under way and after a stop on request.
"""

from pathlib import Path
from typing import Any

from algorun_train.files import write_json

SUMMARY = "summary.json"


def write_summary(folder: Path, figures: dict[str, Any]) -> None:
    write_json(folder / SUMMARY, figures)


def clear_summary(folder: Path) -> None:
    """Removes what an earlier run left, so that nobody takes it for this run's."""
    (folder / SUMMARY).unlink(missing_ok=True)
