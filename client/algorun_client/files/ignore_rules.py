"""Which files of a folder are left out: .gitignore and .algorunignore, read as git reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pathspec import GitIgnoreSpec

GITIGNORE, ALGORUNIGNORE = ".gitignore", ".algorunignore"
CODE_RULES = (GITIGNORE, ALGORUNIGNORE)  # the last one decides
DATA_RULES = (ALGORUNIGNORE,)  # a data folder often has a .gitignore that names all of its files
# Left out of code unless a rule `!NAME` takes it back.
DEFAULTS = (
    *(".git", ".hg", ".svn", "__pycache__/", "*.py[co]", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/"),
    *(".hypothesis/", ".ipynb_checkpoints/", ".DS_Store", "/algorun-simulate/", "/algorun-run/"),
)


class IgnoreRules:
    """The rules that hold in one folder: its own, and those of the folders above it, which count for less."""

    def __init__(
        self, folder: Path, names: Sequence[str], above: IgnoreRules | None, *, first: Sequence[str] = ()
    ) -> None:
        """`names`: the rule files, the last one counts most. `first`: rules that count least."""
        self._prefix, self._above = f"{folder}/", above
        lines = [*first, *(line for name in names for line in _lines(folder / name))]
        self._spec = GitIgnoreSpec.from_lines(lines) if lines else None

    def leave_out(self, path: str, *, is_folder: bool) -> bool:
        """True if the rules leave out this path, which lies in the folder or below it."""
        rules: IgnoreRules | None = self
        while rules is not None:
            if rules._spec is not None:
                name = path.removeprefix(rules._prefix) + ("/" if is_folder else "")
                if (found := rules._spec.check_file(name).include) is not None:
                    return found
            rules = rules._above
        return False


def of_code(folder: Path) -> IgnoreRules:
    """The rules of a code folder. Inside a git repository those of the folders above it count too, as for git."""
    above = None
    for parent in reversed(list(_up_to_repository(folder))):
        above = IgnoreRules(parent, (GITIGNORE,), above)
    return IgnoreRules(folder, CODE_RULES, above, first=DEFAULTS)


def of_data(folder: Path) -> IgnoreRules:
    """The rules of a folder with data: .algorunignore alone."""
    return IgnoreRules(folder, DATA_RULES, None)


def _up_to_repository(folder: Path) -> Iterator[Path]:
    """The folders above this one, up to the repository's; none outside of a repository."""
    if (folder / ".git").exists():
        return
    parents = list(folder.parents)
    for index, parent in enumerate(parents):
        if (parent / ".git").exists():
            yield from parents[: index + 1]
            return


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # absent, or a folder of this name
        return []
