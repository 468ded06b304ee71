"""Reads the documents of a .jsonl file, also of a compressed one."""

import bz2
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from algorun_train.common.errors import UserError

from .document import BadDocument, Document
from .document_rows import document, load_json
from .first_bytes import CHECKED, OTHERS, not_utf8
from .left_out import printable

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.bz2", ".jsonl.xz", ".jsonl.zst")
COMPRESSED = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
BOM = "\ufeff"


def read_json_lines(path: Path) -> Iterator[Document | BadDocument]:
    """The documents of the file, one a line. Of a compressed file that is damaged nothing counts: only its end can say that
    its lines are those that were written. Raises OSError if the file cannot be read, UserError if a package is missing."""
    name, number, begun = printable(str(path)), 0, False
    try:
        with _opened(path) as file:
            if fault := _other_content(path) or not_utf8(file.peek(CHECKED)):
                yield BadDocument(f"{name} {fault}")
                return
            for number, line in enumerate(file, start=1):
                each = _document(line, f"{name}, line {number}")
                if not begun and isinstance(each, BadDocument) and _is_no_line(line):
                    yield BadDocument(
                        f"{name}, line {number} is no JSON object but the beginning of a list, or of an object over several lines; "
                        "allowed: an object per line; fix: jq -c '.[]' for a list, jq -c . for objects"
                    )
                    return
                if each is not None:
                    begun = True
                    yield each
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the file could not be read. Of what it holds, gzip, bz2 and pyarrow say it without errno.
        yield BadDocument(
            f"{name} is damaged behind line {number}: {error}; allowed: a whole {path.suffix} file; fix: copy it again",
            retracts=True,
            documents=max(number, 1),
        )


def _other_content(path: Path) -> str | None:
    """What is wrong with a file whose suffix names another compression than its first bytes; None if nothing is."""
    suffix = path.suffix.lower()
    if suffix not in COMPRESSED:
        return None
    with path.open("rb") as file:
        head = file.read(CHECKED)
    content = next((kind for begin, kind, _ in OTHERS if head.startswith(begin)), "")
    if not content and head.lstrip()[:1] == b"{":
        content = "JSON, which is not compressed"
    if content in ("", COMPRESSED[suffix]):
        return None
    return f"is no {suffix} file: its content is {content}; allowed: a whole {suffix} file; fix: give it the suffix of its content"


def _opened(path: Path) -> io.BufferedReader:
    suffix = path.suffix.lower()
    if suffix == ".zst":
        try:
            from pyarrow import CompressedInputStream, OSFile
        except ImportError:
            raise UserError(
                f"{printable(str(path))} needs the package pyarrow, which is not installed; "
                "fix: add pyarrow to requirements.txt, or give .jsonl or .jsonl.gz files"
            ) from None
        return io.BufferedReader(CompressedInputStream(OSFile(str(path)), "zstd"))
    opened: dict[str, Callable[[Path], object]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    if suffix in opened:
        return io.BufferedReader(cast(io.RawIOBase, opened[suffix](path)))  # C code finds the lines
    return path.open("rb")


def _is_no_line(line: bytes) -> bool:
    text = line.decode("utf-8", "replace").removeprefix(BOM).strip()
    return text.startswith("[") or text == "{"


def _document(line: bytes, where: str) -> Document | BadDocument | None:
    try:
        # Each line is a JSON text, and a reader may pass over the mark before one: `cat` leaves marks in the middle (RFC 8259, 8.1).
        text = line.decode("utf-8").removeprefix(BOM)
        if not text or text.isspace():
            return None
        row = load_json(text)
    except UnicodeDecodeError as error:
        return BadDocument(
            f"{where} is not UTF-8: {error.reason} at byte {error.start}; allowed: text in UTF-8; fix: convert the file"
        )
    except ValueError as error:
        fault = (
            f"{error.msg.removesuffix(' at')} at column {error.colno}"
            if isinstance(error, json.JSONDecodeError)
            else str(error)
        )
        return BadDocument(
            f"{where} is damaged: {fault}; allowed: a JSON object per line; fix: repair or remove the line"
        )
    if not isinstance(row, dict):
        return BadDocument(f"{where} is no JSON object; allowed: an object with text or messages; fix: repair it")
    return document(row, where, text)
