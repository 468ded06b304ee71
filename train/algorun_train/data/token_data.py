"""Tokens as a `Source`: sequences of `context` tokens, packed; at each token the model predicts the next one.

All documents of a channel follow each other in one stream, each with the tokenizer's end behind it. A sample is the
number of a sequence in it: inputs are `context` tokens, labels the same shifted by one. The last sequence is filled
up with labels that do not count, so each token of the channel is the label of exactly one sample.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from algorun_train.common.errors import UserError
from algorun_train.options.folders import Folders
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.device_copies import to_device

from . import token_encoding, token_store
from .batch import IGNORED, Batch
from .sampler import Batching, Epochs, Indices, OptimizerStep, Piece, walk, walk_epochs
from .token_encoding import Tokens
from .token_files import ALLOWED
from .tokenizer_files import difference

HELD_OUT = 0.1
SCANNED = 2**24  # tokens that are looked at together when labels are counted


class ContextOptions(Protocol):
    """The options that text needs."""

    @property
    def context(self) -> int | None: ...

    @property
    def skip_bad_samples(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Sequences:
    """Sequences of one stream: those in `numbers`. `labels` has the counted labels of each, at least one. `end` stands
    before the first token and behind the last one."""

    tokens: Tokens
    numbers: Indices
    labels: Indices
    context: int
    end: int

    def subset(self, begin: int, end: int) -> "Sequences":
        return Sequences(self.tokens, self.numbers[begin:end], self.labels[begin:end], self.context, self.end)

    def read(self, indices: Indices) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels of samples, int64 [samples, context]."""
        inputs = np.full((len(indices), self.context), self.end, np.int64)
        labels = np.full((len(indices), self.context), IGNORED, np.int64)
        for row, number in enumerate(self.numbers[indices].tolist()):
            begin = number * self.context
            after = self.tokens[begin : begin + self.context]
            before = self.tokens[max(begin - 1, 0) : begin + len(after) - 1]
            first = len(after) - len(before)  # 1 for the first sequence, whose first input is `end`
            inputs[row, first : len(after)] = np.where(before < 0, ~before, before)
            labels[row, : len(after)] = np.where(after < 0, IGNORED, after)
        return torch.from_numpy(inputs), torch.from_numpy(labels)


@dataclass(frozen=True, slots=True)
class TokenData:
    """Both splits of tokens: a `Source` of batches with inputs [B, context] and labels [B, context]. `source` says for the
    log where the text comes from; `checksum` differs for other text or another tokenizer."""

    train: Sequences
    validation: Sequences
    source: str
    checksum: str
    device: torch.device

    @property
    def unit(self) -> str:
        return "sequences"

    @property
    def sample_tokens(self) -> int:
        return self.train.context

    @property
    def train_count(self) -> int:
        return len(self.train.numbers)

    @property
    def validation_count(self) -> int:
        return len(self.validation.numbers)

    @property
    def validation_weight(self) -> int:
        return int(self.validation.labels.sum())

    def training(self, epochs: Epochs, batching: Batching) -> Iterator[tuple[OptimizerStep, tuple[Batch, ...]]]:
        """See `Source`."""
        for step in walk_epochs(self.train_count, epochs, batching, self.train.labels):
            yield step, tuple(self._batch(self.train, piece) for piece in step.pieces)

    def evaluation(self, batching: Batching) -> Iterator[Batch]:
        """See `Source`."""
        for step in walk(np.arange(self.validation_count), 0, batching):
            for piece in step.pieces:
                yield self._batch(self.validation, piece)

    def without_inputs(self) -> "TokenData":
        """See `Source`. Inputs and labels are the same tokens here, so nothing is saved without the inputs."""
        return self

    def _batch(self, split: Sequences, piece: Piece) -> Batch:
        inputs, labels = split.read(piece.indices)
        labels[piece.valid :] = IGNORED
        return Batch(to_device(inputs, self.device), to_device(labels, self.device), piece.valid)


def load(options: ContextOptions, folders: Folders, comm: Communicator, tokenizer: Path) -> TokenData:
    """Loads both splits, equal on all ranks, tokenized by the tokenizer in the folder `tokenizer` of rank 0's host.

    Without a validation channel the last tenth of the sequences is held out. Raises UserError, the same on all ranks.
    """
    if folders.train is None:
        raise UserError(
            "a language model needs a channel 'train' of text; "
            f"allowed: {ALLOWED}; fix: --train FOLDER, or SM_CHANNEL_TRAIN"
        )
    context = options.context
    if context is None:
        raise UserError("option --context: needed for text; allowed: 1 or more tokens; fix: --context 1024")
    # Rank 0's tokenizer on every host: with another one the ranks would count other tokens.
    files = comm.from_leader(lambda: token_encoding.read_files(tokenizer))
    encoder = comm.on_all(lambda: token_encoding.load(tokenizer, files))
    if line := comm.from_leader(lambda: difference(tokenizer, files, encoder.loaded)):
        comm.say(line)
    text, entries = token_store.corpus("train", folders.train, encoder, comm, options.skip_bad_samples)
    sums = [encoder.fingerprint, *(entry.sha256 for entry in entries)]
    least = 2 if folders.validation is None else 1
    both = sequences(text, context, encoder.end, least, f"channel 'train' at {folders.train}")
    if folders.validation is not None:
        held_text, held_files = token_store.corpus(
            "validation", folders.validation, encoder, comm, options.skip_bad_samples
        )
        held = sequences(held_text, context, encoder.end, 1, f"channel 'validation' at {folders.validation}")
        sums += [entry.sha256 for entry in held_files]
        return TokenData(both, held, f"{folders.train} and {folders.validation}", _together(sums), comm.device)
    count = len(both.numbers)
    kept = count - max(1, round(HELD_OUT * count))
    source = f"{folders.train}, a tenth held out for validation"
    return TokenData(both.subset(0, kept), both.subset(kept, count), source, _together(sums), comm.device)


def _together(sums: list[str]) -> str:
    """One checksum of many: it stands in every checkpoint, and in the error if another text is given."""
    return hashlib.sha256("".join(sums).encode()).hexdigest()


def sequences(tokens: Tokens, context: int, end: int, least: int, where: str) -> Sequences:
    """All sequences of a stream in which a label counts. Raises UserError if there are fewer than `least`."""
    counts: list[Indices] = []
    together = max(SCANNED // context, 1) * context
    for begin in range(0, len(tokens), together):
        counted = tokens[begin : begin + together] >= 0
        counts.append(np.add.reduceat(counted, np.arange(0, len(counted), context), dtype=np.int64))
    labels = np.concatenate([np.zeros(0, np.int64), *counts])
    numbers = np.flatnonzero(labels)
    if len(numbers) < least:
        held = ", one of them for validation" if least == 2 else ""
        raise UserError(
            f"{where} has {len(tokens)} tokens, {int(labels.sum())} of them labels, in {len(numbers)} sequences of "
            f"--context {context}; allowed: at least {least} sequences{held}; fix: more text, or a smaller --context"
        )
    return Sequences(tokens, numbers, labels[numbers], context, end)
