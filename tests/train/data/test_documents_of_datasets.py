"""Our documents are those of Hugging Face datasets: random files of text, JSON lines and parquet, plain and compressed."""

import bz2
import gzip
import json
import lzma
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun_train.data.document import BadDocument, Document
from algorun_train.data.token_files import documents
from tests.conftest import examples

datasets = pytest.importorskip("datasets")

TEXT = st.text(max_size=20)  # without surrogates, with every other character: line ends of Unicode, zeros, marks
NAMES = st.sampled_from(["role", "content", "name", "x", "y"])
VALUES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT
OTHER = st.dictionaries(NAMES, VALUES | st.dictionaries(NAMES, VALUES, max_size=2), max_size=3)


@st.composite
def chats(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Messages some of which call tools: their keys differ."""
    chat = []
    for role in draw(st.lists(st.sampled_from(["system", "user", "assistant", "tool"]), max_size=3)):
        call = {"type": "function", "function": {"name": draw(TEXT), "arguments": draw(OTHER)}}
        kinds = [{}, {"tool_calls": [call]}, {"tool_call_id": draw(TEXT)}]
        chat.append({"role": role, "content": draw(TEXT)} | draw(st.sampled_from(kinds)))
    return [*chat, {"role": "assistant", "content": draw(TEXT)}]


def loaded(path: Path, kind: str, **options: Any) -> Any:
    datasets.disable_progress_bars()
    return datasets.load_dataset(
        kind, data_files=str(path), split="train", cache_dir=str(path.parent / "cache"), **options
    )


def ours(path: Path) -> list[Any]:
    return [(list(each.messages), list(each.tools)) if each.messages else each.text for each in documents(path)]


def json_lines(rows: list[dict[str, Any]], plain: bool, end: str) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=plain) + end for row in rows).encode()


WRITERS = {".jsonl": bytes, ".jsonl.gz": gzip.compress, ".jsonl.bz2": bz2.compress, ".jsonl.xz": lzma.compress}
LAYOUT = st.tuples(st.sampled_from(sorted(WRITERS)), st.booleans(), st.sampled_from(["\n", "\r\n", "\n\n"]))


@examples(50)
@given(st.lists(TEXT, min_size=1, max_size=9), LAYOUT, st.integers(0, 9))
def test_json_lines_of_text(texts: list[str], layout: tuple[str, bool, str], begun: int) -> None:
    suffix, plain, end = layout
    rows = [{"text": text, "id": number} for number, text in enumerate(texts)]
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / f"a{suffix}"
        # Two members, as pieces that were compressed apart and joined.
        path.write_bytes(
            b"".join(WRITERS[suffix](json_lines(part, plain, end)) for part in (rows[:begun], rows[begun:]) if part)
        )
        assert ours(path) == [text for text in loaded(path, "json")["text"] if text]


@examples(50)
@given(st.lists(st.tuples(chats(), st.lists(OTHER, max_size=2)), min_size=1, max_size=4), st.booleans())
def test_json_lines_and_parquet_of_chats(rows: list[Any], plain: bool) -> None:
    """datasets keeps the keys of each message, and writes them to parquet as arrow.json or, where all are alike, as structs."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "a.jsonl"
        path.write_bytes(json_lines([{"messages": chat, "tools": tools} for chat, tools in rows], plain, "\n"))
        theirs = loaded(path, "json")
        assert ours(path) == [(row["messages"], row["tools"]) for row in theirs] == rows
        theirs.to_parquet(path.with_suffix(".parquet"))
        read = loaded(path.with_suffix(".parquet"), "parquet")
        expected = [(row["messages"], row["tools"]) for row in read]
        assert without_null(ours(path.with_suffix(".parquet"))) == without_null(expected)


def without_null(value: Any) -> Any:
    """In a struct of parquet, null is also what stands for a key that is not there."""
    if isinstance(value, dict):
        return {key: without_null(each) for key, each in value.items() if each is not None}
    return [without_null(each) for each in value] if isinstance(value, list | tuple) else value


@examples(50)
@given(
    st.lists(st.none() | TEXT, min_size=1, max_size=9),
    st.sampled_from(["string", "large_string", "string_view", "binary", "dictionary"]),
    st.sampled_from(["none", "snappy", "zstd"]),
    st.integers(1, 4),
)
def test_parquet_of_text(texts: list[str | None], kind: str, compression: str, together: int) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    column = pa.array(texts, pa.string()).dictionary_encode() if kind == "dictionary" else None
    if kind == "binary":
        column = pa.array([text if text is None else text.encode() for text in texts], pa.binary())
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "a.parquet"
        table = pa.table({"text": pa.array(texts, getattr(pa, kind)()) if column is None else column})
        parquet.write_table(table, path, compression=compression, row_group_size=together)
        theirs = [text.decode() if isinstance(text, bytes) else text for text in loaded(path, "parquet")["text"]]
        read = list(documents(path))
        assert [each.text for each in read if isinstance(each, Document)] == [text for text in theirs if text]
        bad = [each.error for each in read if isinstance(each, BadDocument)]
        assert len(bad) == theirs.count(None)
        assert all(" has text null" in error for error in bad)


@examples(50)
@given(st.lists(TEXT, max_size=9), st.sampled_from(["\n", "\r\n", "\r"]))
def test_text(texts: list[str], end: str) -> None:
    """datasets turns all line ends into the one of Linux. Ours keeps them: a tokenizer may know others."""
    content = end.join(["fox", *texts])  # a mark at the begin, which datasets takes for text, is tested elsewhere
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "a.txt"
        path.write_bytes(content.encode())
        (theirs,) = loaded(path, "text", sample_by="document")["text"]
        if "\0" in content:
            assert isinstance(next(documents(path)), BadDocument)
        else:
            assert ours(path) == [content]
            assert content.replace("\r\n", "\n").replace("\r", "\n") == theirs
