"""The commit of a program's code, if its folder lies in a clone of git: a report shows it beside what ran."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

DEADLINE_S = 3.0  # a job waits no longer for git: then its page names no commit
DIGITS = 12  # of the hash: enough for every clone that exists
CHANGED = "with uncommitted changes"
TRACKED, NOT_TRACKED = ("1", "2", "u"), ("?", "!")  # how git's entries of files begin
MONITOR = "core.fsmonitor=false"  # the monitor is a program that the clone names; a look needs none
STATUS = (
    *("git", "-c", MONITOR, "status", "--porcelain=v2", "--branch", "-z", "--no-renames"),
    *("--untracked-files=normal", "--ignored=matching", "--", "."),
)


def clone_of(folder: Path) -> Path | None:
    """The root of the clone, worktree or submodule in which the folder lies; None if it lies in none."""
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), None)


def environ_of_git() -> dict[str, str]:
    """This process's environment for a git that only looks: about the clone of its folder, whatever a hook has set."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return own | {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1"}


def commit_of(folder: Path, files: Iterable[Path]) -> str:
    """`1a2b3c4d5e6f`, with ` with uncommitted changes` behind it where the folder has some.

    `files`: those of the program. One that git does not track is a change too. "" for a folder that git does not track, or if
    git is missing, refuses or does not answer in time.
    """
    folder = folder.resolve()
    root = clone_of(folder)
    if root is None:
        return ""
    import subprocess  # a container has no clone, and starts without it

    try:
        told = subprocess.run(
            STATUS,
            cwd=folder,
            env=environ_of_git(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=DEADLINE_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return _read(os.fsdecode(told).split("\0"), root, folder, files)


def _read(entries: Iterable[str], root: Path, folder: Path, files: Iterable[Path]) -> str:
    """The text of `commit_of` from what `git status` says. Paths in it count from the root of the clone."""
    commit, changed = "", False
    untracked: set[Path] = set()
    for entry in entries:
        mark, _, rest = entry.partition(" ")
        if entry.startswith("# branch.oid "):
            commit = entry.rpartition(" ")[2][:DIGITS]
        elif mark in NOT_TRACKED:
            untracked.add(root / rest)
        elif mark in TRACKED:
            changed = True
    if commit.startswith("(") or not untracked.isdisjoint((folder, *folder.parents)):
        return ""  # a clone without a commit, or with another project's
    outside = untracked and any(not untracked.isdisjoint((path, *path.parents)) for path in files)
    return f"{commit} {CHANGED}" if commit and (changed or outside) else commit
