"""The index of one tar file as a row of JSON, and back. A row that no tar file of its size can have is refused: its offsets decide
which bytes are taken for an image."""

from collections import Counter
from collections.abc import Iterator

from .channel_files import Dangling
from .left_out import LeftOut
from .listing import SUFFIXES
from .tar_headers import BLOCK, LONGEST_CLASS, TarIndex, TarMember
from .tar_tree import clean

ROW = 8  # values of a row, in the order of `write_row`


def write_row(index: TarIndex) -> tuple[object, ...]:
    """The values of an index, for json."""
    return (
        index.size,
        index.mtime_ns,
        index.images,
        index.keyed,
        index.bare,
        index.dangling,
        [(*key, count) for key, count in index.left_out.counts.items()],
        index.left_out.examples,
    )


def read_tars(value: object) -> Iterator[tuple[str, list[object]]]:
    """The rows by the names of their tar files. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError("it has no tar files")
    for name, row in value.items():
        if not isinstance(row, list) or len(row) != ROW:
            raise ValueError(f"{name}: no row of {ROW} values")
        yield name, row


def read_row(row: list[object]) -> TarIndex:
    """The index that `write_row` made a row of. Raises ValueError if its types are other ones, or if an image does not lie in the
    tar file, as `tar_headers` finds them: behind a header of its own, and apart from the others."""
    size, mtime_ns, images, keyed, bare, dangling, counts, examples = row
    if type(keyed) is not bool:
        raise ValueError(f"keyed is {keyed!r}")
    whole = _whole(size, "size")
    members = tuple(_member(each, keyed) for each in _rows(images, 4, "images"))
    _check_places(members, whole)
    return TarIndex(
        whole,
        _whole(mtime_ns, "time", least=None),
        members,
        keyed,
        tuple(_text(each, "class folder") for each in _list(bare, "class folders")),
        tuple(Dangling(_text(path, "link"), _text(text, "link")) for path, text in _rows(dangling, 2, "links")),
        _left_out(counts, examples),
    )


def _member(row: list[object], keyed: bool) -> TarMember:
    name, offset, size, label = row
    path = _text(name, "image")
    if not path.lower().endswith(SUFFIXES) or path != clean(path) or ".." in path.split("/"):
        raise ValueError(f"{path!r} is no image's name")
    if label is not None and (
        not keyed or not _text(label, "label") or not str(label).isprintable() or len(str(label)) > LONGEST_CLASS
    ):
        raise ValueError(f"{path!r} has the label {label!r}")
    return TarMember(path, _whole(offset, "offset"), _whole(size, "size"), None if label is None else str(label))


def _check_places(members: tuple[TarMember, ...], size: int) -> None:
    """Links make one place the content of several images, with the same offset and size."""
    end = 0
    for offset, length in sorted({(member.offset, member.size) for member in members}):
        if offset % BLOCK or offset < end + BLOCK:
            raise ValueError(f"an image begins at offset {offset}, where none can")
        end = offset + length
        if end > size:
            raise ValueError(f"an image ends at offset {end} of {size} bytes")


def _left_out(counts: object, examples: object) -> LeftOut:
    found: Counter[tuple[str, str]] = Counter()
    for top, kind, count in _rows(counts, 3, "counts"):
        found[_text(top, "folder"), _text(kind, "kind")] += _whole(count, "count", least=1)
    if not isinstance(examples, dict):
        raise ValueError("examples are no object")
    return LeftOut(found, {kind: _text(path, "example") for kind, path in examples.items()})


def _list(value: object, what: str) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(f"{what} are no list")
    return value


def _rows(value: object, length: int, what: str) -> Iterator[list[object]]:
    for row in _list(value, what):
        if not isinstance(row, list) or len(row) != length:
            raise ValueError(f"one of the {what} has not {length} values")
        yield row


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} {str(value)[:60]} is no text")
    return value


def _whole(value: object, what: str, least: int | None = 0) -> int:
    if type(value) is not int or (least is not None and value < least):
        raise ValueError(
            f"{what} {str(value)[:60]} is no whole number" + ("" if least is None else f" of {least} or more")
        )
    return value
