"""Lists the files of a folder that go up. Follows no loop, hides no file without a word, and refuses secrets by name."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from algorun.common.errors import UserError
from algorun.common.written import MARKER, is_generated, written

from . import ignore_rules
from .ignore_rules import ALGORUNIGNORE, IgnoreRules
from .secret_files import holds_a_key, is_secret_name
from .tracked import Tracked, tracked

MOST_FILES = 200_000  # from here on one object or archive member a file costs minutes and money
SHOWN = 5  # names in an error
RESERVED = ".algorun"  # the folder of the archive that holds what the client itself adds
VIRTUALENV = "pyvenv.cfg"


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that goes up."""

    name: str  # relative to the folder, with `/`
    path: Path
    size: int  # bytes
    executable: bool = False
    link: str = ""  # the target of a symbolic link inside the folder; "" for a file


@dataclass(frozen=True, slots=True)
class FileScan:
    """The files of a folder, in the order of their names."""

    folder: Path
    files: tuple[FoundFile, ...]
    notices: tuple[str, ...] = ()  # what was left out although no rule names it

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def code(folder: Path, where: str, without: Collection[Path] = ()) -> FileScan:
    """The files of a code folder that git would send, and those that .algorunignore takes back, but not those of the
    folders and files `without`. Raises UserError; `where` names the option."""
    folder = _existing(folder, where)
    known = tracked(folder)
    walk = _Walk(folder, where, is_code=True, without=frozenset(str(path.resolve()) for path in without), tracked=known)
    if known.notice:
        walk.notices.append(known.notice)
    return walk.scan(ignore_rules.of_code(folder))


def data(folder: Path, where: str) -> FileScan:
    """The files of a folder with data, or a single file. Raises UserError, also if there is none."""
    if folder.is_file():
        if is_secret_name(folder.name) or holds_a_key(folder):
            raise _secrets(where, [folder.name])
        return FileScan(folder.parent, (FoundFile(folder.name, folder, folder.stat().st_size),))
    folder = _existing(folder, where)
    found = _Walk(folder, where, is_code=False).scan(ignore_rules.of_data(folder))
    if not found.files:
        raise UserError(where, f"{folder} has no file", fix=f"check the folder and its {ALGORUNIGNORE}")
    return found


def _existing(folder: Path, where: str) -> Path:
    if not folder.exists():
        raise UserError(
            where, f"{str(folder)!r} does not exist", fix="name a folder of this machine, or s3://BUCKET/KEY"
        )
    if not folder.is_dir():
        raise UserError(where, f"{str(folder)!r} is not a folder", allowed="a folder")
    return folder.resolve()


def _secrets(where: str, names: list[str]) -> UserError:
    return UserError(
        where,
        f"{_few(names)}: keys and secrets do not go up",
        fix=f"name them in {ALGORUNIGNORE}; pass values with --env NAME",
    )


def _few(names: list[str]) -> str:
    return ", ".join(sorted(names)[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


@dataclass(frozen=True, slots=True)
class _Way:
    """How the walk came to a folder. `real`: the real paths of the folder and of all above it on the way. `only_tracked`:
    .gitignore leaves the folder out, and git tracks files in it."""

    real: tuple[str, ...]
    only_tracked: bool = False


@dataclass(slots=True)
class _Walk:
    folder: Path
    where: str
    is_code: bool
    without: frozenset[str] = frozenset()
    tracked: Tracked = field(default_factory=Tracked)
    files: list[FoundFile] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    ours: list[str] = field(default_factory=list)  # what algorun itself has written
    notices: list[str] = field(default_factory=list)

    def scan(self, rules: IgnoreRules) -> FileScan:
        self._folder(self.folder, "", rules, _Way((os.path.realpath(self.folder),)))
        if self.secrets:
            raise _secrets(self.where, self.secrets)
        if self.ours:
            self.notices.append(f"written by algorun and left out: {_few(self.ours)}")
        return FileScan(self.folder, tuple(sorted(self.files, key=lambda file: file.name)), tuple(self.notices))

    def _folder(self, path: Path, prefix: str, rules: IgnoreRules, way: _Way) -> None:
        ours = written(path) if self.is_code else frozenset()
        for entry in self._entries(path):
            name = prefix + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if self._is_out(entry, name, rules):
                continue
            by_git = way.only_tracked or rules.by_git(entry.path, is_folder=is_folder)
            if entry.name in ours:
                self.ours.append(name)
                continue
            if by_git and name not in (self.tracked.folders if is_folder else self.tracked.files):
                continue
            self._readable(name)
            if entry.is_symlink() and self._link(entry, name, way.real):
                continue
            if entry.is_dir():
                self._subfolder(Path(entry.path), name, rules, replace(way, only_tracked=by_git))
            elif entry.is_file():
                self._file(entry, name, way.real[-1])
            else:
                self.notices.append(f"{name} is a socket, a pipe or a device: left out")

    def _entries(self, path: Path) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(path) as entries:
                yield from list(entries)
        except OSError as error:
            raise UserError(
                self.where,
                f"{path} cannot be read: {error.strerror}",
                fix=f"make it readable, or name it in {ALGORUNIGNORE}",
            ) from None

    def _is_out(self, entry: os.DirEntry[str], name: str, rules: IgnoreRules) -> bool:
        if self.is_code and (name == RESERVED or entry.path in self.without):
            return True
        if entry.name == MARKER or (not self.is_code and entry.name == ALGORUNIGNORE):
            return True
        if not self.is_code and entry.name in ignore_rules.HISTORY:
            self.notices.append(f"{name} is the history of a clone: left out")
            return True
        return rules.never(entry.path, is_folder=entry.is_dir(follow_symlinks=False))

    def _readable(self, name: str) -> None:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UserError(
                self.where, f"{name!r} is not UTF-8", fix=f"rename it, or name it in {ALGORUNIGNORE}"
            ) from None

    def _subfolder(self, path: Path, name: str, rules: IgnoreRules, way: _Way) -> None:
        if self.is_code and (path / VIRTUALENV).exists():
            self.notices.append(f"{name} is a virtual environment: left out")
            return
        self._folder(path, f"{name}/", rules.below(path), replace(way, real=(*way.real, os.path.realpath(path))))

    def _link(self, entry: os.DirEntry[str], name: str, chain: tuple[str, ...]) -> bool:
        """True if the link is dealt with. A link inside a code folder stays a link; any other stands for its target."""
        try:
            real = os.path.realpath(entry.path, strict=True)
        except FileNotFoundError:
            self.notices.append(f"{name} is a link to nothing: left out")
            return True
        except OSError:
            raise self._loop(name, os.readlink(entry.path)) from None
        if real in chain:
            raise self._loop(name, os.readlink(entry.path))
        if os.path.basename(real) in ignore_rules.HISTORY:
            self.notices.append(f"{name} leads to the history of a clone: left out")
            return True
        inside = Path(real).is_relative_to(chain[0])
        if not (self.is_code and inside):
            return False
        target = os.path.relpath(os.path.relpath(real, chain[0]), os.path.dirname(name) or ".")
        self._add(FoundFile(name, Path(entry.path), 0, link=target))
        return True

    def _loop(self, name: str, target: str) -> UserError:
        return UserError(
            self.where,
            f"{name} -> {target} is a loop of symbolic links",
            fix=f"remove it, or name it in {ALGORUNIGNORE}",
        )

    def _file(self, entry: os.DirEntry[str], name: str, folder: str) -> None:
        """`folder`: the real path of the one that the file lies in. A link hides neither its name nor that of its folder."""
        real = os.path.realpath(entry.path) if entry.is_symlink() else f"{folder}/{entry.name}"
        if is_secret_name(name) or (real != entry.path and is_secret_name("/".join(real.split("/")[-2:]))):
            self.secrets.append(name)
            return
        if not self.is_code and holds_a_key(Path(entry.path)):  # code is searched when it is packed
            self.secrets.append(name)
            return
        if self.is_code and is_generated(Path(entry.path)):
            self.ours.append(name)
            return
        status = entry.stat()
        self._add(FoundFile(name, Path(entry.path), status.st_size, bool(status.st_mode & stat.S_IXUSR)))

    def _add(self, file: FoundFile) -> None:
        self.files.append(file)
        if len(self.files) >= MOST_FILES:
            raise UserError(
                self.where,
                f"{self.folder} has {MOST_FILES} files or more",
                allowed=f"fewer than {MOST_FILES}",
                fix=f"name what is not needed in {ALGORUNIGNORE}"
                if self.is_code
                else "pack them into some tar files, and add `,extract` to the input",
            )
