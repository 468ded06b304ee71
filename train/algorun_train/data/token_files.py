"""Reads the documents of a text channel: `.txt`, `.jsonl` and `.parquet` files, at any depth."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from algorun_train.common.errors import UserError

SUFFIXES = (".txt", ".jsonl", ".parquet")
ALLOWED = "a folder of .txt (a file is a document), .jsonl or .parquet (text, or messages of a chat), at any depth"
BLOCK = 2**20  # characters of a .txt that are tokenized at once; it is split behind a line
ROLES = "a list of objects with role, at least one of role assistant"
TOOLS = "a list of objects, the JSON schemas of the tools"


@dataclass(frozen=True, slots=True)
class Document:
    """A text, or a chat: `messages`, and the JSON schemas of the `tools` that the chat template is given with them. A long text
    comes in pieces; `begins` and `ends` tell the first and the last one. `where` names it in errors."""

    where: str
    text: str = ""
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    begins: bool = True
    ends: bool = True


@dataclass(frozen=True, slots=True)
class BadDocument:
    """What stands where a document cannot be used: `error` is the text of a UserError. `retracts`: the pieces of this file that
    came before belong to it."""

    error: str
    retracts: bool = False


def listed(channel: str, root: Path) -> list[str]:
    """The names of a channel's files below `root`, sorted. Raises UserError if there is none or a folder cannot be read."""
    where = f"channel '{channel}' at {root}"

    def refuse(error: OSError) -> None:
        raise UserError(
            f"{where}: {error.filename} cannot be read: {error.strerror}; allowed: {ALLOWED}; fix: check the channel"
        )

    names: list[str] = []
    for folder, subfolders, files in os.walk(root, onerror=refuse, followlinks=True):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        found = [name for name in files if name.lower().endswith(SUFFIXES) and not name.startswith(".")]
        names += [os.path.relpath(os.path.join(folder, name), root) for name in found]
    if not names:
        raise UserError(f"{where} holds no text; allowed: {ALLOWED}; fix: put text files into it")
    return sorted(names)


def checksum(path: Path) -> str:
    """The SHA-256 of a file, hex. Raises UserError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; fix: check the file, on every host") from None


def documents(path: Path) -> Iterator[Document | BadDocument]:
    """The documents of a file; empty ones are left out. Raises UserError if the file cannot be read."""
    suffix = path.suffix.lower()
    try:
        if suffix == ".txt":
            yield from _text(path)
        elif suffix == ".jsonl":
            yield from _lines(path)
        else:
            yield from _rows(path)
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror or error}; fix: check the file, on every host"
        ) from None


def _text(path: Path) -> Iterator[Document | BadDocument]:
    with path.open(encoding="utf-8", newline="") as file:
        block, begins = "", True
        try:
            while more := "".join((file.read(BLOCK), file.readline())):
                if block:
                    yield Document(str(path), block, begins=begins, ends=False)
                    begins = False
                block = more
        except UnicodeDecodeError as error:
            yield BadDocument(
                f"{path} is not UTF-8: {error.reason} at byte {error.start} of what was read last; "
                "allowed: text in UTF-8; fix: convert the file",
                retracts=True,
            )
            return
        if block:
            yield Document(str(path), block, begins=begins)


def _lines(path: Path) -> Iterator[Document | BadDocument]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                row = json.loads(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                yield BadDocument(
                    f"{where} is not UTF-8: {error.reason} at byte {error.start}; allowed: text in UTF-8; "
                    "fix: convert the file"
                )
            except (ValueError, RecursionError) as error:
                yield BadDocument(
                    f"{where} is damaged: {error}; allowed: a JSON object per line; fix: repair or remove the line"
                )
            else:
                if isinstance(row, dict):
                    yield from _document(row, where)
                else:
                    yield BadDocument(
                        f"{where} is no JSON object; allowed: an object with text or messages; fix: repair it"
                    )


def _rows(path: Path) -> Iterator[Document | BadDocument]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise UserError(
            f"{path} needs the package pyarrow, which is not installed; "
            "fix: add pyarrow to requirements.txt, or give .jsonl files"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            columns = [name for name in ("text", "messages", "tools") if name in file.schema_arrow.names]
            if not {"text", "messages"} & set(columns):
                raise UserError(
                    f"{path} has no column text or messages, only {', '.join(file.schema_arrow.names) or 'none'}; "
                    "allowed: a column text or messages; fix: rename the column"
                )
            number = 0
            for batch in file.iter_batches(columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield from _document(row, f"{path}, row {number}")
    except ArrowException as error:
        raise UserError(f"{path} is damaged: {error}; allowed: parquet; fix: replace the file") from None


def _document(row: dict[str, Any], where: str) -> Iterator[Document | BadDocument]:
    messages, text = row.get("messages"), row.get("text")
    if messages is not None and not _is_chat(messages):
        yield BadDocument(f"{where}: messages is no chat; allowed: {ROLES}; fix: repair or remove it")
    elif messages is not None and not _are_tools(row.get("tools")):
        yield BadDocument(f"{where}: tools are no schemas; allowed: {TOOLS}; fix: repair or remove them")
    elif messages is not None:
        yield Document(
            where, messages=tuple(cast("list[dict[str, Any]]", messages)), tools=tuple(row.get("tools") or ())
        )
    elif not isinstance(text, str):
        yield BadDocument(
            f"{where} has neither text nor messages; allowed: text, a string, or messages, {ROLES}; fix: repair it"
        )
    elif text:
        yield Document(where, text)


def _is_chat(messages: object) -> bool:
    return (
        isinstance(messages, list)
        and all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages)
        and any(m["role"] == "assistant" for m in messages)
    )


def _are_tools(tools: object) -> bool:
    return tools is None or (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools))
