"""Clones of git, for tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

from algorun.common.code_commit import DIGITS


def git(folder: Path, *words: str) -> str:
    """What git prints in the folder."""
    identity = ("-c", "user.name=me", "-c", "user.email=me@example.com", "-c", "protocol.file.allow=always")
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def head(folder: Path) -> str:
    """The commit of the folder, as a page names it."""
    return git(folder, "rev-parse", "HEAD")[:DIGITS]


def made(folder: Path) -> Path:
    """A clone with one commit of `src/train.py` and `docs/text.md`, and a rule that ignores `data`."""
    (folder / "src").mkdir(parents=True)
    (folder / "docs").mkdir()
    git(folder, "init", "-q")
    (folder / "src" / "train.py").write_text("print(1)\n")
    (folder / "docs" / "text.md").write_text("text\n")
    (folder / ".gitignore").write_text("data\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder
