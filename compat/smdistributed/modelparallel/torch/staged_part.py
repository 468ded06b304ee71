"""Several partitions: the stages of this rank's place in the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from algorun_train.ranks import device_copies
from smdistributed.script_types import Given, Result

from .entry import Entry
from .fitting import Fit, in_pieces, whole_of
from .forms import Forms, autocast_of
from .messages import CPU, gathered
from .parts import Part
from .session import Session

if TYPE_CHECKING:
    from algorun_train.parallel.run.pipeline import Pipeline


Use = Callable[[Given, int], Given]


class StagedPart(Part):
    """Several partitions: this rank's stages. Made at the first step, on all ranks at once."""

    def __init__(
        self, here: Session, module: nn.Module, example: Entry, every: int, overlap: bool, buffers_too: bool
    ) -> None:
        module.to("cpu")  # it is cut there; a stage's own part goes to the device
        # Tried with the whole model, before the weights of all stages go different ways.
        self.forms = Forms(here, module, example)
        self.pipeline: Pipeline = self.forms.first.pipeline
        roots = [stage.module for stage in self.pipeline.stages.values()]
        super().__init__(here, module, roots, self.pipeline.gradients, every, buffers_too)
        if not overlap or every > 1:
            self.pipeline.overlap(False)
        known = dict(module.named_parameters(remove_duplicate=False))
        rows = gathered([name for name, _ in self.named_parameters()], here.axes.pp_group, CPU)
        self._holders: dict[int, set[int]] = {}
        for rank, names in enumerate(rows):
            for name in names:
                self._holders.setdefault(id(known[name]), set()).add(rank)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self.pipeline.named_parameters()  # several stages may have one weight

    def of_several_ranks(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether several ranks of the pipeline hold these parameters, which all of them then give."""
        given = {id(each) for each in parameters}
        if len(set().union(*(self._holders.get(each, ()) for each in given))) > 1:
            return True
        # local_parameters() of a rank without copies: those with copies have given theirs, and wait for it.
        return self.pipeline.shared_weights.across_ranks and all(
            id(each) in given for _, each in self.named_parameters()
        )

    def train_step(
        self, entries: Sequence[Entry], loss: Callable[[Given, int], torch.Tensor], scale: float, how: Fit
    ) -> None:
        """Forward and backward of all microbatches; `entries` are needed with the first stage, `loss` with the last.

        Smaller microbatches are filled up; the loss sees, and gradients come from, their own samples alone.
        """
        with self.forms.used(how.form, self._module.training) as made:
            parts = [in_pieces(self._tensors(entry), made.form, how)[0] for entry in entries]
            made.pipeline.run(
                parts or [()] * self._here.layout.microbatches,
                lambda output, number: loss(whole_of([output], how), number),
                scale,
                reduce=self._turns.now(),
            )

    def evaluate(self, entries: Sequence[Entry], use: Use, how: Fit, only: int | None = None) -> list[Result]:
        """use(output, microbatch) for all microbatches, on the rank with the last stage.

        For the first `only` of them where it is just to see what `use` does: statistics of BatchNorm stay as they are.
        """
        count = only or self._here.layout.microbatches
        with self.forms.used(how.form, self._module.training and only is None) as made:
            pieces: list[Given] = [()] * (count * how.pieces)
            if entries:
                pieces = [piece for e in entries[:count] for piece in in_pieces(self._tensors(e), made.form, how)]
            outputs = made.pipeline.forward(
                pieces, lambda output, number: output, autocast_of(self._here, how.autocast)
            )
        if not made.pipeline.is_last:
            return []
        with torch.no_grad():
            return [use(whole_of(outputs[i * how.pieces :][: how.pieces], how), i) for i in range(count)]

    def _tensors(self, entry: Entry) -> tuple[torch.Tensor, ...]:
        return tuple(device_copies.to_device(each, self._here.axes.device) for each in entry.tensors(self._module))
