"""Tokenizers of any kind: the tokens of a text are those of AutoTokenizer on the same folder, what is lost is said."""

import json
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from algorun_train.common.errors import UserError
from algorun_train.data import token_data, token_encoding
from algorun_train.data.document import BadDocument, Document
from algorun_train.data.tokenizer_files import read_files
from algorun_train.options.folders import Folders
from tests.train.data.chat_templates import CHATML, WORDS, library_tokenizer, plain, write_tokenizer
from tests.train.data.test_tokens import ALONE

SPECIAL = ["<unk>", "<s>", "</s>"]


@dataclass(frozen=True)
class Context:
    context: int | None = 8
    skip_bad_samples: bool = False


def encoder(folder):
    return token_encoding.load(folder, token_encoding.read_files(folder))


def tokens(encoder, text, notes=None, **more):
    (found,) = encoder.encode([Document("here", text, **more)], notes)
    return found


def auto(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


@cache
def of_kind(kind):
    """A tokenizer of the library: each kind of its models, with the pre-tokenizer and decoder that it is used with."""
    if kind in ("bytes", "fallback"):
        return library_tokenizer(kind)
    made = {
        "WordPiece": lambda: (models.WordPiece(unk_token="<unk>"), trainers.WordPieceTrainer),
        "Unigram": lambda: (models.Unigram(), trainers.UnigramTrainer),
        "WordLevel": lambda: (models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer),
    }
    model, trainer = made[kind]()
    tokenizer, more = Tokenizer(model), {"unk_token": "<unk>"} if kind == "Unigram" else {}
    if kind == "WordPiece":
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
    elif kind == "Unigram":
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        [WORDS] * 3, trainer(vocab_size=60, special_tokens=SPECIAL, show_progress=False, **more)
    )
    return tokenizer


@cache
def encoder_of_kind(kind):
    with tempfile.TemporaryDirectory() as place:
        folder = write_tokenizer(Path(place))
        of_kind(kind).save(str(folder / "tokenizer.json"))
        return encoder(folder), auto(folder)


@pytest.mark.parametrize("kind", ["bytes", "fallback", "WordPiece", "Unigram", "WordLevel"])
@given(
    text=st.one_of(
        st.lists(
            st.sampled_from([*WORDS.split(" "), "é", "e\u0301", "  ", "\r\n", "\U0001f389", "</s>", "\x00", "ﬁ"])
        ).map("".join),
        st.text(st.characters(blacklist_categories=["Cs"])),
    )
)
def test_tokens_are_those_of_auto_tokenizer_and_an_end(kind, text):
    ours, theirs = encoder_of_kind(kind)
    expected = theirs(text, add_special_tokens=False)["input_ids"] + [theirs.eos_token_id]
    assert tokens(ours, text).tolist() == expected


def test_truncation_and_padding_that_tokenizer_json_stores_cut_no_document(tmp_path):
    folder = write_tokenizer(tmp_path, plain(CHATML), model_max_length=4)
    stored = Tokenizer.from_file(str(folder / "tokenizer.json"))
    whole = stored.encode(WORDS * 40, add_special_tokens=False).ids
    stored.enable_truncation(5)
    stored.enable_padding(length=7)
    stored.save(str(folder / "tokenizer.json"))
    ours = encoder(folder)
    assert tokens(ours, WORDS * 40).tolist() == [*whole, ours.end]
    assert tokens(ours, "the").tolist() == [*stored.encode("the", add_special_tokens=False).ids[:1], ours.end]
    messages = ({"role": "user", "content": WORDS * 9}, {"role": "assistant", "content": WORDS * 9})
    (found,) = ours.encode([Document("here", messages=messages)])
    assert (found >= 0).sum() > len(whole) / 40 * 9


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gpt_neox", "gemma", "mistral"])
def test_the_config_chooses_the_tokenizer_s_class_as_in_transformers(tmp_path, model_type, capsys):
    folder = write_tokenizer(tmp_path, kind="fallback")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({k: v for k, v in settings.items() if k != "tokenizer_class"})
    )
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    ours, theirs = encoder(folder), auto(folder)
    assert tokens(ours, WORDS).tolist() == [*theirs(WORDS, add_special_tokens=False)["input_ids"], theirs.eos_token_id]
    alone = library_tokenizer("fallback").encode(WORDS, add_special_tokens=False).ids
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a.txt").write_text(WORDS * 20)
    tempfile.tempdir = str(tmp_path)
    try:
        token_data.load(Context(), Folders(tmp_path / "t", None, *[Path("x")] * 3), ALONE, folder)
    finally:
        tempfile.tempdir = None
    said = "than tokenizer.json alone" in capsys.readouterr().out
    assert said == (tokens(ours, WORDS).tolist()[:-1] != alone) == (model_type not in ("llama", "mistral"))


@pytest.mark.parametrize("config", [b"[" * 100_000, b"5", b"{"], ids=["deep", "number", "cut"])
def test_a_damaged_config_is_left_to_whoever_needs_the_rest_of_it(tmp_path, config):
    folder = write_tokenizer(tmp_path, kind="fallback")
    (folder / "config.json").write_bytes(config)
    assert "config.json" not in read_files(folder)


def with_bos(folder):
    """Makes the tokenizer of a folder put its bos_token before a text."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_a_bos_token_stands_before_a_text_if_the_tokenizer_puts_it_there(tmp_path):
    silent, opening = encoder(write_tokenizer(tmp_path / "a")), encoder(with_bos(write_tokenizer(tmp_path / "b")))
    the = library_tokenizer("bytes").encode("the").ids
    assert tokens(silent, "the").tolist() == [*the, 2]  # SmolLM2's bos_token is <|im_start|>, which begins no text
    assert tokens(opening, "the").tolist() == [1, *the, 2]
    assert tokens(opening, "<s>the").tolist() == [1, *the, 2]
    assert tokens(opening, "the", begins=False, ends=False).tolist() == the
    chat = encoder(with_bos(write_tokenizer(tmp_path / "c", "{{ bos_token }}" + plain(CHATML))))
    (found,) = chat.encode([Document("here", messages=({"role": "assistant", "content": "the"},))])
    assert [token if token >= 0 else ~token for token in found.tolist()].count(1) == 1


def test_a_bos_token_that_is_the_eos_token_stands_once_between_documents(tmp_path):
    folder = write_tokenizer(tmp_path, bos_token="</s>")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 2)])
    tokenizer.save(str(folder / "tokenizer.json"))
    assert tokens(encoder(folder), "the").tolist().count(2) == 1


def test_an_eos_token_that_tokenizer_json_does_not_have_is_refused(tmp_path):
    with pytest.raises(
        UserError, match=r"eos_token '<\|end\|>', which tokenizer.json does not have: .* allowed: .*; fix: name the"
    ):
        encoder(write_tokenizer(tmp_path, eos_token="<|end|>"))


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json"])
def test_a_folder_with_files_of_a_slow_tokenizer_alone_names_the_call_that_converts_it(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(
        UserError, match=r"has no tokenizer; allowed: .*; fix: AutoTokenizer.from_pretrained\(FOLDER\)\.save_pretrained"
    ):
        token_encoding.read_files(tmp_path)


def test_a_tokenizer_without_a_fast_version_is_refused(tmp_path):
    folder = write_tokenizer(tmp_path, tokenizer_class="ByT5Tokenizer")
    with pytest.raises(UserError, match=r"is a ByT5Tokenizer, which has no fast version; allowed: .*fix: "):
        encoder(folder)


def without_unk(folder, kind):
    """A tokenizer that knows a few words or letters, and has no token for others."""
    vocabulary = (
        {"</s>": 0, "the": 1, "cat": 2}
        if kind == "WordLevel"
        else {"</s>": 0, **{c: i + 1 for i, c in enumerate("thecat")}}
    )
    model = models.WordLevel(vocabulary) if kind == "WordLevel" else models.BPE(vocabulary, [])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_a_word_that_the_tokenizer_has_no_token_for_makes_its_document_bad_and_no_other(tmp_path):
    ours = encoder(without_unk(tmp_path, "WordLevel"))
    documents = [Document("a, line 1", "the cat"), Document("a, line 2", "the dog"), Document("a, line 3", "cat")]
    good, bad, last = ours.encode(documents)
    assert good.tolist() == [1, 2, 0]
    assert last.tolist() == [2, 0]
    assert isinstance(bad, BadDocument)
    assert bad.error.startswith("a, line 2: the tokenizer of")
    assert "Missing [UNK] token" in bad.error
    assert "; fix: repair the text, or name an unk_token" in bad.error


def test_characters_that_a_tokenizer_drops_are_counted(tmp_path):
    ours, notes = encoder(without_unk(tmp_path, "BPE")), Counter()
    assert tokens(ours, "the cat", notes).tolist()[-1] == 0
    assert not notes
    tokens(ours, "the dog", notes)
    assert [note for note in notes if note.startswith("have characters that the tokenizer leaves out")]


def test_unknown_words_are_counted(tmp_path):
    folder = write_tokenizer(tmp_path)
    of_kind("WordLevel").save(str(folder / "tokenizer.json"))
    ours, notes = encoder(folder), Counter()
    tokens(ours, "the cat", notes)
    assert not notes
    tokens(ours, "the dog", notes)
    assert list(notes) == ["have characters that the tokenizer does not know: they become '<unk>'"]


def test_half_of_a_surrogate_pair_makes_a_bad_document(tmp_path):
    good, bad = encoder(write_tokenizer(tmp_path)).encode([Document("1", "the"), Document("2", "the \ud83d cat")])
    assert len(good) > 1
    assert isinstance(bad, BadDocument)


def test_a_job_says_how_many_documents_spell_the_end_also_if_it_finds_the_tokens(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder, train = write_tokenizer(tmp_path / "model"), tmp_path / "t"
    train.mkdir()
    rows = [{"text": WORDS}, {"text": f"the</s>{WORDS}"}, {"text": WORDS}, {"text": f"</s>{WORDS}"}]
    (train / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for _ in range(2):
        token_data.load(Context(), Folders(train, None, *[Path("x")] * 3), ALONE, folder)
        said = "channel 'train': 2 documents have '</s>' in their text: it becomes the end of a document, as in transformers"
        assert said in capsys.readouterr().out
