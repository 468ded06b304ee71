"""Documents to tokens, by the tokenizer of a local folder.

A token is an int32. One that does not count as a label is stored as its complement, `~token`, which is negative: the
prompts of a chat, for example.
"""

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from algorun_train.common.errors import UserError

from .token_files import BadDocument, Document

Tokens = NDArray[np.int32]
PATTERNS = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "chat_template*",
    "*.model",
)
TOGETHER = 64  # documents that are tokenized in one call, on all cores
ALLOWED = "a folder with tokenizer.json, as save_pretrained of a fast tokenizer writes it"


@dataclass(frozen=True, slots=True)
class Encoder:
    """A tokenizer of transformers, whose files are in `folder` on rank 0's host. `end` is the token behind each document;
    `fingerprint` differs for other files."""

    folder: Path
    tokenizer: Any
    end: int
    fingerprint: str

    def encode(self, documents: Iterable[Document | BadDocument]) -> Iterator[Tokens | BadDocument]:
        """The tokens of each document, with `end` behind it. A chat that the template cannot render is a bad document. Raises
        UserError for a chat if there is no template."""
        stream = iter(documents)
        while some := list(islice(stream, TOGETHER)):
            texts = [each for each in some if isinstance(each, Document) and not each.messages]
            ids = iter(self._texts(texts))
            for document in some:
                if isinstance(document, BadDocument):
                    yield document
                else:
                    yield self._chat(document) if document.messages else next(ids)

    def _texts(self, documents: list[Document]) -> Iterator[Tokens]:
        if not documents:
            return
        rows = self.tokenizer([each.text for each in documents], add_special_tokens=False)["input_ids"]
        for document, row in zip(documents, rows, strict=True):
            first = self.tokenizer.bos_token_id
            begin = [first] if document.begins and first not in (None, self.end) and row[:1] != [first] else []
            yield np.array(begin + row + ([self.end] if document.ends else []), np.int32)

    def _chat(self, document: Document) -> Tokens | BadDocument:
        if not self.tokenizer.chat_template:
            raise UserError(
                f"{document.where} is a chat, but the tokenizer in {self.folder} has no chat template; "
                "allowed: chats with a tokenizer that has one; fix: add chat_template.jinja, or give text"
            )
        try:
            text, spans = self._answers(document)
        except Exception as error:  # a template is a program of the tokenizer's author, and may raise anything
            return BadDocument(
                f"{document.where}: the chat template of {self.folder} refuses it: {error}; fix: repair the messages"
            )
        if spans is None:
            return BadDocument(
                f"{document.where}: the chat template of {self.folder} renders a message in another way when others "
                "follow, so the answers cannot be found; allowed: templates whose text only grows; "
                "fix: another chat_template.jinja, or chats with one answer"
            )
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        tokens, begins = np.array(encoded["input_ids"], np.int32), np.array([at for at, _ in encoded["offset_mapping"]])
        counted = np.zeros(len(tokens), bool)
        for begin, end in spans:
            counted |= (begins >= begin) & (begins < end)
        rows = np.where(counted, tokens, ~tokens)
        return rows if len(tokens) and tokens[-1] == self.end else np.append(rows, np.int32(self.end))

    def _answers(self, document: Document) -> tuple[str, list[tuple[int, int]] | None]:
        """The chat as text, and where the answers begin and end in it: behind the prompt that asks for each of them. None if
        they cannot be found. Raises what the template raises."""
        messages, spans = list(document.messages), []
        text = self._rendered(messages, prompt=False)
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                before = self._rendered(messages[:number], prompt=True) if number else ""
                behind = self._rendered(messages[: number + 1], prompt=False)
                if not (text.startswith(before) and text.startswith(behind)):
                    return text, None
                spans.append((len(before), len(behind)))
        return text, spans

    def _rendered(self, messages: list[dict[str, Any]], prompt: bool) -> str:
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt))


def read_files(folder: Path) -> dict[str, bytes]:
    """The files of the tokenizer in `folder`, by their names. Raises UserError if there is none or one cannot be read."""
    found = {file for pattern in PATTERNS for file in folder.glob(pattern) if file.is_file()}
    if not (folder / "tokenizer.json").is_file():
        raise UserError(f"{folder} has no tokenizer; allowed: {ALLOWED}; fix: copy the tokenizer's files into it")
    try:
        return {file.name: file.read_bytes() for file in sorted(found)}
    except OSError as error:
        raise UserError(f"the tokenizer in {folder} cannot be read: {error}; fix: check its files") from None


def load(folder: Path, files: dict[str, bytes]) -> Encoder:
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
            (Path(place) / name).write_bytes(content)
        try:
            tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # the libraries raise many kinds for damaged files, pyo3's among them
            raise UserError(
                f"the tokenizer in {folder} cannot be loaded: {error}; allowed: {ALLOWED}; fix: copy its files again"
            ) from None
    if tokenizer.eos_token_id is None:
        raise UserError(
            f"the tokenizer in {folder} has no eos_token, which ends each document; "
            "fix: name it in tokenizer_config.json"
        )
    return Encoder(folder, tokenizer, int(tokenizer.eos_token_id), digest.hexdigest())
