"""Whether a tokenizer fits the model of its folder."""

import json

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from algorun_train.common.errors import UserError
from algorun_train.models.token_input import read_token_input

WORDS = {"<unk>": 0, "</s>": 1, "the": 2, "cat": 3}
CONFIG = {"model_type": "llama", "vocab_size": 8, "max_position_embeddings": 32}


def write(folder, words, added=()):
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in added])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def test_a_tokenizer_whose_ids_have_an_embedding_is_read(tmp_path):
    write(tmp_path, WORDS, ["<a>", "<b>"])
    assert read_token_input("here", tmp_path, CONFIG).context == 32


@pytest.mark.parametrize(
    ("words", "added", "config", "said"),
    [
        (WORDS | {"tree": 900}, (), CONFIG, "has 5 tokens and gives 'tree' the id 900, the model has 8 by vocab_size"),
        (WORDS | {"tree": 8}, (), CONFIG, "gives 'tree' the id 8"),
        (WORDS, [f"<{n}>" for n in range(5)], CONFIG, "has 9 tokens and gives '<4>' the id 8"),
        (WORDS | {"a": 4, "b": 5, "c": 6, "d": 7}, ["[PAD]"], CONFIG, "gives '[PAD]' the id 8"),
        (WORDS | {"tree": 32000}, (), {"model_type": "llama"}, "the model has 32000 by vocab_size"),
    ],
)
def test_a_token_without_an_embedding_is_named(tmp_path, words, added, config, said):
    write(tmp_path, words, added)
    with pytest.raises(UserError) as error:
        read_token_input("here", tmp_path, config)
    for word in (f"here: the tokenizer {said}" if said.startswith("has") else said, "allowed: ids below", "fix: "):
        assert word in str(error.value)


def test_a_folder_without_tokenizer_json_names_the_file_that_it_can_be_made_of(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(
        UserError, match=r"no tokenizer; allowed: tokenizer\.json beside the model; fix: .*which reads tokenizer\.model"
    ):
        read_token_input("here", tmp_path, CONFIG)
