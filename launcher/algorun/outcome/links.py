"""Symbolic links among what a job leaves: what becomes of them, said while the files are still there.

AWS says that an endpoint cannot extract a model archive with symbolic links ("My SageMaker endpoint is stuck or fails to
create", AWS Knowledge Center). S3 has no links; AWS does not say what the sync of checkpoints makes of one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from algorun.job.paths import Paths

MOST = 20_000  # entries that are looked at: a host must not wait at the end of its job
SHOWN = 3  # links in a line


def notes(paths: Paths) -> Iterator[str]:
    """A line for each folder of the job with links that do not arrive as they are."""
    folders = (
        (
            "model",
            paths.model,
            "a link in model.tar.gz, too, and an endpoint of SageMaker refuses an archive with links; fix: copy the files",
        ),
        ("output/data", paths.output_data, ""),
        (
            "checkpoints",
            paths.checkpoints,
            "S3 has no links, so after a restart this is a folder, or missing; fix: write the name into a file",
        ),
    )
    for name, folder, fate in folders:
        inside, outside = _links(folder)
        if outside:
            yield f"{name}: {_few(outside)}: what lies outside of the folder does not go along; fix: copy or move the files"
        if inside and fate:
            yield f"{name}: {_few(inside)}: {fate}"


def _links(folder: Path) -> tuple[list[str], list[str]]:
    """The links of a folder that lead to something in it, and the others."""
    inside: list[str] = []
    outside: list[str] = []
    seen = 0
    home = os.path.realpath(folder)
    for top, folders, files in os.walk(folder):
        seen += len(folders) + len(files)
        for name in (*folders, *files):
            path = os.path.join(top, name)
            if os.path.islink(path):
                real = os.path.realpath(path)
                leads_home = os.path.exists(path) and f"{real}/".startswith(f"{home}/")
                (inside if leads_home else outside).append(f"{os.path.relpath(path, folder)} -> {os.readlink(path)}")
        if seen > MOST:
            break
    return inside, outside


def _few(links: list[str]) -> str:
    return ", ".join(sorted(links)[:SHOWN]) + (f" and {len(links) - SHOWN} more" if len(links) > SHOWN else "")
