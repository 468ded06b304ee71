"""Parquet files as other programs write them: types of columns, bytes that are no UTF-8, damage, chats with null fields."""

import json
import random

import pytest

from algorun_train.common.errors import UserError
from algorun_train.data import parquet_rows, token_data
from algorun_train.data.token_files import documents
from tests.train.data.documents_of import ANSWER, USER, Bad, check
from tests.train.data.test_text_files import POINTER
from tests.train.data.test_tokens import ALONE, Context, channel, encoder_of, folders, own_folder, trained  # noqa: F401

pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

CHAT = [USER, ANSWER]
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"city": "x"}}}]}


def strings(*values: bytes) -> object:
    """A string column of any bytes, as writers leave it that do not check."""
    column = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(column), column.buffers())


def messages(column: object) -> object:
    return pa.ListArray.from_arrays(pa.array(range(len(column) + 1), pa.int32()), column)


def json_lists(*values: object) -> object:
    """One row: a list of values of the type arrow.json, as datasets writes objects that differ."""
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    return pa.ListArray.from_arrays([0, len(texts)], pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts)))


def answers(*contents: bytes) -> object:
    return messages(
        pa.StructArray.from_arrays([pa.array(["assistant"] * len(contents)), strings(*contents)], ["role", "content"])
    )


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        pytest.param(pa.array(["fox"], pa.large_string()), ["fox"], id="large"),
        pytest.param(pa.array(["fox"], pa.string_view()), ["fox"], id="view"),
        pytest.param(pa.array(["fox", "dog", "fox"]).dictionary_encode(), ["fox", "dog", "fox"], id="dictionary"),
        pytest.param(pa.array([], pa.string()), [], id="no rows"),
        pytest.param(pa.array(["fox", None, ""]), ["fox", Bad("row 2 has text null")], id="null and empty"),
        pytest.param(pa.nulls(1), [Bad("row 1 has text null")], id="nulls alone"),
        pytest.param(pa.array([b"fox", b"\xff"]), ["fox", Bad("row 2 is not UTF-8: invalid start byte at byte 0")], id="binary"),
        pytest.param(strings(b"fox", b"d\xff", b"dog"), ["fox", Bad("row 2 is not UTF-8: invalid start byte at byte 1"), "dog"], id="not UTF-8"),
        pytest.param(pa.array([1]), [Bad("row 1 has text 1; allowed: a string")], id="number"),
        pytest.param(pa.array([["fox"]]), [Bad(r"row 1 has text \[\"fox\"\]")], id="list"),
    ],
)  # fmt: skip
def test_what_a_column_text_may_be(tmp_path, column, expected):
    pq.write_table(pa.table({"text": column, "__index_level_0__": pa.nulls(len(column))}), tmp_path / "a.parquet")
    check(tmp_path / "a.parquet", expected)


MAPS = pa.array([[[("role", "assistant"), ("content", "dog")]]], pa.list_(pa.map_(pa.string(), pa.string())))
OF_JSON = json_lists(USER, CALL)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        pytest.param(pa.array([CHAT]), [CHAT], id="structs"),
        pytest.param(pa.array([[USER, CALL, {"role": "tool", "content": "y", "id": "1"}]]), [[USER, CALL, {"role": "tool", "content": "y", "id": "1"}]], id="null fields"),
        pytest.param(pa.array([json.dumps(CHAT)]), [CHAT], id="JSON in a string"),
        pytest.param(OF_JSON, [[USER, CALL]], id="arrow.json"),
        pytest.param(json_lists("{"), [Bad("row 1 is damaged: Expecting property name")], id="arrow.json, no JSON"),
        pytest.param(json_lists({"role": "\ud83d"}), [Bad(r"row 1 has \\ud83d behind")], id="arrow.json, surrogate"),
        pytest.param(MAPS, [[ANSWER]], id="maps"),
        pytest.param(answers(b"dog", b"d\xff", b"fox"), [[ANSWER], Bad("row 2 is not UTF-8"), [{**ANSWER, "content": "fox"}]], id="not UTF-8"),
        pytest.param(messages(pa.array([{"role": b"assistant", "content": b"dog"}])), [[ANSWER]], id="binary"),
        pytest.param(pa.array([[{"from": "human", "value": "x"}]]), [Bad("row 1 has message 1 without role, only 'from', 'value'")], id="sharegpt"),
    ],
)  # fmt: skip
def test_what_a_column_messages_may_be(tmp_path, column, expected):
    pq.write_table(pa.table({"messages": column}), tmp_path / "a.parquet")
    check(tmp_path / "a.parquet", expected)


def test_each_tool_has_its_own_keys_alone(tmp_path):
    """A column has one type: null in each struct, or JSON, where the tools differ."""
    names = ("city", "content")  # a message may have a content of null, an argument of this name may not
    tools = [{"name": name, "parameters": {"properties": {name: {"type": "string"}}}} for name in names]
    for column in (
        pa.array([tools]),
        pa.array([json.dumps(tools)]),
        json_lists(*tools),
    ):
        pq.write_table(pa.table({"messages": [CHAT], "tools": column}), tmp_path / "a.parquet")
        (chat,) = documents(tmp_path / "a.parquet")
        assert list(chat.tools) == tools


def test_each_call_of_a_tool_has_its_own_arguments_alone(tmp_path):
    calls = [{"function": {"name": "f", "arguments": {name: "x"}}} for name in ("city", "content")]
    chat = [USER, {"role": "assistant", "content": None, "tool_calls": calls}]
    pq.write_table(pa.table({"messages": pa.array([chat])}), tmp_path / "a.parquet")
    check(tmp_path / "a.parquet", [chat])


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (
            {"Text": ["fox"]},
            "has no column text or messages, only 'Text'; allowed: a column text or messages; fix: rename",
        ),
        ({"text": ["fox"], "messages": [CHAT]}, None),
    ],
)
def test_the_columns_are_named(tmp_path, table, expected):
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    check(tmp_path / "a.parquet", [Bad(expected)] if expected else [CHAT])
    twice = pa.table([pa.array(["fox"]), pa.array(["dog"])], names=["text", "text"])
    pq.write_table(twice, tmp_path / "b.parquet")
    check(tmp_path / "b.parquet", [Bad("has 2 columns text; allowed: one")])


def damaged_group(path, offset=0):
    """Four row groups of ten; a page of the third one is no data from byte `offset` on. Its checksum is that of the data."""
    draw = random.Random(0)
    words = ["".join(draw.choices("fox and dog", k=2000)) for _ in range(40)]
    pq.write_table(
        pa.table({"text": words}),
        path,
        row_group_size=10,
        write_page_checksum=True,
        use_dictionary=False,
        compression="none",
    )
    at = pq.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset + offset
    content = bytearray(path.read_bytes())
    content[at : at + 50] = b"x" * 50
    path.write_bytes(content)
    return words


def test_a_page_that_does_not_fit_its_checksum_is_damaged(tmp_path):
    """Text in the middle of a page decodes to other text, unless its checksum is looked at."""
    words = damaged_group(tmp_path / "a.parquet", offset=9000)
    check(tmp_path / "a.parquet", [*words[:20], Bad("rows 21 to 30 are damaged: .*CRC checksum", 10), *words[30:]])


def test_of_a_damaged_row_group_the_other_rows_count(tmp_path, trained, capsys):  # noqa: F811
    train = channel(tmp_path / "t", {})
    words = damaged_group(train / "a.parquet")
    check(train / "a.parquet", [*words[:20], Bad("rows 21 to 30 are damaged: ", 10), *words[30:]])
    with pytest.raises(UserError, match=r"rows 21 to 30 are damaged: .*or leave it out by --skip-bad-samples"):
        token_data.load(Context(64), folders(train), ALONE, trained)
    data = token_data.load(Context(64, True), folders(train, train), ALONE, trained)
    assert encoder_of(trained).tokenizer.decode(data.train.tokens).count("</s>") == 30
    said = capsys.readouterr().out
    assert "skipped: 10 documents of channel 'train' do not count" in said
    assert f"skipped: {train}/a.parquet, rows 21 to 30 are damaged" in said


def whole_file(path):
    pq.write_table(pa.table({"text": ["fox " * 99] * 9}), path)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        pytest.param(lambda content: content[:-20], "is damaged: Parquet magic bytes not found", id="cut"),
        pytest.param(lambda content: b"", "is damaged: Parquet file size is 0 bytes", id="empty"),
        pytest.param(lambda content: POINTER, "is a pointer of Git LFS, not the file itself", id="lfs"),
        pytest.param(
            lambda content: content.replace(b"text", b"\xff\xff\xff\xff"), "is damaged: ", id="name of a column"
        ),
    ],
)
def test_a_file_that_cannot_be_opened_is_one_bad_document(tmp_path, spoil, error):
    (tmp_path / "a.parquet").write_bytes(spoil(whole_file(tmp_path / "a.parquet")))
    check(tmp_path / "a.parquet", [Bad(error)])


def test_an_encrypted_file_is_named(tmp_path):
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):
        def wrap_key(self, key_bytes, master_key_identifier):
            return key_bytes.hex()

        def unwrap_key(self, wrapped_key, master_key_identifier):
            return bytes.fromhex(wrapped_key)

    properties = encryption.CryptoFactory(lambda _: Keys()).file_encryption_properties(
        encryption.KmsConnectionConfig(), encryption.EncryptionConfiguration("footer", column_keys={"column": ["text"]})
    )
    table = pa.table({"text": ["fox"]})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    check(tmp_path / "a.parquet", [Bad("is damaged: Could not read encrypted metadata, no decryption found")])


def test_few_rows_become_python_objects_at_once(tmp_path, monkeypatch):
    """A batch of pyarrow's own size holds 65,536 documents."""
    pq.write_table(pa.table({"text": [str(number) for number in range(5000)]}), tmp_path / "a.parquet")
    asked = []
    iter_batches = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile,
        "iter_batches",
        lambda self, size, **given: asked.append(size) or iter_batches(self, size, **given),
    )
    check(tmp_path / "a.parquet", [str(number) for number in range(5000)])
    assert asked == [parquet_rows.TOGETHER]
