"""What a language model of a folder reads: whether its tokenizer fits it, and how many tokens it takes at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from algorun_train.common.errors import UserError

from .folder_files import refused

TOKENIZER = "tokenizer.json"
# Files of tokenizers without tokenizer.json; transformers can make one of them.
SLOW = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True, slots=True)
class TokenInput:
    """What a language model reads: at most `context` tokens at once (None: as many as fit in memory)."""

    context: int | None


def read_token_input(where: str, path: Path, config: Mapping[str, Any]) -> TokenInput:
    """What the model in the folder `path` reads, by its `config`. Raises UserError, which begins with `where`, if the tokenizer
    cannot be read or has a token that the model has no embedding for."""
    from transformers import AutoConfig, AutoTokenizer

    if not (path / TOKENIZER).exists():
        raise UserError(
            f"{where}: no tokenizer; allowed: {TOKENIZER} beside the model; fix: save the tokenizer with "
            f"{remedy(path)} to the same folder"
        )
    with refused(f"{where}: the tokenizer cannot be read"):
        # The largest id counts, not the number of tokens: the ids of some tokenizers have gaps.
        try:
            words = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False).get_vocab()
        except Exception:  # it reads config.json as well
            with refused(f"{where}: config.json cannot be used"):
                AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
            raise
    token, largest = max(words.items(), key=lambda word: word[1], default=("", -1))
    rows = _rows(config)
    if rows is not None and largest >= rows:
        raise UserError(
            f"{where}: the tokenizer has {len(words)} tokens and gives {token!r} the id {largest}, the model has {rows} by "
            f"vocab_size in config.json; allowed: ids below {rows}; fix: save the model with its own tokenizer, or resize "
            "the model with resize_token_embeddings"
        )
    lengths = (config.get(name) for name in ("max_position_embeddings", "n_positions"))
    return TokenInput(next((length for length in lengths if type(length) is int and length > 0), None))


def remedy(path: Path) -> str:
    """The call that writes tokenizer.json for the folder `path`, as far as its files tell."""
    found = next((name for name in SLOW if (path / name).exists()), None)
    return f"AutoTokenizer.from_pretrained(..).save_pretrained(..){f', which reads {found},' if found else ''}"


def _rows(config: Mapping[str, Any]) -> int | None:
    """How many tokens have an embedding: by the file, or by the default of the model's class in transformers."""
    given = config.get("vocab_size")
    if given is None:
        from transformers import CONFIG_MAPPING

        with refused("config.json"):
            kind = CONFIG_MAPPING[str(config.get("model_type"))]
            given = getattr(kind.from_dict(dict(config)).get_text_config(), "vocab_size", None)
    return given if type(given) is int else None
