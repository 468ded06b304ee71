"""A user's model on this rank: whole, or in stages once the first call has shown its arguments."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import nn

from algorun_smdistributed.replicas.uneven import UnevenReplicas
from algorun_smdistributed.replicas.whole_model import WholeModel
from algorun_train.common.errors import UserError
from algorun_train.parallel.model import recompute
from algorun_train.parallel.run.gradient_sum import Hook

from .fit import AGAIN, PLAN, Fit, fit
from .model_call import ModelCall
from .model_ranks import ModelRanks
from .pipelines import CutPlan, StageSetting
from .staged_model import Loss, StagedModel


class PlacedModel:
    """Made, and stepped, on all ranks. With one stage it is placed by `place`, otherwise by the first step."""

    NOT_YET = "the model has no stages yet; allowed: after its first step; fix: ask later"
    """the error of what needs this rank's part before there is one"""

    def __init__(
        self,
        ranks: ModelRanks,
        module: nn.Module,
        setting: StageSetting,
        plan: Callable[[ModelCall], CutPlan],
        average: bool = True,
    ) -> None:
        """`plan` cuts the module, which is on the CPU then, for a call of rank 0's; on all ranks of the job.

        `average`: gradients are the mean over the microbatches instead of their sum.
        """
        self.ranks, self.module, self._setting, self._plan = ranks, module, setting, plan
        self.scale = 1 / ranks.layout.microbatches if average else 1.0
        """of each microbatch's loss"""
        self.part: WholeModel | StagedModel | None = None
        self.steps = 0
        """of training, through stages"""
        self.before_first_pass: OrderedDict[int, Callable[[], object]] = OrderedDict()
        self.gradient_hook: Hook | None = None
        self._uneven: UnevenReplicas | None = None

    def place(self) -> None:
        """With one stage, the model is this rank's part."""
        if self.ranks.layout.grid.pp == 1:
            self.part = self._make_whole()
            recompute.in_place(self.module)
            self.ranks.partition.happens()

    def _make_whole(self) -> WholeModel:
        return WholeModel(self.module, self.ranks.axes, self._setting.replicas)

    @property
    def staged(self) -> StagedModel | None:
        """This rank's stages, once the model is cut into several."""
        return self.part if isinstance(self.part, StagedModel) else None

    @property
    def whole(self) -> WholeModel | None:
        """All of the model, with one stage."""
        return self.part if isinstance(self.part, WholeModel) else None

    @property
    def is_last(self) -> bool:
        """Whether this rank has the last stage."""
        return self.ranks.axes.pp_rank == self.ranks.layout.grid.pp - 1

    def there(self) -> WholeModel | StagedModel:
        """This rank's part. UserError as long as it has none."""
        if self.part is None:
            raise UserError(self.NOT_YET)
        return self.part

    def first_pass(self) -> None:
        """Before every pass: at the first one, calls what waits for it."""
        while self.before_first_pass:
            self.before_first_pass.popitem(last=False)[1]()

    # -- replicas -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def uneven(self, uneven: UnevenReplicas) -> Iterator[None]:
        """Inside, replicas may be without a batch. In the end all have the same weights."""
        self._uneven = uneven
        try:
            yield
            part = self.there()
            uneven.follow(lambda what: part.empty(uneven, what))
            part.equalise(uneven.source)
        finally:
            self._uneven = None

    def reduce_by(self, hook: Hook) -> None:
        """`hook` reduces gradients over the replicas in the place of the mean, and averages over microbatches."""
        self.gradient_hook, self.scale = hook, 1.0
        if self.part:
            self.part.hook(hook)

    def before_use(
        self, parameters: Iterable[torch.Tensor], optimizer: torch.optim.Optimizer | None = None, steps: bool = False
    ) -> None:
        """As GradientUse calls it, on all replicas: reduces gradients of passes that no step's end has waited for."""
        whole = self.whole
        if whole is None or not whole.holds(parameters):
            return
        whole.before_use(optimizer, self._uneven)
        if steps and optimizer is not None:
            whole.stepped(optimizer)

    def norm_over_ranks(self, parameters: list[torch.Tensor], order: float) -> torch.Tensor | None:
        """As GradientUse calls it. Where stages share a weight, its copies have to get equal gradients: then all ranks clip
        their own parameters together, by the norm over all."""
        if self.staged is None or not self.staged.of_several_ranks(parameters):
            return None
        return self.staged.pipeline.norm(parameters, order).float()

    # -- steps --------------------------------------------------------------------------------------------------------

    def begin_whole(self) -> WholeModel:
        """Begins a step with one stage; its `end` ends it."""
        whole = self.whole
        assert whole is not None
        self.first_pass()
        if self.module.training and torch.is_grad_enabled():
            whole.begin(self._uneven)
        return whole

    def fits(self, calls: Sequence[ModelCall], trains: bool, plans: bool = True) -> Fit:
        """How this batch goes through the stages; on the rank with the first one. `trains`: it may be training."""
        made = self.staged.signatures if self.staged else ()
        return fit(calls, self.module, made, trains, plans=plans and self._plans())

    def agreed_on_plan(self, how: Fit) -> Fit:
        """A new plan is made by all pipelines, or by none."""
        if self.staged is None or not self._plans():
            return how
        rows = self.ranks.replicas.gathered(how.cut == PLAN, "the first training step")
        return Fit(cut=PLAN) if any(rows) else how

    def _plans(self) -> bool:
        """Whether stages may still be planned: the first step that may train decides, an evaluation before it does not."""
        first = not self.steps and torch.is_grad_enabled() and self._uneven is None
        return self.staged is None or first

    def partition(self, how: Fit, call: ModelCall | None) -> None:
        """Makes this rank's stages, as the fit asks for it: on all ranks of the job, or of this pipeline.

        `call` is that of the rank with the first stage. A plan is made for rank 0's, which may have another signature.
        """
        ranks, staged = self.ranks, self.staged
        if how.cut == AGAIN:
            assert staged is not None
            shared: ModelCall = ranks.steps.share(call, 0, ranks.axes.pp_rank)
            staged.signatures.add(shared.on_cpu())
            return
        if staged:
            staged.gradients.release()
        self.module.to("cpu")  # it is cut there
        example = ranks.comm.from_leader(lambda: call.on_cpu())  # type: ignore[union-attr]
        self.part = StagedModel(self.module, self._plan(example), self._setting)
        if self.gradient_hook:
            self.part.hook(self.gradient_hook)
        ranks.partition.happens()
        self.first_pass()

    def train_step(self, calls: Sequence[ModelCall], loss: Loss, how: Fit) -> None:
        """Forward and backward through the stages, as in StagedModel."""
        assert self.staged is not None
        self.steps += 1
        self.staged.begin(self._uneven)
        self.staged.train_step(calls, loss, self.scale, how)
