"""JSON lines as other programs write them: what a line may hold, what is refused by name, compressed files."""

import bz2
import codecs
import gzip
import json
import lzma
import os
import re
import sys

import pytest

from algorun_train.common.errors import UserError
from algorun_train.data import token_data
from algorun_train.data.token_files import documents
from tests.train.data.documents_of import ANSWER, USER, Bad, check, lines
from tests.train.data.test_text_files import POINTER
from tests.train.data.test_tokens import ALONE, Context, channel, encoder_of, folders, own_folder, trained  # noqa: F401

BOM = codecs.BOM_UTF8
FOX, DOG = lines({"text": "fox"}), lines({"text": "dog"})
HALF = r"has \\ud83d behind .*, half of a surrogate pair"
CALL = {"type": "function", "function": {"name": "f", "arguments": {"city": "x"}}}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(BOM + FOX, ["fox"], id="mark"),
        pytest.param(BOM + FOX + BOM + DOG + BOM, ["fox", "dog"], id="marks of files that were joined"),
        pytest.param(FOX.decode().encode("utf-16"), [Bad("is no text in UTF-8: it begins as UTF-16 does")], id="utf-16"),
        pytest.param(POINTER, [Bad("is a pointer of Git LFS")], id="lfs"),
        pytest.param(b'{"text": "fox \\ud83d\\ude00"}', ["fox \U0001f600"], id="surrogate pair"),
        pytest.param(FOX + b'{"text": "fox \\ud83d"}\n' + DOG, ["fox", Bad("line 2 " + HALF), "dog"], id="surrogate"),
        pytest.param(b'{"text": "fox", "id": "\\ud83d"}', ["fox"], id="surrogate in a key that is not read"),
        pytest.param(b'{"text": "a\xed\xa0\xbd"}\n' + DOG, [Bad("line 1 is not UTF-8"), "dog"], id="surrogate as bytes"),
        pytest.param(b'{"text": "a\\u0000b"}', ["a\0b"], id="escaped zero"),
        pytest.param(FOX + b"\0" * 99, ["fox", Bad("line 2 is damaged")], id="zeros at the end"),
        pytest.param('{"text": "a\u2028b\u0085c\u2029"}\n'.encode() + DOG, ["a\u2028b\x85c\u2029", "dog"], id="unicode line ends"),
        pytest.param(b'\r\n{"text": "fox"}\r\n \n{"text": "dog"}', ["fox", "dog"], id="line ends and empty lines"),
        pytest.param(b'{"text": "fox", "x": NaN, "y": -Infinity, "z": 1e999}', ["fox"], id="numbers that JSON has not"),
        pytest.param(b'{"text": "fox", "text": "dog"}\n' + DOG, [Bad("line 1 is damaged: the key 'text' occurs twice"), "dog"], id="twice"),
        pytest.param(b'{"text": "fox", "n": ' + b"9" * 5000 + b"}", [Bad("line 1 is damaged: Exceeds the limit")], id="long number"),
        pytest.param(b'{"text": "fox", "n": ' + b"[" * 10**5 + b"}", [Bad("line 1 is damaged: nested deeper than 200 levels")], id="deep"),
        pytest.param(b'{"text": "fox"}{"text": "dog"}\n', [Bad("line 1 is damaged: Extra data at column 16")], id="no line end"),
        pytest.param(b'[{"text": "fox"},\n{"text": "dog"}]\n', [Bad("line 1 is no JSON object but the beginning of a list.*jq -c '.\\[\\]'")], id="list"),
        pytest.param(b'{\n "text": "fox"\n}\n{\n "text": "dog"\n}\n', [Bad("line 1 is no JSON object but the begin.*jq -c .")], id="indented"),
        pytest.param(FOX + b'["dog"]\n', ["fox", Bad("line 2 is no JSON object")], id="list in a line"),
        pytest.param(lines({"text": None}), [Bad("line 1 has text null; allowed: a string")], id="null"),
        pytest.param(lines({"text": ["a"]}), [Bad(r"line 1 has text \[\"a\"\]; allowed: a string")], id="list as text"),
        pytest.param(lines({"text": ""}, {"text": " "}), [" "], id="empty text"),
        pytest.param(lines({"Text": "fox"}), [Bad("line 1 has neither text nor messages, only 'Text'")], id="other key"),
        pytest.param(
            lines({"conversations": [{"from": "human", "value": "x"}]}), [Bad("line 1 has neither text nor messages, only 'conversations'")], id="sharegpt"
        ),
    ],
)  # fmt: skip
def test_what_a_line_may_hold(tmp_path, content, expected):
    (tmp_path / "a.jsonl").write_bytes(content)
    check(tmp_path / "a.jsonl", expected)


CHAT = [USER, ANSWER]
PARTS = [{"type": "text", "text": "do"}, {"type": "text", "text": "g"}]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param({"messages": CHAT, "text": "no"}, CHAT, id="before text"),
        pytest.param({"messages": None, "text": "fox"}, "fox", id="null"),
        pytest.param({"messages": [], "text": "fox"}, "fox", id="empty with text"),
        pytest.param({"messages": []}, Bad(r"line 1 has messages \[\]; allowed"), id="empty"),
        pytest.param({"messages": json.dumps(CHAT)}, CHAT, id="JSON in a string"),
        pytest.param({"messages": '[{"role": "assistant", "role": "user"}]'}, Bad("line 1 has messages .*fix: repair it"), id="twice"),
        pytest.param({"messages": "fox"}, Bad('line 1 has messages "fox"; .*also as JSON in a string'), id="string"),
        pytest.param({"messages": json.dumps([{**USER, "content": "\ud83d"}])}, Bad("line 1 " + HALF), id="surrogate in a string"),
        pytest.param({"messages": [{**USER, "content": PARTS}, ANSWER]}, [{**USER, "content": "dog"}, ANSWER], id="parts"),
        pytest.param(
            {"messages": [{**USER, "content": [{"type": "image_url", "image_url": "x"}]}, ANSWER]},
            Bad("line 1 has message 1 with the part .*image_url.*allowed: parts of type text"),
            id="image",
        ),
        pytest.param({"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}]}, [USER, {"role": "assistant", "tool_calls": [CALL]}], id="no content"),
        pytest.param({"messages": [USER, {**ANSWER, "content": None}]}, [USER, {**ANSWER, "content": None}], id="null content"),
        pytest.param({"messages": [USER, {**ANSWER, "content": 5}]}, Bad("line 1 has message 2 with content 5; allowed: a string"), id="number"),
        pytest.param({"messages": [USER, {**ANSWER, "weight": 1}]}, [USER, {**ANSWER, "weight": 1}], id="other keys"),
        pytest.param({"messages": [USER, {**ANSWER, "weight": 0}, USER, ANSWER]}, Bad("line 1 has message 2 with weight 0; allowed: 1"), id="weight"),
        pytest.param({"messages": [{"from": "human", "value": "x"}]}, Bad("line 1 has message 1 without role, only 'from', 'value'"), id="sharegpt"),
        pytest.param({"messages": [{"role": None, "content": "x"}]}, Bad("line 1 has message 1 with role null"), id="null role"),
        pytest.param({"messages": ["fox"]}, Bad('line 1 has message 1 "fox"; allowed: an object'), id="strings"),
        pytest.param({"messages": [{"role": "system", "content": "x"}]}, Bad("line 1 has no message of role assistant, only of 'system'"), id="system alone"),
        pytest.param({"messages": [{"role": "\ud83d", "content": "x"}, ANSWER]}, Bad("line 1 " + HALF), id="surrogate in a role"),
        pytest.param({"messages": [USER, {**ANSWER, "x": {"\ud83d": 1}}]}, Bad("line 1 " + HALF), id="surrogate in a key"),
        pytest.param({"messages": CHAT, "tools": [{"name": "\ud83d"}]}, Bad("line 1 " + HALF), id="surrogate in a tool"),
        pytest.param({"messages": CHAT, "tools": {"name": "f"}}, Bad('line 1 has tools {"name": "f"}; allowed: a list'), id="tools, no list"),
        pytest.param({"messages": CHAT, "tools": "f"}, Bad('line 1 has tools "f"; .*also as JSON in a string'), id="tools, no JSON"),
    ],
)  # fmt: skip
def test_what_messages_may_hold(tmp_path, row, expected):
    (tmp_path / "a.jsonl").write_bytes(lines(row))
    check(tmp_path / "a.jsonl", [expected])


@pytest.mark.parametrize("tools", [[{"name": "f", "x": None}], json.dumps([{"name": "f", "x": None}])])
def test_the_tools_of_a_row_come_with_its_chat(tmp_path, tools):
    (tmp_path / "a.jsonl").write_bytes(lines({"messages": CHAT, "tools": tools}, {"messages": CHAT, "tools": None}))
    first, second = documents(tmp_path / "a.jsonl")
    assert (first.tools, second.tools) == (({"name": "f", "x": None},), ())


def zstd(data: bytes) -> bytes:
    return pytest.importorskip("pyarrow").compress(data, "zstd", asbytes=True)


COMPRESSED = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_compressed_lines_are_read_and_damage_leaves_the_file_out(tmp_path, suffix):
    """Members that follow each other are one file: pieces that were compressed apart and joined, as `cat` does."""
    path, compress = tmp_path / f"A.JSONL.{suffix}", COMPRESSED[suffix]
    path.write_bytes(compress(BOM + FOX) + compress(DOG))
    check(path, ["fox", "dog"])
    many = compress(lines(*({"text": f"fox {number}"} for number in range(20_000))))
    path.write_bytes(many[: len(many) * 2 // 3])
    *before, last = documents(path)
    assert last.retracts
    assert last.documents == max(len(before), 1)
    assert f"{path} is damaged behind line {len(before)}: " in last.error
    path.write_bytes(FOX)
    check(
        path,
        [
            Bad(
                "is no .* file: its content is JSON, which is not compressed; allowed: a whole .* file; fix: give it the"
            )
        ],
    )
    path.write_bytes(b"\x00" + FOX)
    check(path, [Bad("is damaged behind line 0: .*; allowed: a whole .* file; fix: copy it again")])


GZIP = gzip.compress(FOX)
OTHER_CONTENT = {
    "gzip under .jsonl": (
        "a.jsonl",
        GZIP,
        r"is no text: its content is gzip; .*; fix: give it that suffix, such as .jsonl.gz",
    ),
    "gzip under .txt": ("a.txt", GZIP, "is no text: its content is gzip"),
    "compressed twice": ("a.jsonl.gz", gzip.compress(GZIP), "is no text: its content is gzip"),
    "not compressed": (
        "a.jsonl.gz",
        FOX,
        "is no .gz file: its content is JSON, which is not compressed; .*; fix: give it the suffix",
    ),
    "xz under .bz2": ("a.jsonl.bz2", lzma.compress(FOX), "is no .bz2 file: its content is xz"),
    "parquet under .jsonl": (
        "a.jsonl",
        b"PAR1\x15\x04\x15\xff",
        "is no text: its content is parquet; .*; fix: give it the suffix .parquet",
    ),
    "zip under .txt": ("a.txt", b"PK\x03\x04\x14\x01", "is no text: its content is zip; .*; fix: unpack it"),
}


@pytest.mark.parametrize("case", OTHER_CONTENT)
def test_a_suffix_that_is_not_that_of_the_content_is_named(tmp_path, case):
    name, content, says = OTHER_CONTENT[case]
    (tmp_path / name).write_bytes(content)
    check(tmp_path / name, [Bad(says)])


@pytest.mark.parametrize("word", [b"BZhou sings", b"PAR1 is a band"])
def test_words_that_begin_as_other_files_do_are_text(tmp_path, word):
    (tmp_path / "a.txt").write_bytes(word)
    check(tmp_path / "a.txt", [word.decode()])


def test_of_a_compressed_file_that_is_damaged_nothing_is_left(tmp_path, trained, capsys):  # noqa: F811
    many = gzip.compress(FOX + b"{\n" + lines(*({"text": f"fox {number}"} for number in range(9000))))
    train = channel(tmp_path / "t", {"a.jsonl": FOX * 9, "b.jsonl.gz": many[:-9], "c.jsonl.gz": gzip.compress(DOG * 9)})
    data = token_data.load(Context(4, True), folders(train, train), ALONE, trained)
    assert encoder_of(trained).tokenizer.decode(data.train.tokens) == "fox</s>" * 9 + "dog</s>" * 9
    said = capsys.readouterr().out
    lines_before = re.search(rf"skipped: {train}/b.jsonl.gz is damaged behind line (8\d+): ", said)
    assert lines_before
    assert f"skipped: {lines_before[1]} documents of channel 'train' do not count" in said
    assert "line 2" not in said  # it is one of them


def test_names_that_no_line_can_hold_are_escaped(tmp_path):
    path = tmp_path / os.fsdecode(b"a\xff\nb.jsonl")
    path.write_bytes(FOX + b"{")
    good, bad = documents(path)
    assert good.where == rf"{tmp_path}/a\udcff\nb.jsonl, line 1"
    assert bad.error.startswith(rf"{tmp_path}/a\udcff\nb.jsonl, line 2 is damaged")


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.parquet"])
def test_what_needs_a_package_says_so(tmp_path, monkeypatch, name):
    (tmp_path / name).write_bytes(FOX)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        UserError, match=rf"{name} needs the package pyarrow, which is not installed; fix: add pyarrow to"
    ):
        list(documents(tmp_path / name))
