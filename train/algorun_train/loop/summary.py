"""`summary.json` in the output folder: the figures of a finished run. A launcher shows them in the order of the file.

The file does not exist while a run trains, nor after a stop on request.
"""

from collections.abc import Mapping
from pathlib import Path

from algorun_train.common.files import write_json

SUMMARY = "summary.json"


def write_summary(folder: Path, figures: Mapping[str, object]) -> None:
    """Writes the figures as JSON, in their order."""
    write_json(folder / SUMMARY, figures)


def clear_summary(folder: Path) -> None:
    """Removes the summary of an earlier run."""
    (folder / SUMMARY).unlink(missing_ok=True)
