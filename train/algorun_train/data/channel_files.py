"""Lists the files of a channel, each once: image folders, text, and what is inside a tar file.

A link is followed, unless it leads to a folder above it or to something that is listed anyway: a real path wins over a
link, and of two links the one whose path comes first. Several links to a file that is not listed itself count each, as
stores that keep files by their content (git-annex, the Hugging Face cache) have them.
"""

import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from algorun_train.common.errors import UserError

from .left_out import ABOVE, AGAIN, DANGLING, NEVER_DATA, SPECIAL, LeftOut, is_never_data, printable

NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)  # of a link; ELOOP: it leads to itself


@dataclass(frozen=True, slots=True)
class FolderScan:
    """The names in one folder, in any order. `special` are neither files nor folders nor links, such as named pipes."""

    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    special: list[str] = field(default_factory=list)


class LinkTarget(NamedTuple):
    """Where a link ends: a real path, without links in it. `kind` is "file", "folder" or "special"."""

    real: str
    kind: str


class Tree(Protocol):
    """Folders and files, on disk or in a tar file. `root` is a real path."""

    @property
    def root(self) -> str: ...

    def scan(self, folder: str) -> FolderScan:
        """What is in a folder, given by its real path. Raises OSError."""
        ...

    def follow(self, link: str) -> LinkTarget | None:
        """Where a link ends; its folder is given by its real path. None if it ends nowhere. Raises OSError."""
        ...

    def text(self, link: str) -> str:
        """What is written in a link, for messages."""
        ...


class Repeat(NamedTuple):
    """A link at `path` to what is listed as `of`."""

    path: str
    of: str
    is_folder: bool


class Dangling(NamedTuple):
    """A link at `path` whose `text` leads nowhere."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Found:
    """Paths relative to the root of the tree, sorted: `files`; `folders`, the first level alone. `dangling` are links that
    may have been data. What is left out is in `left_out`, with the `repeats`."""

    files: list[str]
    folders: list[str]
    repeats: list[Repeat]
    dangling: list[Dangling]
    left_out: LeftOut


class FolderTree:
    """A folder on disk."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self._real: dict[str, str] = {}  # of folders that links lead into

    def scan(self, folder: str) -> FolderScan:
        scan = FolderScan()
        files = scan.files
        with os.scandir(folder) as entries:
            for entry in entries:  # none of these calls takes a stat, but on file systems that do not know types
                if entry.is_file(follow_symlinks=False):
                    files.append(entry.name)
                elif entry.is_symlink():
                    scan.links.append(entry.name)
                elif entry.is_dir(follow_symlinks=False):
                    scan.folders.append(entry.name)
                else:
                    scan.special.append(entry.name)
        return scan

    def follow(self, link: str) -> LinkTarget | None:
        try:
            mode = os.stat(link).st_mode
        except OSError as error:
            if error.errno in NOWHERE:
                return None
            raise
        kind = "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "special"
        return LinkTarget(self._end(link), kind)

    def _end(self, link: str) -> str:
        """The real path. A million links that lead into one folder take one `realpath` of this folder."""
        head, name = os.path.split(os.path.join(os.path.dirname(link), os.readlink(link)))
        if name in ("", ".", ".."):
            return os.path.realpath(link)
        if head not in self._real:
            self._real[head] = os.path.realpath(head)
        end = os.path.join(self._real[head], name)
        return os.path.realpath(end) if os.path.islink(end) else end

    def text(self, link: str) -> str:
        return os.readlink(link)


def find_files(tree: Tree, suffixes: Sequence[str]) -> Found:
    """The files of a tree whose names end with one of `suffixes` (lower case). Raises OSError if a folder cannot be read."""
    walk = _Walk(tree, tuple(suffixes))
    walk.enter("", tree.root)
    walk.follow_links()
    return walk.found()


class _Walk:
    def __init__(self, tree: Tree, suffixes: tuple[str, ...]) -> None:
        self._tree, self._suffixes = tree, suffixes
        self._listed: dict[str, str] = {}  # real paths of folders -> their paths
        self._links: list[tuple[str, str]] = []  # path, real path of the folder with the name of the link
        self._files: list[str] = []
        self._folders: set[str] = set()
        self._repeats: list[Repeat] = []
        self._dangling: list[Dangling] = []
        self._left_out = LeftOut()

    def found(self) -> Found:
        for repeat in self._repeats:
            self._left_out.add(repeat.path, AGAIN)
        return Found(sorted(self._files), sorted(self._folders), self._repeats, self._dangling, self._left_out)

    def enter(self, path: str, real: str) -> None:
        """Lists a folder and all below it. Links wait."""
        waiting = [(path, real)]
        while waiting:
            path, real = waiting.pop()
            if real in self._listed:  # below a folder that a link leads to
                self._repeats.append(Repeat(path, self._listed[real], True))
                continue
            self._listed[real] = path
            if path and "/" not in path:
                self._folders.add(path)
            scan = self._tree.scan(real)
            before, real_before = (f"{path}/" if path else ""), f"{real.rstrip('/')}/" if real else ""
            data = [name for name in scan.files if self._is_data(name)]
            self._files += [before + name for name in data]
            if len(data) < len(scan.files):
                for name in set(scan.files).difference(data):
                    self._left_out.add(before + name)
            for name in scan.special:
                self._left_out.add(before + name, SPECIAL)
            self._links += ((before + name, real_before + name) for name in scan.links)
            for name in scan.folders:
                if is_never_data(name):
                    self._left_out.add(before + name, f"in {name}", self._count(real_before + name))
                else:
                    waiting.append((before + name, real_before + name))

    def follow_links(self) -> None:
        """Lists what links lead to. All real folders come first, then those of links, then files of links: so the order in
        which folders give their names does not matter."""
        to_files: list[tuple[str, LinkTarget]] = []
        while self._links:
            links, self._links = sorted(self._links), []
            for path, real in links:
                name = path.rpartition("/")[2]
                if is_never_data(name):
                    self._left_out.add(path)
                    continue
                target = self._tree.follow(real)
                if target is None:
                    self._dangle(path, real)
                elif target.kind == "file":
                    to_files.append((path, target))
                elif target.kind == "special":
                    self._left_out.add(path, SPECIAL)
                elif _is_above(target.real, real) or _is_above(target.real, self._tree.root):
                    self._left_out.add(path, ABOVE)
                else:
                    self.enter(path, target.real)
        for path, target in sorted(to_files):
            folder, _, name = target.real.rpartition("/")
            if not self._is_data(path.rpartition("/")[2]):
                self._left_out.add(path)
            elif folder in self._listed and self._is_data(name):
                of = self._listed[folder]
                self._repeats.append(Repeat(path, f"{of}/{name}" if of else name, False))
            else:
                self._files.append(path)

    def _is_data(self, name: str) -> bool:
        lower = name.lower()
        return lower.endswith(self._suffixes) and lower[0] != "." and lower not in NEVER_DATA

    def _dangle(self, path: str, real: str) -> None:
        """A link that has lost its target may have been data by its name, or a folder of data."""
        name = path.rpartition("/")[2]
        suffix = os.path.splitext(name)[1][1:]
        if self._is_data(name) or not (suffix.isalnum() and suffix[0].isalpha()):
            self._dangling.append(Dangling(path, self._tree.text(real)))
        else:
            self._left_out.add(path, DANGLING)

    def _count(self, real: str) -> int:
        """How many files are below a folder that is left out. What cannot be read, such as lost+found, counts as empty."""
        count, waiting = 0, [real]
        while waiting:
            folder = waiting.pop()
            try:
                scan = self._tree.scan(folder)
            except OSError:
                continue
            count += len(scan.files) + len(scan.links) + len(scan.special)
            waiting += (f"{folder}/{name}" for name in scan.folders)
        return count


def _is_above(folder: str, path: str) -> bool:
    """Whether `path` is `folder` or below it. Both are real paths; "" and "/" are above all."""
    folder = folder.rstrip("/")
    return path == folder or path.startswith(f"{folder}/") or not folder


def list_folder(where: str, root: Path, suffixes: Sequence[str], allowed: str) -> Found:
    """The files below `root`, see `find_files`. Raises UserError, which begins with `where`, if a folder cannot be read."""
    tree = FolderTree(root)
    try:
        return find_files(tree, suffixes)
    except OSError as error:
        what = where if error.filename in (None, tree.root) else f"{where}: {error.filename}"
        raise UserError(
            f"{what} cannot be read: {error.strerror}; allowed: a folder of {allowed}; fix: check the channel's path and "
            "permissions"
        ) from None


COPY = "copy the files themselves into the channel (rsync --copy-links)"


def settle_dangling(
    where: str, dangling: Sequence[Dangling], left_out: LeftOut, skip_bad: bool | None = None, fix: str = COPY
) -> None:
    """With `skip_bad` counts dangling links in `left_out`. Else raises UserError if there is one. None: the job has no option
    to skip what is bad."""
    if dangling and not skip_bad:
        first, more = dangling[0], len(dangling) - 1
        others = f", and {more} other links dangle" if more > 1 else ", and another link dangles" if more else ""
        raise UserError(
            f"{where}: {printable(first.path)} is a dangling link to {printable(first.text)}{others}; "
            "allowed: links to files and folders that are there, on each host; "
            f"fix: {fix}, or remove the link{'' if skip_bad is None else ', or leave it out by --skip-bad-samples'}"
        )
    for link in dangling:
        left_out.add(link.path, DANGLING)
        left_out.examples[DANGLING] = dangling[0].path


def of_two_classes(found: Found) -> str | None:
    """What is wrong if a link gives a file of one class folder to another class as well; None if none does."""
    for path, of, is_folder in found.repeats:
        here, there = (each.partition("/")[0] for each in (path, of))
        in_class = is_folder or ("/" in path and "/" in of)
        if here != there and in_class:
            return (
                f"{printable(path)} and {printable(of)} are the same {'folder' if is_folder else 'file'}, by a link, so images "
                f"would have two classes, {printable(there)} and {printable(here)}; allowed: each image in one class; "
                "fix: remove the link"
            )
    return None
