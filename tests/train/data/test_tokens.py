"""Text by a tokenizer: each token is a label once, whatever the layout; chats, hosts with different files, bad input."""

import json
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from algorun_train.common.errors import UserError
from algorun_train.data import token_data, token_encoding, token_files, token_store
from algorun_train.data.batch import IGNORED
from algorun_train.data.sampler import Batching, Epochs
from algorun_train.options.folders import Folders
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.world import World
from tests.train.thread_communicator import as_ranks

CPU = torch.device("cpu")
ALONE = Communicator(World(), CPU)
TEXT = "the quick brown fox jumps over the lazy dog. été\n"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
CHAT = [
    {"role": "user", "content": "the fox?"},
    {"role": "assistant", "content": "over the dog"},
    {"role": "user", "content": "quick?"},
    {"role": "assistant", "content": "lazy."},
]


@dataclass(frozen=True)
class Context:
    context: int | None
    skip_bad_samples: bool = False


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A byte-level BPE, trained here, as save_pretrained writes it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=300, special_tokens=["</s>"], initial_alphabet=alphabet)
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def folders(train, validation=None):
    return Folders(train, validation, Path("c"), Path("m"), Path("o"))


def channel(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def encoder_of(folder):
    return token_encoding.load(folder, token_encoding.read_files(folder))


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def stream(count, masked=(), context=4):
    """Tokens 0 .. count - 1, of which some are no labels."""
    tokens = np.arange(count, dtype=np.int32)
    tokens[list(masked)] = ~tokens[list(masked)]
    return token_data.sequences(tokens, context, 999, 0, "here")


@given(
    st.integers(1, 120),
    st.sets(st.integers(0, 119)),
    st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 4)),
    st.integers(0, 40),
)
def test_each_token_is_a_label_once_from_any_point_on_any_layout(count, masked, sizes, done):
    masked = {at for at in masked if at < count}
    split = stream(count, masked, sizes[0])
    data = token_data.TokenData(split, split, "here", "", CPU)
    _, batch, accumulation, replicas = sizes
    done = min(done, data.train_count)
    before = (
        []
        if not done
        else next(data.training(Epochs(2, 0, 3, 7), Batching(done, 1, 0, 1)))[1][0].labels.flatten().tolist()
    )
    seen = [label for label in before if label != IGNORED]
    ranks = [data.training(Epochs(2, done, 3, 7), Batching(batch, accumulation, r, replicas)) for r in range(replicas)]
    for turns in zip(*ranks, strict=True):
        counted = 0
        for _, batches in turns:
            for each in batches:
                assert each.inputs.shape == each.labels.shape == (batch, sizes[0])
                at = each.labels != IGNORED
                assert (each.inputs[at] == torch.where(each.labels[at] > 0, each.labels[at] - 1, 999)).all()
                counted += int(at.sum())
                seen += each.labels[at].tolist()
        assert {step.weight for step, _ in turns} == {counted}
    assert sorted(seen) == sorted(set(range(count)) - masked)
    held = [
        label
        for r in range(3)
        for each in data.evaluation(Batching(2, 1, r, 3))
        for label in each.labels.flatten().tolist()
    ]
    assert sum(label != IGNORED for label in held) == data.validation_weight == len(seen)


def test_files_become_one_stream_with_an_end_behind_each_document(tmp_path, trained):
    train = channel(
        tmp_path / "t", {"b.txt": TEXT * 3, "a.jsonl": lines({"text": "fox"}, {"text": "dog"}), "empty.txt": ""}
    )
    data = token_data.load(Context(8), folders(train), ALONE, trained)
    encoder = encoder_of(trained)
    assert encoder.tokenizer.decode(data.train.tokens) == f"fox</s>dog</s>{TEXT * 3}</s>"
    assert data.unit == "sequences"
    assert data.validation_count == max(1, round(0.1 * (data.train_count + data.validation_count)))
    other = token_data.load(Context(8), folders(train, train), ALONE, trained)
    assert other.validation_weight == len(data.train.tokens)


def test_a_long_text_is_tokenized_in_pieces_and_no_character_is_lost(tmp_path, trained, monkeypatch):
    monkeypatch.setattr(token_files, "BLOCK", 100)
    train = channel(tmp_path / "t", {"a.txt": TEXT.replace("\n", "\r\n") * 20})
    data = token_data.load(Context(8), folders(train), ALONE, trained)
    text = encoder_of(trained).tokenizer.decode(data.train.tokens)
    assert text == TEXT.replace("\n", "\r\n") * 20 + "</s>"


def test_files_are_tokenized_once_and_again_when_they_change(tmp_path, trained, monkeypatch):
    train, calls = channel(tmp_path / "t", {"a.txt": TEXT * 9}), []
    written = token_store.written
    monkeypatch.setattr(token_store, "written", lambda *given: calls.append(1) or written(*given))
    first = token_data.load(Context(8), folders(train), ALONE, trained)
    assert token_data.load(Context(4), folders(train), ALONE, trained).checksum == first.checksum
    assert len(calls) == 1
    (train / "a.txt").write_text(TEXT * 8)
    assert token_data.load(Context(8), folders(train), ALONE, trained).checksum != first.checksum
    assert len(first.checksum) == 64  # however many files: it stands in every checkpoint
    assert len(calls) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: b"[" * 100_000,
        lambda kept: b"\xff",
        lambda kept: b"[]",
        lambda kept: {**kept, "files": 1},
        lambda kept: {**kept, "files": []},
        lambda kept: {**kept, "files": [[*kept["files"][0][:2], 1.5]]},
        lambda kept: {**kept, "files": [[*kept["files"][0][:2], -1]]},
        lambda kept: {**kept, "files": [["b.txt", *kept["files"][0][1:]]]},
        lambda kept: {**kept, "skipped": [["why", True]]},
        lambda kept: {**kept, "notes": ["a"]},
    ],
    ids=["deep", "no text", "list", "number", "no file", "float", "negative", "other file", "true", "notes"],
)
def test_a_damaged_table_of_tokens_is_made_anew(tmp_path, trained, capsys, change):
    train = channel(tmp_path / "t", {"a.txt": TEXT})
    whole, _ = token_store.corpus("train", train, encoder_of(trained), ALONE)
    (table,) = token_store.folder().glob("*.json")
    changed = change(json.loads(table.read_text()))
    table.write_bytes(changed if isinstance(changed, bytes) else json.dumps(changed).encode())
    again, _ = token_store.corpus("train", train, encoder_of(trained), ALONE)
    assert again.tolist() == whole.tolist()
    assert capsys.readouterr().out.count(f"{table} is damaged") == 1


def test_of_a_chat_only_the_answers_count(tmp_path, trained):
    train = channel(tmp_path / "t", {"a.jsonl": lines({"messages": CHAT})})
    data = token_data.load(Context(16), folders(train, train), ALONE, trained)
    decode = encoder_of(trained).tokenizer.decode
    assert decode(data.train.tokens[data.train.tokens >= 0]) == "over the dog</s>lazy.</s>"
    whole = np.where(data.train.tokens < 0, ~data.train.tokens, data.train.tokens)
    assert decode(whole) == "".join(f"<{m['role']}>{m['content']}</s>" for m in CHAT)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"channel 'train' at .* holds no text; allowed: a folder of \.txt"),
        ({"a.csv": "text"}, r"holds no text"),
        ({"a.txt": ""}, r"has 0 tokens, .* allowed: at least 2 sequences, one of them for validation; fix: more text"),
        ({"a.txt": "fox"}, r"in 1 sequences of --context 8; allowed: at least 2"),
        ({"a.txt": b"\xfftext"}, r"a\.txt is not UTF-8: invalid start byte in line 1, byte 0 of the file"),
        ({"a.jsonl": '{"text": "fox"}\n{"text": '}, r"a\.jsonl, line 2 is damaged"),
        ({"a.jsonl": "[1]\n"}, r"line 1 is no JSON object"),
        ({"a.jsonl": '\n{"txt": "fox"}\n'}, r"line 2 has neither text nor messages"),
        ({"a.jsonl": lines({"messages": CHAT[:1]})}, r"line 1 has no message of role assistant, only of 'user'"),
        ({"a.parquet": b"PAR1"}, r"a\.parquet (needs the package pyarrow|is damaged)"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(tmp_path, trained, files, message):
    train = channel(tmp_path / "t", files)
    with pytest.raises(UserError, match=message):
        token_data.load(Context(8), folders(train), ALONE, trained)


GOOD = {"text": "the fox"}
BAD_LINES = [
    b'{"text": ',
    b"[1]",
    b'{"txt": "fox"}',
    b'{"messages": [{"role": "user", "content": "x"}]}',
    b'{"text": "\xff"}',
]


@pytest.mark.parametrize(
    "bad", [*BAD_LINES, lines({"messages": [*CHAT[:1], {"role": "assistant", "content": 1}]}).encode().strip()]
)
def test_a_bad_line_in_the_middle_is_named_and_left_out_if_asked(tmp_path, trained, capsys, bad):
    """It is found before the first step. Also by a job that finds the token file of an earlier one."""
    if b'"content": 1' in bad:
        template = TEMPLATE.replace("{{ m.content }}", "{{ m.content if m.content is string else 1 / 0 }}")
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "chat_template": template}
        own = {
            "tokenizer.json": (trained / "tokenizer.json").read_bytes(),
            "tokenizer_config.json": json.dumps(settings),
        }
        trained = channel(tmp_path / "own", own)
    middle = lines(GOOD).encode() * 5
    train = channel(tmp_path / "t", {"a.jsonl": middle + bad + b"\n" + middle})
    good = channel(tmp_path / "g", {"a.jsonl": middle * 2})
    whole = token_data.load(Context(8), folders(good), ALONE, trained).train.tokens.tolist()
    for _ in range(2):
        with pytest.raises(UserError, match=r"a\.jsonl, line 6.*fix: .*, or leave it out by --skip-bad-samples"):
            token_data.load(Context(8), folders(train), ALONE, trained)
        data = token_data.load(Context(8, True), folders(train), ALONE, trained)
        assert data.train.tokens.tolist() == whole
        said = capsys.readouterr().out
        assert "skipped: 1 documents of channel 'train' do not count" in said
        assert f"skipped: {train}/a.jsonl, line 6" in said


def test_of_a_text_that_turns_bad_in_the_middle_nothing_is_left(tmp_path, trained, monkeypatch, capsys):
    monkeypatch.setattr(token_files, "BLOCK", 40)
    whole = TEXT * 400
    train = channel(tmp_path / "t", {"a.txt": whole, "b.txt": whole.encode() + b"\xff\xff", "c.txt": whole})
    good = channel(tmp_path / "g", {"a.txt": whole, "c.txt": whole})
    with pytest.raises(UserError, match=r"b\.txt is not UTF-8"):
        token_data.load(Context(8), folders(train), ALONE, trained)
    data = token_data.load(Context(8, True), folders(train), ALONE, trained)
    assert f"skipped: {train}/b.txt is not UTF-8" in capsys.readouterr().out
    assert (
        data.train.tokens.tolist() == token_data.load(Context(8), folders(good), ALONE, trained).train.tokens.tolist()
    )


def test_parquet_is_read_by_its_column_and_refused_without_it(tmp_path, trained):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    train = channel(tmp_path / "t", {})
    parquet.write_table(pyarrow.table({"text": ["fox", "dog"], "n": [1, 2]}), train / "a.parquet")
    data = token_data.load(Context(2), folders(train, train), ALONE, trained)
    assert encoder_of(trained).tokenizer.decode(data.train.tokens) == "fox</s>dog</s>"
    parquet.write_table(pyarrow.table({"body": ["fox"]}), train / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet has no column text or messages, only 'body'"):
        token_data.load(Context(2), folders(train), ALONE, trained)


def test_tokenizers_that_are_missing_or_unfit_are_refused(tmp_path, trained):
    train = channel(tmp_path / "t", {"a.jsonl": lines({"messages": CHAT})})
    with pytest.raises(UserError, match=r"has no tokenizer; allowed: a folder with tokenizer\.json"):
        token_data.load(Context(8), folders(train), ALONE, tmp_path)
    plain = channel(tmp_path / "plain", {"tokenizer.json": (trained / "tokenizer.json").read_bytes()})
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (plain / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="has no eos_token"):
        token_data.load(Context(8), folders(train), ALONE, plain)
    (plain / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": "</s>"}))
    with pytest.raises(UserError, match=r"a\.jsonl, line 1 is a chat, but the tokenizer in .* has no chat template"):
        token_data.load(Context(8), folders(train), ALONE, plain)
    (plain / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"cannot be loaded"):
        token_data.load(Context(8), folders(train), ALONE, plain)
    with pytest.raises(UserError, match="needs a channel 'train'"):
        token_data.load(Context(8), folders(None), ALONE, trained)
    with pytest.raises(UserError, match="--context: needed for text"):
        token_data.load(Context(None), folders(train), ALONE, trained)


def on_hosts(tmp_path, monkeypatch, roots, trained, per_host=2, skip=False):
    """What each rank of `len(roots)` hosts reads; each host has a folder of its own for token files."""
    here = threading.local()
    monkeypatch.setattr(token_store, "folder", lambda: here.place)

    def rank(comm):
        host = comm.rank // per_host
        here.place = tmp_path / f"host{host}-{len(roots)}"
        here.place.mkdir(exist_ok=True)
        comm.world = World(comm.rank, comm.size, comm.rank % per_host, per_host, True)
        data = token_data.load(Context(8, skip), folders(roots[host]), comm, trained)
        return data.checksum, data.train_count, data.train.tokens.tolist()

    return as_ranks(len(roots) * per_host, rank)


def test_hosts_with_different_files_train_on_all_of_them_in_one_order(tmp_path, trained, monkeypatch, capsys):
    files = {name: f"{name} {TEXT}" * 7 for name in ("a.txt", "b.txt", "c.txt", "d.txt")}
    whole = channel(tmp_path / "all", files)
    ranks = [
        channel(tmp_path / "0", {"d.txt": files["d.txt"], "a.txt": files["a.txt"]}),
        channel(tmp_path / "1", {"b.txt": files["b.txt"]}),
        channel(tmp_path / "2", {"c.txt": files["c.txt"], "a.txt": files["a.txt"]}),
    ]
    monkeypatch.setattr(token_store, "PIECE", 50)
    (alone,) = on_hosts(tmp_path, monkeypatch, [whole], trained, 1)
    assert "different files" not in capsys.readouterr().out
    spread = on_hosts(tmp_path, monkeypatch, ranks, trained)
    assert "channel 'train': 3 hosts have different files, 4 together" in capsys.readouterr().out
    assert spread == [alone] * 6
    assert on_hosts(tmp_path, monkeypatch, ranks, trained) == spread
    assert "different files" not in capsys.readouterr().out  # each host has kept the tokens of all


def test_a_damaged_file_on_one_host_is_named_on_all(tmp_path, trained, monkeypatch):
    good = channel(tmp_path / "0", {"a.jsonl": lines({"text": TEXT})})
    bad = channel(tmp_path / "1", {"b.jsonl": '{"text": '})
    with pytest.raises(UserError, match=r"b\.jsonl, line 1 is damaged"):
        on_hosts(tmp_path, monkeypatch, [good, bad], trained)
    assert not list(tmp_path.glob("host*/.*.tokens"))
    assert len(set(map(str, on_hosts(tmp_path, monkeypatch, [good, bad], trained, skip=True)))) == 1
