"""The files of a clone that git keeps although a rule names them: `git add --force`, or a rule that came later."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from algorun.common.code_commit import MONITOR, clone_of, environ_of_git

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Tracked:
    """Paths relative to the folder. `notice` says why git was not asked; "" if it was, or if there is no clone."""

    files: frozenset[str] = frozenset()
    folders: frozenset[str] = field(default_factory=frozenset)  # those above the files
    notice: str = ""


def tracked(folder: Path) -> Tracked:
    """What git tracks in `folder`. Runs git, if the folder is in a clone."""
    if clone_of(folder) is None:
        return Tracked()
    try:
        listed = subprocess.run(
            ["git", "-c", MONITOR, "ls-files", "-z", "--cached"],
            cwd=folder,
            env=environ_of_git(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=True,
        ).stdout
    except FileNotFoundError:
        return _unknown("git is not installed")
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().partition("\n")[0]
        return _unknown(said or f"git ends with {error.returncode}")
    except subprocess.TimeoutExpired:
        return _unknown(f"git does not answer within {TIMEOUT_S:.0f} s")
    files = frozenset(os.fsdecode(name) for name in listed.split(b"\0") if name)
    above = {parent for name in files for parent in _parents(name)}
    return Tracked(files, frozenset(above))


def _unknown(why: str) -> Tracked:
    return Tracked(notice=f"files that .gitignore names stay at home, also those that git tracks: {why}")


def _parents(name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
