"""Documents to tokens, by the tokenizer of a local folder.

A token is an int32. One that does not count as a label is stored as its complement, `~token`, which is negative: the
prompts of a chat, for example.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from algorun_train.common.errors import UserError

from .chat_text import GENERATION, ChatTemplate, Rendered
from .document import BadDocument, Document
from .tokenizer_files import LoadedTokenizer, has_uncovered, load_tokenizer, read_files

__all__ = ["Encoder", "Tokens", "load", "read_files"]

Tokens = NDArray[np.int32]
TOGETHER = 64  # documents that are tokenized in one call, on all cores


@dataclass(frozen=True, slots=True)
class Encoded:
    """The tokens of a text; `inner` is what the library tokenizers has made of it."""

    ids: list[int]
    inner: Any  # Any: the library has no types

    def offsets(self) -> list[tuple[int, int]]:
        """Where each token begins and ends in the text, in characters."""
        return list(self.inner.offsets)


@dataclass(frozen=True, slots=True)
class Encoder:
    """A tokenizer of transformers, whose files are in `folder` on rank 0's host. `end` is the token behind each document;
    `fingerprint` differs for other files."""

    folder: Path
    loaded: LoadedTokenizer
    chats: ChatTemplate

    @property
    def tokenizer(self) -> Any:  # transformers has no types for it
        return self.loaded.tokenizer

    @property
    def end(self) -> int:
        return self.loaded.end

    @property
    def fingerprint(self) -> str:
        return self.loaded.fingerprint

    def encode(
        self, documents: Iterable[Document | BadDocument], notes: Counter[str] | None = None
    ) -> Iterator[Tokens | BadDocument]:
        """The tokens of each document, with `end` behind it. A document that the tokenizer or its chat template refuses is a bad
        document. `notes` counts documents of which something is lost, by what it is. Raises UserError for a chat if there is no
        template, or none that can be read."""
        counted = Counter[str]() if notes is None else notes
        stream = iter(documents)
        while some := list(islice(stream, TOGETHER)):
            good = [each for each in some if isinstance(each, Document)]
            texts = self._texts([each for each in good if not each.messages], counted)
            chats = iter(self._chats([each for each in good if each.messages], counted))
            for document in some:
                if isinstance(document, BadDocument):
                    yield document
                else:
                    yield next(chats if document.messages else texts)

    def _texts(self, documents: Sequence[Document], notes: Counter[str]) -> Iterator[Tokens | BadDocument]:
        encoded = self._encoded(documents, [each.text for each in documents])
        for document, each in zip(documents, encoded, strict=True):
            yield each if isinstance(each, BadDocument) else self._text(document, each, notes)

    def _text(self, document: Document, encoded: Encoded, notes: Counter[str]) -> Tokens:
        row, opening = encoded.ids, self.loaded.opening
        begin = opening if document.begins and row[: len(opening)] != opening else []
        tokens = np.array(begin + row + ([self.end] if document.ends else []), np.int32)
        if (tokens[: len(begin) + len(row)] == self.end).any():
            spelt = f"have {self.tokenizer.eos_token!r} in their text"
            notes[f"{spelt}: it becomes the end of a document, as in transformers"] += 1
        self._note_unknown(tokens, document.text, encoded, notes)
        return tokens

    def _note_unknown(self, tokens: Tokens, text: str, encoded: Encoded, notes: Counter[str]) -> None:
        """Counts a text with characters that the tokenizer does not know."""
        unknown = self.loaded.unknown
        if unknown is not None and (tokens == unknown).any():
            notes[f"have characters that the tokenizer does not know: they become {self.tokenizer.unk_token!r}"] += 1
        if self.loaded.drops and has_uncovered(text, encoded.offsets()):
            notes["have characters that the tokenizer leaves out: it does not know them and has no unk_token"] += 1

    def _encoded(self, documents: Sequence[Document], texts: Sequence[str]) -> list[Encoded | BadDocument]:
        """The tokens of each text, or a bad document."""
        if not texts:
            return []
        try:
            batch = self.tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False)
        except Exception as error:  # the libraries have no class of their own for what they refuse
            if len(texts) > 1:
                pairs = zip(documents, texts, strict=True)
                return [one for document, text in pairs for one in self._encoded([document], [text])]
            return [
                BadDocument(
                    f"{documents[0].where}: the tokenizer of {self.folder} refuses it: {error}; allowed: text that it has "
                    "tokens for; fix: repair the text, or name an unk_token of the vocabulary in tokenizer.json"
                )
            ]
        return [Encoded(ids, inner) for ids, inner in zip(batch["input_ids"], batch.encodings, strict=True)]

    def _chats(self, documents: Sequence[Document], notes: Counter[str]) -> list[Tokens | BadDocument]:
        """The tokens of each chat: of all its texts, each with `end` behind it."""
        found = [self._rendered(document, notes) for document in documents]
        pieces = [(at, piece) for at, each in enumerate(found) if isinstance(each, list) for piece in each]
        encoded = self._encoded([documents[at] for at, _ in pieces], [piece.text for _, piece in pieces])
        results = [np.zeros(0, np.int32) if isinstance(each, list) else each for each in found]
        for (at, piece), each in zip(pieces, encoded, strict=True):
            before = results[at]
            if isinstance(each, BadDocument):
                results[at] = each
            elif not isinstance(before, BadDocument):
                tokens = np.array(each.ids, np.int32)
                self._note_unknown(tokens, piece.text, each, notes)
                labels = _in_answers(each.offsets(), piece.answers)
                answered = not piece.text[piece.answers[-1][1] :].strip()
                results[at] = np.concatenate([before, self._ended(tokens, labels, answered)])
        for result in results:
            if not isinstance(result, BadDocument) and not (result >= 0).any():
                notes["have no token that counts as a label"] += 1
        return results

    def _rendered(self, document: Document, notes: Counter[str]) -> list[Rendered] | Tokens | BadDocument:
        """The texts of a chat; by a template with `{% generation %}` the tokens, as transformers makes and marks them."""
        source = self._template(document)
        try:
            if not GENERATION.search(source):
                return self.chats.rendered(document, notes)
            ids, mask = self.chats.masked(document, notes)
        except Exception as error:  # a template is a program of the tokenizer's author, and may raise anything
            _refuse_broken(error, self.folder)
            return BadDocument(
                f"{document.where}: the chat template of {self.folder} refuses it: {error}; allowed: chats that it can render; "
                "fix: repair the messages, or the template"
            )
        answered = document.messages[-1]["role"] == "assistant"
        return self._ended(np.array(ids, np.int32), np.array(mask, bool), answered)

    def _template(self, document: Document) -> str:
        if not self.tokenizer.chat_template:
            raise UserError(
                f"{document.where} is a chat, but the tokenizer in {self.folder} has no chat template; "
                "allowed: chats with a tokenizer that has one; fix: add chat_template.jinja, or give text"
            )
        try:
            return self.chats.source(document.tools)
        except ValueError as error:
            raise UserError(
                f"the tokenizer in {self.folder} has chat templates, none of them named default: {error}; allowed: one template, "
                "or one named default; fix: add chat_template.jinja"
            ) from None

    def _ended(self, tokens: Tokens, labels: NDArray[np.bool_], answered: bool) -> Tokens:
        """The tokens of a chat's text, with `end` behind them. This counts if the text is `answered`, ends with an answer, and
        the answer has no `end` of its own: else the model would never learn to stop."""
        rows = np.where(labels, tokens, ~tokens)
        if len(tokens) and tokens[-1] == self.end:
            return rows
        counted = np.flatnonzero(labels)
        begins = counted[np.diff(counted, prepend=-2) > 1]  # of answers
        counts = answered and len(begins) > 0 and self.end not in tokens[begins[-1] :]
        return np.append(rows, np.int32(self.end if counts else ~self.end))


def _in_answers(offsets: Sequence[tuple[int, int]], answers: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Which tokens reach into an answer, as transformers counts them: one that begins before it does if it ends in it."""
    spans = np.array(offsets, np.int64).reshape(-1, 2)
    labels = np.zeros(len(spans), bool)
    for begin, end in answers:
        labels |= (spans[:, 1] > begin) & (spans[:, 0] < end)
    return labels


def _refuse_broken(error: Exception, folder: Path) -> None:
    """Raises UserError if the template itself is at fault, not the chat."""
    from jinja2 import TemplateSyntaxError

    if isinstance(error, TemplateSyntaxError):
        raise UserError(
            f"the chat template of {folder} cannot be read: {error.message} in line {error.lineno}; allowed: a template of "
            "Jinja; fix: repair chat_template.jinja, or chat_template in tokenizer_config.json"
        ) from None


def load(folder: Path, files: dict[str, bytes]) -> Encoder:
    """The encoder of the tokenizer in `files`; nothing is downloaded and no code among them runs. Raises UserError, which names
    `folder`."""
    loaded = load_tokenizer(folder, files)
    return Encoder(folder, loaded, ChatTemplate(loaded.tokenizer, loaded.special))
