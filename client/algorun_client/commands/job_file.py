"""The job file of a command: the one that --file names, else algorun.toml in the current folder, if there is one."""

from __future__ import annotations

from pathlib import Path

from algorun.common.errors import UserError
from algorun_client.request.jobfile import NAME, JobFile, parse


def read(named: str, folder: Path) -> JobFile:
    """An empty one if there is none. Raises UserError if it cannot be read."""
    path = folder / (named or NAME)
    if not named and not path.is_file():
        return JobFile()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError("--file", f"{named or NAME}: {error.strerror}", fix="name a readable file") from None
    return parse(content, named or NAME, str(path.resolve().parent))
