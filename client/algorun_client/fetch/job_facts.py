"""`job.json`: what SageMaker said about a job when it was fetched. `algorun report` reads it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from algorun.common.aside import aside

FILE = "job.json"


def write_job_facts(facts: Mapping[str, object], folder: Path) -> None:
    """Writes `job.json` into the folder, aside and renamed."""
    write_json(facts, folder / FILE)


@dataclass(frozen=True, slots=True)
class JobBefore:
    """What `job.json` in a folder says of the pieces there; "" if there is none, or it is damaged. `then`: a job whose fetch has
    begun since, and has not come to its end. `uris`: S3 prefixes of folders that jobs may share."""

    job: str = ""
    then: str = ""
    uris: frozenset[str] = frozenset()

    def is_other(self, job: str) -> bool:
        """True if not all pieces are this job's."""
        return self.job not in ("", job) or self.then not in ("", job)


def job_before(folder: Path) -> JobBefore:
    """The job whose `job.json` lies in the folder."""
    try:
        found = json.loads((folder / FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return JobBefore()
    if not isinstance(found, dict):
        return JobBefore()
    uris = found.get("uris")
    return JobBefore(
        str(found.get("job") or ""),
        str(found.get("then") or ""),
        frozenset(map(str, uris)) if isinstance(uris, list) else frozenset(),
    )


def note_other(folder: Path, job: str) -> None:
    """Notes in `job.json` that another job comes: until all of it is there, the pieces may be of either."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads((folder / FILE).read_bytes())
        write_job_facts({**found, "then": job}, folder)


def write_json(value: Mapping[str, object], path: Path, *, is_large: bool = False) -> None:
    """Writes a JSON file aside, and renames it. `is_large`: without spaces and lines for people."""
    text = json.dumps(value, separators=(",", ":")) if is_large else json.dumps(value, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with aside(path) as made:
        made.write_text(f"{text}\n", encoding="utf-8")
