"""Readers of a text channel: text, JSON lines, parquet."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random as randoms
from typing import Any

from algorun_train.data.document import BadDocument
from algorun_train.data.token_files import documents

from . import mutations
from .reader import Reader, scratch

SUFFIXES = {b"t": ".txt", b"j": ".jsonl", b"g": ".jsonl.gz", b"b": ".jsonl.bz2", b"x": ".jsonl.xz", b"z": ".jsonl.zst"}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"city": "x"}}}
ROWS: list[dict[str, Any]] = [
    {"text": "fox \U0001f600 and dog", "id": 1, "meta": {"x": [1.5, None, True]}},
    {"messages": [{"role": "user", "content": "fox?"}, {"role": "assistant", "content": None, "tool_calls": [CALL]}]},
    {"messages": json.dumps([{"role": "assistant", "content": [{"type": "text", "text": "dog"}]}]), "tools": "[]"},
    {"messages": [{"role": "assistant", "content": "dog", "weight": 1}], "tools": [CALL]},
]


def read_text(data: bytes) -> None:
    """A file; its first byte is the suffix."""
    read(SUFFIXES.get(data[:1], ".jsonl"), data[1:])


def read_parquet(data: bytes) -> None:
    read(".parquet", data)


def read(suffix: str, content: bytes) -> None:
    """Each document is one that UTF-8 can hold; whatever else is said on one line, with the fix."""
    path = scratch() / f"a{suffix}"
    path.write_bytes(content)
    for each in documents(path):
        if isinstance(each, BadDocument):
            assert each.error.startswith(str(path))
            assert "; allowed: " in each.error
            assert "; fix: " in each.error
            assert "\n" not in each.error
            assert each.documents > 0
        else:
            assert each.text or each.messages
            json.dumps([each.text, each.messages, each.tools], ensure_ascii=False).encode()


def text_seeds() -> list[bytes]:
    from pyarrow import compress

    each = [json.dumps(row).encode() + b"\n" for row in ROWS]
    lines = b"".join(each)
    packed = (b"g" + gzip.compress(lines), b"b" + bz2.compress(lines), b"x" + lzma.compress(lines))
    return [
        *(b"j" + line for line in each),
        b"j" + lines,
        b"t" + lines,
        *packed,
        b"z" + compress(lines, "zstd", asbytes=True),
    ]


def changed(data: bytes, random: randoms.Random) -> bytes:
    """JSON stays JSON where it is one line."""
    kind, content = data[:1], data[1:]
    return kind + (mutations.as_json if kind == b"j" and content.count(b"\n") < 2 else mutations.raw)(content, random)


def parquet_seeds() -> list[bytes]:
    import pyarrow as pa
    from pyarrow import parquet

    chat = ROWS[1]["messages"]
    json_type = pa.ExtensionArray.from_storage(pa.json_(), pa.array([json.dumps(message) for message in chat]))
    columns: list[dict[str, Any]] = [
        {"text": ["fox \U0001f600", "dog", None] * 9, "id": list(range(27))},
        {"messages": [chat] * 5, "tools": [[CALL], None, [], [CALL], [CALL, {"x": 1}]]},
        {"messages": pa.ListArray.from_arrays([0, len(chat)], json_type), "text": pa.array([b"fox"])},
    ]
    seeds = []
    for table in columns:
        for options in ({"compression": "none"}, {"compression": "zstd", "row_group_size": 2, "use_dictionary": False}):
            out = io.BytesIO()
            parquet.write_table(pa.table(table), out, **options)
            seeds.append(out.getvalue())
    return seeds


READERS = [
    Reader("text-lines", read_text, text_seeds, changed, 500),
    Reader("parquet-rows", read_parquet, parquet_seeds, mutations.raw, 300),
]
