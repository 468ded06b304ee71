"""Text as a `Source`: sequences of `context` bytes; at each byte the model predicts the next one."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from algorun_train.common.errors import UserError
from algorun_train.options.folders import Folders
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.device_copies import to_device

from . import corpus
from .batch import IGNORED, Batch
from .sampler import Batching, Epochs, OptimizerStep, Piece, walk, walk_epochs

HELD_OUT = 0.1


@dataclass(frozen=True, slots=True)
class Text:
    """Both splits of text: a `Source` of batches with inputs [B, T] and labels [B, T]. A label is the byte after its input.

    A sample is a sequence: its loss and its accuracy are means over its T bytes. `train` and `validation` are uint8
    [count, T + 1]. `source` says for the log where the text comes from; `checksum` differs for different texts.
    """

    train: torch.Tensor
    validation: torch.Tensor
    source: str
    checksum: str
    device: torch.device

    @property
    def unit(self) -> str:
        return "sequences"

    @property
    def sample_tokens(self) -> int:
        return self.train.shape[1] - 1

    @property
    def train_count(self) -> int:
        return len(self.train)

    @property
    def validation_count(self) -> int:
        return len(self.validation)

    @property
    def validation_weight(self) -> int:
        """One for each sequence: its loss and accuracy are means over its bytes."""
        return self.validation_count

    def training(self, epochs: Epochs, batching: Batching) -> Iterator[tuple[OptimizerStep, tuple[Batch, ...]]]:
        """See `Source`."""
        for step in walk_epochs(self.train_count, epochs, batching):
            yield step, tuple(self._batch(self.train, piece) for piece in step.pieces)

    def evaluation(self, batching: Batching) -> Iterator[Batch]:
        """See `Source`."""
        for step in walk(np.arange(self.validation_count), 0, batching):
            for piece in step.pieces:
                yield self._batch(self.validation, piece)

    def without_inputs(self) -> "Text":
        """See `Source`. Inputs and labels are the same bytes here, so nothing is saved without the inputs."""
        return self

    def _batch(self, split: torch.Tensor, piece: Piece) -> Batch:
        tokens = to_device(split[torch.from_numpy(piece.indices)], self.device).long()
        labels = tokens[
            :, 1:
        ].clone()  # a copy: for a single sequence it could be a view, and the next line would change the inputs
        labels[piece.valid :].fill_(IGNORED)
        return Batch(tokens[:, :-1].contiguous(), labels, piece.valid)


def load(context: int, paths: Folders, comm: Communicator) -> Text:
    """Loads both splits, equal on all ranks, as sequences of `context` bytes that do not overlap.

    Without a validation channel the last tenth of the sequences is held out. Raises UserError, the same on all ranks, if
    a channel cannot be used or is too short.
    """
    if paths.train is None:
        if paths.validation is not None:
            raise UserError("channel 'validation' is given without 'train'; fix: give both, or train alone, or neither")
        text, source = corpus.embedded(comm), "the embedded text, sources of Python's standard library"
    else:
        text, source = corpus.from_channel("train", paths.train, comm), str(paths.train)
    if paths.validation is not None:
        held = corpus.from_channel("validation", paths.validation, comm)
        train = sequences(text.text, context, 1, source)
        validation = sequences(held.text, context, 1, str(paths.validation))
        return Text(train, validation, f"{source} and {paths.validation}", text.checksum + held.checksum, comm.device)
    both = sequences(text.text, context, 2, source)
    kept = len(both) - max(1, round(HELD_OUT * len(both)))
    return Text(both[:kept], both[kept:], f"{source}, a tenth held out for validation", text.checksum, comm.device)


def sequences(text: bytes, context: int, least: int, source: str) -> torch.Tensor:
    """The text as sequences, uint8 [count, context + 1]; a shorter rest at the end is dropped. Raises UserError if there are
    fewer than `least`."""
    size = context + 1
    count = len(text) // size
    if count < least:
        raise UserError(
            f"option --context: {context} needs {least * size} bytes of text, {source} has {len(text)}; "
            f"allowed: at most {max(len(text) // least - 1, 0)}; fix: a smaller --context, or more text"
        )
    return torch.from_numpy(np.frombuffer(text, np.uint8, count * size).reshape(count, size).copy())
