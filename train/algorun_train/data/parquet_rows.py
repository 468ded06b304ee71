"""Reads the documents of a .parquet file."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from algorun_train.common.errors import UserError

from .document import BadDocument, Document
from .document_rows import KEYS, document
from .first_bytes import pointer

TOGETHER = 1024  # rows that become Python objects at once; of pyarrow's 65,536 long documents fill gigabytes


class _Batch(Protocol):
    """The part of pyarrow's RecordBatch that is used here; pyarrow has no types."""

    num_rows: int

    def to_pylist(self) -> list[dict[str, Any]]: ...

    def slice(self, offset: int, length: int) -> "_Batch": ...


def read(path: Path) -> Iterator[Document | BadDocument]:
    """The documents of the file, one a row. In a row group that is damaged, the rows in front of the damage count. Raises OSError
    if the file cannot be read, UserError if pyarrow is not installed."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise UserError(
            f"{path} needs the package pyarrow, which is not installed; "
            "fix: add pyarrow to requirements.txt, or give .jsonl files"
        ) from None
    with path.open("rb") as start:
        if fault := pointer(start.read(100)):
            yield BadDocument(f"{path} {fault}")
            return
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            if fault := _no_columns(names):
                yield BadDocument(f"{path} has {fault}")
                return
            end = 0
            for group, size in enumerate(sizes):
                begin, end = end, end + size
                number = begin
                batches = file.iter_batches(TOGETHER, row_groups=[group], columns=[key for key in KEYS if key in names])
                try:
                    for number, row in enumerate(_rows(batches), start=begin + 1):
                        if (each := _document(row, f"{path}, row {number}")) is not None:
                            yield each
                except (ArrowException, OSError) as error:
                    which = f"row {end} is" if number + 1 == end else f"rows {number + 1} to {end} are"
                    yield BadDocument(f"{path}, {which} {_damaged(error)}", documents=end - number)
    except (ArrowException, OSError, UnicodeDecodeError) as error:  # the last is of a column's name
        yield BadDocument(f"{path} is {_damaged(error)}")


def _no_columns(names: list[str]) -> str | None:
    if not {"text", "messages"} & set(names):
        return (
            f"no column text or messages, only {', '.join(names) or 'none'}; allowed: a column text or messages; "
            "fix: rename the column"
        )
    if twice := [key for key in KEYS if names.count(key) > 1]:
        return f"{names.count(twice[0])} columns {twice[0]}; allowed: one; fix: rename the others"
    return None


def _damaged(error: Exception) -> str:
    """The end of an error about damage, with what pyarrow says on one line. Raises an OSError again if the file cannot be read:
    pyarrow's own, about damage, have no errno."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error
    return f"damaged: {' '.join(str(error).split())}; allowed: parquet; fix: replace the file"


def _rows(batches: Iterable[_Batch]) -> Iterator[dict[str, Any] | UnicodeDecodeError]:
    """The rows. In place of one that pyarrow cannot decode stands its error: it checks UTF-8 only now."""
    for batch in batches:
        try:
            rows = batch.to_pylist()
        except UnicodeDecodeError as error:
            if batch.num_rows == 1:
                yield error
            else:
                yield from _rows(batch.slice(at, 1) for at in range(batch.num_rows))
        else:
            yield from rows


def _document(row: dict[str, Any] | UnicodeDecodeError, where: str) -> Document | BadDocument | None:
    try:
        if isinstance(row, UnicodeDecodeError):
            raise row
        plain = {key: _plain(value) for key, value in row.items()}
    except UnicodeDecodeError as error:
        return BadDocument(
            f"{where} is not UTF-8: {error.reason} at byte {error.start} of a value; allowed: text in UTF-8; fix: repair the row"
        )
    return document(plain, where)


def _plain(value: Any) -> Any:  # Any: what a column holds, nested as its type says
    """A value as JSON would have it. Binary columns are text without its type's name, as older writers leave it; a map is an
    object. A struct has all fields of its column, null where a row has none of that name: these are left out, but not content,
    which exports of chats write as null."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if each is not None or key == "content"}
    if isinstance(value, list):
        if value and all(isinstance(each, tuple) for each in value):  # only a map becomes tuples
            return _plain(dict(value))
        return [_plain(each) for each in value]
    return value.decode("utf-8") if isinstance(value, bytes) else value
