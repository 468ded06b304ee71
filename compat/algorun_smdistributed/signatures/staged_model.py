"""A model in stages that is called with any signature, with its replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from algorun_smdistributed.replicas.part import Part
from algorun_train.parallel.model.precision import AUTOCAST
from algorun_train.parallel.run.pipeline import Pipeline
from algorun_train.ranks import device_copies

from .fit import Fit, Stages, in_pieces, whole_of
from .model_call import ModelCall
from .pipelines import CutPlan, PipelinesBySignature, StageSetting

Loss = Callable[[Any, int], torch.Tensor]  # of the model's output, of the user's own type, and a microbatch's number
Use = Callable[[Any, int], Any]  # what is done with the output in evaluation


class StagedModel(Part):
    """This rank's stages of a model. Make it on all ranks of the job at once."""

    def __init__(self, module: nn.Module, plan: CutPlan, setting: StageSetting) -> None:
        """`module` is on the CPU; a stage's own part goes to the device."""
        self._module, self._setting = module, setting
        self.signatures = PipelinesBySignature(module, plan, setting)
        self.pipeline: Pipeline = self.signatures.first.pipeline
        """of the first signature; the others share its weights"""
        roots = [stage.module for stage in self.pipeline.stages.values()]
        super().__init__(roots, self.pipeline.gradients, setting.axes, setting.replicas)
        if not setting.replicas.overlap or setting.replicas.every > 1:
            self.pipeline.overlap(False)
        known = dict(module.named_parameters(remove_duplicate=False))
        self._holders: dict[int, set[int]] = {}
        for rank, names in enumerate(setting.meeting.gathered([name for name, _ in self.named_parameters()], "names")):
            for name in names:
                self._holders.setdefault(id(known[name]), set()).add(rank)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self.pipeline.named_parameters()  # several stages may have one weight

    def of_several_ranks(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether several ranks of the pipeline hold these parameters, which all of them then give."""
        given = {id(each) for each in parameters}
        if len(set().union(*(self._holders.get(each, ()) for each in given))) > 1:
            return True
        # The parameters of a rank without copies: ranks with copies have given theirs, and wait for it.
        return self.pipeline.shared_weights.across_ranks and all(
            id(each) in given for _, each in self.named_parameters()
        )

    def train_step(self, calls: Sequence[ModelCall], loss: Loss, scale: float, how: Fit) -> None:
        """Forward and backward of all microbatches; `calls` are needed with the first stage, `loss` with the last.

        Smaller microbatches are filled up; the loss sees, and gradients come from, their own samples alone.
        """
        with self.signatures.used(how.number, self._module.training) as made:
            made.pipeline.run(
                self._pieces(calls, made, how) or [()] * self._setting.run.microbatches,
                lambda output, number: loss(whole_of([output], how), number),
                scale,
                reduce=self._turn(),
            )

    def evaluate(self, calls: Sequence[ModelCall], use: Use, how: Fit, only: int | None = None) -> list[Any]:
        """use(output, i) for each microbatch, on the rank with the last stage; an empty list elsewhere. No gradients.

        With `only`, for that many microbatches, to see what `use` does: statistics of BatchNorm stay as they are.
        """
        count = only or self._setting.run.microbatches
        with self.signatures.used(how.number, self._module.training and only is None) as made:
            pieces = self._pieces(calls[:count], made, how) or [()] * (count * how.pieces)
            autocast = getattr(torch, how.autocast) if how.autocast else AUTOCAST[self._setting.run.precision]
            outputs = made.pipeline.forward(pieces, lambda output, number: output, autocast)
        if not made.pipeline.is_last:
            return []
        with torch.no_grad():
            return [use(whole_of(outputs[i * how.pieces :][: how.pieces], how), i) for i in range(count)]

    def _pieces(self, calls: Sequence[ModelCall], made: Stages, how: Fit) -> list[tuple[torch.Tensor, ...]]:
        """The tensors of each pass on this rank's device."""
        device = self.axes.device
        each = ([device_copies.to_device(tensor, device) for tensor in call.tensors(self._module)] for call in calls)
        return [piece for tensors in each for piece in in_pieces(tensors, made.signature, how)]
