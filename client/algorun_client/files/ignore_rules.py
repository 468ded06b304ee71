"""Which files of a folder are left out: .gitignore as git reads it, and .algorunignore, which overrules it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .git_patterns import GitPattern, parse

GITIGNORE, ALGORUNIGNORE = ".gitignore", ".algorunignore"
# Left out of code unless a rule of .algorunignore takes it back: a .gitignore often says `!*/`, and means its own folders.
DEFAULTS = (
    *("__pycache__/", "*.py[co]", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".hypothesis/"),
    *(".ipynb_checkpoints/", ".DS_Store", "/algorun-simulate/", "/algorun-run/"),
)
# The history of the code, and in its configuration addresses with tokens: no rule takes it back. A file of this name leads
# to the folder.
HISTORY = frozenset({".git", ".hg", ".svn", ".bzr", ".jj", "_darcs"})


@dataclass(frozen=True, slots=True)
class _Layer:
    """The rules of one file, which hold in `folder` and below it."""

    folder: bytes  # with a slash at its end
    patterns: tuple[GitPattern, ...]


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules that hold in one folder: its own, and those of the folders above it, which count for less."""

    file: str  # the name of the files with such rules
    layers: tuple[_Layer, ...] = ()  # the innermost first

    def below(self, folder: Path) -> _Rules:
        """The rules that hold in `folder`, which is below the one of these rules."""
        lines = _lines(folder / self.file)
        return self if not lines else self.with_patterns(folder, parse(lines))

    def with_patterns(self, folder: Path, patterns: Sequence[GitPattern]) -> _Rules:
        """Adds rules that count more than those that are here."""
        return _Rules(self.file, (_Layer(os.fsencode(folder) + b"/", tuple(patterns)), *self.layers))

    def verdict(self, path: str, *, is_folder: bool) -> bool | None:
        """Whether a rule leaves the path out (True) or takes it back (False). None: no rule names it."""
        if not self.layers:
            return None
        encoded = os.fsencode(path)
        for layer in self.layers:
            name = encoded.removeprefix(layer.folder)
            for pattern in reversed(layer.patterns):
                if pattern.matches(name, is_folder=is_folder):
                    return not pattern.takes_back
        return None


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The rules of one folder. A folder that is left out is not entered: no rule takes back a file in it."""

    of_git: _Rules
    own: _Rules

    def below(self, folder: Path) -> IgnoreRules:
        """The rules of `folder`, which is in the one of these rules or that folder itself."""
        of_git = self.of_git.below(folder) if self.of_git.file else self.of_git
        return IgnoreRules(of_git, self.own.below(folder))

    def never(self, path: str, *, is_folder: bool) -> bool:
        """True if the path is left out whatever git knows of it."""
        return path.rpartition("/")[2].lower() in HISTORY or self.own.verdict(path, is_folder=is_folder) is True

    def by_git(self, path: str, *, is_folder: bool) -> bool:
        """True if .gitignore leaves out this path, unless .algorunignore takes it back."""
        if self.own.verdict(path, is_folder=is_folder) is False:
            return False
        return self.of_git.verdict(path, is_folder=is_folder) is True


def of_code(folder: Path) -> IgnoreRules:
    """The rules of a code folder. Inside a git repository those of the folders above it count too, as for git."""
    of_git = _Rules(GITIGNORE)
    for parent in reversed(list(_up_to_repository(folder))):
        of_git = of_git.below(parent)
    defaults = parse("\n".join(DEFAULTS).encode())
    return IgnoreRules(of_git, _Rules(ALGORUNIGNORE).with_patterns(folder, defaults)).below(folder)


def of_data(folder: Path) -> IgnoreRules:
    """The rules of a folder with data: .algorunignore alone, because a .gitignore often names all data."""
    return IgnoreRules(_Rules(""), _Rules(ALGORUNIGNORE)).below(folder)


def _up_to_repository(folder: Path) -> Iterator[Path]:
    """The folders above this one, up to the repository's; none outside of a repository."""
    if (folder / ".git").exists():
        return
    parents = list(folder.parents)
    for index, parent in enumerate(parents):
        if (parent / ".git").exists():
            yield from parents[: index + 1]
            return


def _lines(path: Path) -> bytes:
    if path.is_symlink() and path.name == GITIGNORE:  # git follows no such link
        return b""
    try:
        return path.read_bytes()
    except OSError:  # absent, or a folder of this name
        return b""
