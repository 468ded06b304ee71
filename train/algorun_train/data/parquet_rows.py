"""Reads the documents of a .parquet file."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from algorun_train.common.errors import UserError

from .document import BadDocument, Document
from .document_rows import KEYS, UnfitError, document, parsed
from .first_bytes import pointer
from .left_out import printable

TOGETHER = 1024  # rows that become Python objects at once; of pyarrow's 65,536 long documents fill gigabytes


Convert = Callable[[Any], Any]  # Any: what a column holds, nested as its type says


class _Batch(Protocol):
    """The part of pyarrow's RecordBatch that is used here; pyarrow has no types."""

    num_rows: int

    def to_pylist(self) -> list[dict[str, Any]]: ...

    def slice(self, offset: int, length: int) -> "_Batch": ...


def read_parquet(path: Path) -> Iterator[Document | BadDocument]:
    """The documents of the file, one a row. In a row group that is damaged, the rows in front of the damage count. Raises OSError
    if the file cannot be read, UserError if pyarrow is not installed."""
    name = printable(str(path))
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise UserError(
            f"{name} needs the package pyarrow, which is not installed; "
            "fix: add pyarrow to requirements.txt, or give .jsonl files"
        ) from None
    with path.open("rb") as start:
        if fault := pointer(start.read(100)):
            yield BadDocument(f"{name} {fault}")
            return
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            names = file.schema_arrow.names
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            if fault := _no_columns(names):
                yield BadDocument(f"{name} has {fault}")
                return
            columns = {
                key: _converter(file.schema_arrow.field(key).type, key == "messages") for key in KEYS if key in names
            }
            end = 0
            for group, size in enumerate(sizes):
                begin, end = end, end + size
                number = begin
                batches = file.iter_batches(TOGETHER, row_groups=[group], columns=list(columns))
                try:
                    for number, row in enumerate(_rows(batches), start=begin + 1):
                        if (each := _document(row, columns, f"{name}, row {number}")) is not None:
                            yield each
                except (ArrowException, OSError) as error:
                    lost = max(end - number, 1)  # the number of rows may be what is damaged
                    which = f"row {number + 1} is" if lost == 1 else f"rows {number + 1} to {end} are"
                    yield BadDocument(f"{name}, {which} {_damaged(error)}", documents=lost)
    except (ArrowException, OSError, UnicodeDecodeError) as error:  # the last is of a column's name
        yield BadDocument(f"{name} is {_damaged(error)}")


def _no_columns(names: list[str]) -> str | None:
    if not {"text", "messages"} & set(names):
        return (
            f"no column text or messages, only {', '.join(map(repr, names)) or 'none'}; allowed: a column text or messages; "
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


def _document(
    row: dict[str, Any] | UnicodeDecodeError, columns: dict[str, Convert], where: str
) -> Document | BadDocument | None:
    try:
        if isinstance(row, UnicodeDecodeError):
            raise row
        return document({key: _converted(value, columns[key]) for key, value in row.items()}, where)
    except UnicodeDecodeError as error:
        return BadDocument(
            f"{where} is not UTF-8: {error.reason} at byte {error.start} of a value; allowed: text in UTF-8; "
            "fix: repair the row"
        )
    except UnfitError as fault:
        return BadDocument(f"{where} {fault}")
    except (ValueError, RecursionError) as error:
        return BadDocument(f"{where} is damaged: {error}; allowed: JSON in columns of this type; fix: repair the row")


def _converter(kind: Any, messages: bool = False) -> Convert:
    """What makes of a column's values what JSON would have. A struct has all fields of its column, null where a row has none of
    that name: these are left out, but not the content of `messages`, which exports of chats write as null. Binary is text whose
    type the writer did not name. Values of the type arrow.json, which datasets uses for objects that differ, are JSON in strings."""
    from pyarrow import BaseExtensionType, types

    if isinstance(kind, BaseExtensionType):
        return parsed if kind.extension_name == "arrow.json" else _converter(kind.storage_type, messages)
    if types.is_dictionary(kind):
        return _converter(kind.value_type, messages)
    if types.is_struct(kind):
        fields = {field.name: _converter(field.type) for field in kind}
        return lambda struct: {
            name: _converted(value, fields[name])
            for name, value in struct.items()
            if value is not None or (messages and name == "content")
        }
    if types.is_map(kind):
        item = _converter(kind.item_type)
        return lambda pairs: {key: _converted(value, item) for key, value in pairs}
    if types.is_nested(kind):  # a list of one of the kinds that Arrow has
        element = _converter(kind.value_type, messages)
        return lambda values: [_converted(value, element) for value in values]
    return lambda value: value.decode("utf-8") if isinstance(value, bytes) else value


def _converted(value: Any, convert: Convert) -> Any:
    return None if value is None else convert(value)
