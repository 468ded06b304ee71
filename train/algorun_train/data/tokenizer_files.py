"""Reads the tokenizer of a local folder, and what a job must know of it."""

import contextlib
import hashlib
import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from algorun_train.common.errors import UserError
from algorun_train.common.json_text import loads

PATTERNS = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "chat_template*",
    "additional_chat_templates/*",
    "*.model",
)
CONFIG = "config.json"
CONFIG_KEYS = ("model_type", "tokenizer_class", "transformers_version", "_name_or_path", "model_name")
TOKENIZER = "tokenizer.json"
ALLOWED = "a folder with tokenizer.json, as save_pretrained of a fast tokenizer writes it"
# Each character from "!" to U+07FF, and some of three and four bytes.
PROBE = "".join(chr(code) for code in range(0x21, 0x800) if chr(code).isprintable()) + "\u2603\u4e2d\ud55c\U0001f9ea"

SENTENCE = "The cat sat  on 123 \u00e9t\u00e9s, \u4e2d\ud55c.\n\tYes\n"


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """A tokenizer of transformers. `end` is the token behind each document; `opening` are those that it puts before a text itself,
    such as its bos_token. `unknown` stands for what it does not know, if it has such a token; `drops`: it has none, and leaves
    out characters. `special` finds its special tokens in a text. `fingerprint` differs for other files."""

    tokenizer: Any  # Any: transformers has no types for it
    end: int
    opening: list[int]
    unknown: int | None
    drops: bool
    special: re.Pattern[str]
    fingerprint: str


def read_files(folder: Path) -> dict[str, bytes]:
    """The files of the tokenizer in `folder`, by their names; of config.json only what transformers chooses a tokenizer's class
    by. Raises UserError if there is no tokenizer or a file cannot be read."""
    found = {file for pattern in PATTERNS for file in folder.glob(pattern) if file.is_file()}
    if not (folder / TOKENIZER).is_file():
        fix = "copy the tokenizer's files into it"
        if any(file.suffix == ".model" or file.name.startswith("vocab") for file in found):
            fix = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes tokenizer.json"
        raise UserError(f"{folder} has no tokenizer; allowed: {ALLOWED}; fix: {fix}")
    try:
        files = {str(file.relative_to(folder)): file.read_bytes() for file in sorted(found)}
    except OSError as error:
        raise UserError(f"the tokenizer in {folder} cannot be read: {error}; fix: check its files") from None
    with contextlib.suppress(OSError, ValueError, TypeError):  # whoever needs the rest of the config refuses it
        config: Any = loads((folder / CONFIG).read_bytes())  # Any: whatever the file holds
        files[CONFIG] = json.dumps({key: config[key] for key in CONFIG_KEYS if key in config}).encode()
    return files


def load_tokenizer(folder: Path, files: dict[str, bytes]) -> LoadedTokenizer:
    """The tokenizer of `files`; nothing is downloaded and no code among them runs. Raises UserError, which names `folder`."""
    try:
        from transformers import AutoTokenizer, __version__
    except ImportError:
        raise UserError(
            f"the tokenizer in {folder} needs the package transformers, which is not installed; "
            "fix: pip install transformers"
        ) from None
    digest = hashlib.sha256(__version__.encode())
    with tempfile.TemporaryDirectory() as place:
        for name, content in files.items():
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
            (Path(place) / name).parent.mkdir(exist_ok=True)
            (Path(place) / name).write_bytes(content)
        try:
            tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # the libraries raise many kinds for damaged files, pyo3's among them
            raise UserError(
                f"the tokenizer in {folder} cannot be loaded: {error}; allowed: {ALLOWED}; fix: copy its files again"
            ) from None
    _refuse_unfit(folder, tokenizer, files[TOKENIZER])
    end, unknown = int(tokenizer.eos_token_id), tokenizer.unk_token_id
    opening = _opening(tokenizer)
    special = sorted(filter(None, tokenizer.all_special_tokens), key=len, reverse=True)
    return LoadedTokenizer(
        tokenizer,
        end,
        opening if opening != [end] else [],  # the end of the document before stands there already
        None if unknown in (None, end) else int(unknown),
        _drops(tokenizer),
        re.compile("|".join(map(re.escape, special)) or "(?!)"),
        digest.hexdigest(),
    )


def difference(folder: Path, files: dict[str, bytes], loaded: LoadedTokenizer) -> str | None:
    """A line for the log if transformers makes other tokens than tokenizer.json alone, which some servers read; None if not. Some
    classes of transformers, which config.json or tokenizer_config.json choose, replace parts of tokenizer.json."""
    from tokenizers import Tokenizer

    alone = Tokenizer.from_str(files[TOKENIZER].decode())
    alone.no_truncation()
    alone.no_padding()
    try:
        own = alone.encode(SENTENCE, add_special_tokens=False).ids
        same = own == loaded.tokenizer(SENTENCE, add_special_tokens=False)["input_ids"]
    except Exception:  # one that refuses what it does not know
        return None
    if same:
        return None
    return (
        f"{folder}: transformers makes other tokens of a text ({type(loaded.tokenizer).__name__}) than tokenizer.json alone; the "
        "job trains on those of transformers; fix: set tokenizer_class to TokenizersBackend if tokenizer.json is right"
    )


def _refuse_unfit(folder: Path, tokenizer: Any, content: bytes) -> None:
    where = f"the tokenizer in {folder}"
    if not tokenizer.is_fast:
        raise UserError(
            f"{where} is a {type(tokenizer).__name__}, which has no fast version; allowed: {ALLOWED}; "
            "fix: save it as PreTrainedTokenizerFast"
        )
    if tokenizer.eos_token_id is None:
        raise UserError(f"{where} has no eos_token, which ends each document; fix: name it in tokenizer_config.json")
    spelt = (json.dumps(tokenizer.eos_token, ensure_ascii=each).encode() for each in (True, False))
    if not any(each in content for each in spelt):
        raise UserError(
            f"{where} has the eos_token {tokenizer.eos_token!r}, which {TOKENIZER} does not have: transformers would make a new "
            f"token of it, {tokenizer.eos_token_id}, that the model has not learned; allowed: a token of {TOKENIZER}; "
            "fix: name the eos_token in tokenizer_config.json as it is there"
        )


def _opening(tokenizer: Any) -> list[int]:
    """The tokens that the tokenizer puts before a text."""
    text = tokenizer.eos_token  # which each tokenizer knows
    plain = tokenizer(text, add_special_tokens=False)["input_ids"]
    whole = tokenizer(text, add_special_tokens=True)["input_ids"]
    starts = [at for at in range(len(whole) - len(plain) + 1) if whole[at : at + len(plain)] == plain]
    return list(whole[: starts[0]]) if plain and starts else []


def _drops(tokenizer: Any) -> bool:
    """Whether the tokenizer leaves out characters that it does not know."""
    try:
        probed = tokenizer([PROBE], add_special_tokens=False)
    except Exception:  # it refuses what it does not know
        return False
    return has_uncovered(PROBE, probed.encodings[0].offsets)


def has_uncovered(text: str, offsets: Sequence[tuple[int, int]]) -> bool:
    """Whether a character of `text`, other than white space, is in no token."""
    steps = np.zeros(len(text) + 1, np.int32)
    for begin, end in offsets:
        steps[begin] += 1
        steps[end] -= 1
    missing = np.flatnonzero(np.cumsum(steps[:-1]) <= 0)
    return any(not text[at].isspace() for at in missing.tolist())
