"""What a requirements.txt stands for: its own text, and the files and folders on this machine that it names.

Two jobs whose text and files are the same can share one environment.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from algorun.common.fast_dataclasses import dataclass

if TYPE_CHECKING:
    from hashlib import _Hash

SMALL = (
    1024 * 1024
)  # bytes: larger files count by size and time, or a folder of data beside the code would take minutes
ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar")
# Builds write these into a project's folder, and `algorun simulate` its hosts: they must not look like changes.
MADE_BY_TOOLS = frozenset({"__pycache__", ".git", "build", "dist", ".eggs", ".venv", "algorun-simulate", "algorun-run"})
BUILD_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
# Of four bytes first: that of UTF-32 in little-endian order begins as that of UTF-16.
MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
VCS = re.compile(r"\b(?:git|hg|svn|bzr)\+")
COMMIT = re.compile(r"@[0-9a-f]{40}(?:[#&\s;]|$)")
VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
NAMES_A_FILE = re.compile(r"(?:-r|-c|--requirement|--constraint)(?:\s+|=|(?<=-[rc]))(.+)")
EDITABLE = re.compile(r"(?:-e|--editable)(?:\s+|=)(.+)")
FIND_LINKS = re.compile(r"(?:-f|--find-links)(?:\s+|=)(.+)")


@dataclass(frozen=True, slots=True)
class Contents:
    """The requirements of a job. `editable`: one of them is a link to a folder of the code. `moving`: one is a branch or tag of
    a repository, which may be another commit tomorrow."""

    digest: str
    editable: bool = False
    moving: bool = False


class _Reader:
    """Reads a file of requirements, and what it names. `code`: the folder in which pip runs."""

    def __init__(self, code: str, environ: Mapping[str, str]) -> None:
        self._code, self._environ = code, environ
        self._seen: set[str] = set()
        self.hash = hashlib.sha256()
        self.editable = self.moving = False

    def file(self, path: str) -> None:
        """A file of requirements or constraints. One that cannot be read is left to pip, which names it."""
        if path in self._seen:
            return
        self._seen.add(path)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            return
        _add(self.hash, "file", data)
        for line in _lines(_decoded(data)):
            self._line(VARIABLE.sub(lambda found: self._environ.get(found[1], found[0]), line), os.path.dirname(path))

    def folder(self, path: str) -> None:
        """All files of a project."""
        for file in _files(path):
            _add_file(self.hash, os.path.relpath(file, path), file)

    def _line(self, line: str, beside: str) -> None:
        if found := NAMES_A_FILE.fullmatch(line):
            self.file(os.path.normpath(os.path.join(beside, found[1].strip().strip("'\""))))
        elif found := FIND_LINKS.fullmatch(line):
            self._found_links(os.path.join(beside, found[1].strip().removeprefix("file://")))
        elif found := EDITABLE.fullmatch(line):
            self._requirement(found[1].strip(), editable=True)
        elif not line.startswith("-"):
            self._requirement(line, editable=False)

    def _found_links(self, path: str) -> None:
        if os.path.isdir(path):
            for name in sorted(os.listdir(path)):
                _add_file(self.hash, name, os.path.join(path, name))

    def _requirement(self, text: str, *, editable: bool) -> None:
        if VCS.search(text):
            self.moving |= not COMMIT.search(text)
            return
        path = self._path(text)
        if path is None:
            return
        if os.path.isdir(path) and editable:
            self.editable = True
            for name in BUILD_FILES:
                _add_file(self.hash, name, os.path.join(path, name))
        elif os.path.isdir(path):
            self.folder(path)
        else:
            _add_file(self.hash, os.path.basename(path), path)

    def _path(self, text: str) -> str | None:
        """The file or folder of this machine that a requirement names, None for one of an index."""
        _, at, address = text.partition(" @ ")
        word = re.split(r"\s|;|\[", (address if at else text).strip().strip("'\""), maxsplit=1)[0]
        word = word.partition("#")[0]
        if word.startswith("file:"):
            from urllib.parse import unquote

            word = unquote(re.sub(r"^file:(?://(?:localhost)?(?=/))?", "", word))
        elif "://" in word or not (os.sep in word or word.startswith(".") or word.endswith(ARCHIVES)):
            return None
        path = os.path.normpath(os.path.join(self._code, word))
        return path if os.path.exists(path) else None


def contents(requirements: str, code: str, environ: Mapping[str, str], *, package: bool) -> Contents:
    """What pip would install: `requirements`, the path of the file or "", and with `package` the code itself."""
    reader = _Reader(code, environ)
    if package:
        reader.folder(code)
    if requirements:
        reader.file(requirements)
    return Contents(reader.hash.hexdigest(), reader.editable, reader.moving)


def _decoded(data: bytes) -> str:
    """The text as pip reads it: by its byte order mark, which `pip freeze > requirements.txt` of PowerShell writes for UTF-16."""
    name = next((name for mark, name in MARKS if data.startswith(mark)), "utf-8")
    return data.decode(name, "replace")


def _lines(text: str) -> Iterator[str]:
    """The lines as pip reads them: joined at a backslash, without comments."""
    for line in re.sub(r"\\\n", "", text.replace("\r\n", "\n")).split("\n"):
        bare = re.sub(r"(^|\s+)#.*$", "", line).strip()
        if bare:
            yield bare


def _files(folder: str) -> Iterator[str]:
    for top, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if each not in MADE_BY_TOOLS and not each.endswith(".egg-info"))
        yield from (os.path.join(top, name) for name in sorted(files) if not name.endswith(".pyc"))


def _add(into: _Hash, name: str, data: bytes) -> None:
    into.update(f"{name}\0{len(data)}\0".encode("utf-8", "surrogateescape"))
    into.update(data)


def _add_file(into: _Hash, name: str, path: str) -> None:
    try:
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):
            return
        if about.st_size > SMALL:
            _add(into, name, f"{about.st_size} {about.st_mtime_ns}".encode())
            return
        with open(path, "rb") as file:
            _add(into, name, file.read())
    except OSError:  # gone in the meantime, or not readable: pip says so if it needs the file
        return
