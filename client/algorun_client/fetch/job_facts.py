"""`job.json`: what SageMaker said about a job when it was fetched. `algorun report` reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from algorun.common.aside import aside

FILE = "job.json"


def write_job_facts(facts: Mapping[str, object], folder: Path) -> None:
    """Writes `job.json` into the folder, aside and renamed."""
    write_json(facts, folder / FILE)


def job_before(folder: Path) -> str:
    """The name of the job whose `job.json` lies in the folder; "" if none does, or it is damaged."""
    try:
        found = json.loads((folder / FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return ""
    return str(found.get("job") or "") if isinstance(found, dict) else ""


def write_json(value: Mapping[str, object], path: Path, *, is_large: bool = False) -> None:
    """Writes a JSON file aside, and renames it. `is_large`: without spaces and lines for people."""
    text = json.dumps(value, separators=(",", ":")) if is_large else json.dumps(value, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with aside(path) as made:
        made.write_text(f"{text}\n", encoding="utf-8")
