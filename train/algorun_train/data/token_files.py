"""Reads the documents of a text channel: `.txt`, `.jsonl` and `.parquet` files, at any depth."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from algorun_train.common.errors import UserError

from . import json_lines, parquet_rows
from .channel_files import list_folder, settle_dangling
from .document import BadDocument, Document
from .first_bytes import not_text
from .left_out import LeftOut, printable
from .splits import refuse_splits

SUFFIXES = (".txt", *json_lines.SUFFIXES, ".parquet")
ALLOWED = (
    "a folder of .txt (a file is a document), .jsonl (also .gz, .bz2, .xz, .zst) or .parquet (text, or messages of a chat), "
    "at any depth"
)
BLOCK = 2**20  # bytes of a .txt that are tokenized at once; it is split behind a line


def listed(channel: str, root: Path, skip_bad: bool = False, left_out: LeftOut | None = None) -> list[str]:
    """The names of a channel's files below `root`, sorted. What is left out is added to `left_out`; with `skip_bad` also links
    that lead nowhere are. Raises UserError if there is no file, a folder cannot be read or the files are several splits of a data set."""
    where = f"channel '{channel}' at {root}"
    found = list_folder(where, root, SUFFIXES, ALLOWED)
    settle_dangling(where, found.dangling, found.left_out, skip_bad)
    if not found.files:
        only = found.left_out.named()
        raise UserError(
            f"{where} holds no text{only and f', only {only}'}; allowed: {ALLOWED}; fix: put text files into it"
        )
    refuse_splits(where, found.files)
    if left_out is not None:
        left_out.join(found.left_out)
    return found.files


def checksum(path: Path) -> str:
    """The SHA-256 of a file, hex. Raises UserError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(
            f"{printable(str(path))} cannot be read: {error.strerror}; fix: check the file, on every host"
        ) from None


def documents(path: Path) -> Iterator[Document | BadDocument]:
    """The documents of a file; empty ones are left out. Raises UserError if the file cannot be read."""
    name = path.name.lower()
    try:
        if name.endswith(json_lines.SUFFIXES):
            yield from json_lines.read_json_lines(path)
        elif name.endswith(".parquet"):
            yield from parquet_rows.read_parquet(path)
        else:
            yield from _text(path)
    except OSError as error:
        raise UserError(
            f"{printable(str(path))} cannot be read: {error.strerror or error}; fix: check the file, on every host"
        ) from None


def _text(path: Path) -> Iterator[Document | BadDocument]:
    where = printable(str(path))
    with path.open("rb") as file:
        text, begins, offset, line = "", True, 0, 1
        while block := file.read(BLOCK) + file.readline():
            if not offset and (fault := not_text(block)):
                yield BadDocument(f"{where} {fault}")
                return
            try:
                more = block.decode("utf-8")
            except UnicodeDecodeError as error:
                line += block.count(b"\n", 0, error.start)
                yield BadDocument(
                    f"{where} is not UTF-8: {error.reason} in line {line}, byte {offset + error.start} of the file; "
                    "allowed: text in UTF-8; fix: convert the file",
                    retracts=True,
                )
                return
            if text:
                yield Document(where, text, begins=begins, ends=False)
                begins = False
            text = more if offset else more.removeprefix("\ufeff")  # a byte order mark is no text
            offset += len(block)
            line += block.count(b"\n")
        if text:
            yield Document(where, text, begins=begins)
