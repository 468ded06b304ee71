"""The commit of a program that lies on this machine: for its hosts, and so for the page of its job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from algorun.common.code_commit import commit_of

from . import settings
from .entry import BUNDLED
from .request import LaunchRequest


def of_command_line(request: LaunchRequest, environ: Mapping[str, str]) -> dict[str, str]:
    """ALGORUN_CODE_COMMIT of the program that the command line names; {} if it is set, or the code is not the user's or not here."""
    name = settings.CODE_COMMIT.name
    is_bundled = request.target in BUNDLED and not request.module
    if name in environ or request.from_job or request.code or is_bundled:
        return {}
    folder = Path(request.cwd or os.getcwd()).resolve()
    program = (folder / request.target).resolve()
    if request.module or not program.is_file():
        return {name: commit_of(folder, [])}
    return {name: commit_of(folder if program.is_relative_to(folder) else program.parent, [program])}
