"""An uncut model of which each rank of a replica has shares: sharded data parallelism, on torch's FSDP2."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from algorun_smdistributed.replicas.part import ReplicaOptions
from algorun_smdistributed.replicas.uneven import UnevenReplicas
from algorun_smdistributed.replicas.whole_model import WholeModel
from algorun_train.common.errors import UserError
from algorun_train.parallel.run.gradient_sum import GradientSum, Hook
from algorun_train.parallel.shard.layer_units import layer_units
from algorun_train.parallel.shard.sharded_model import ShardMesh, shard

from .context import Context

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
NOT_SHARDED = "allowed: without sharded data parallelism; fix: "


class ShardedWhole(WholeModel):
    """The module with this rank's shares as its parameters. A unit's weights are whole only while it computes.

    Each backward pass sums its gradients into the shares, as their mean over all ranks of the job, so nothing is left to
    reduce when they are used.
    """

    def __init__(self, module: nn.Module, context: Context, options: ReplicaOptions) -> None:
        assert context.mesh is not None
        self.mesh: ShardMesh = context.mesh
        self.options = context.mp.sharding
        axes, names = context.axes, {id(each): name for name, each in module.named_parameters()}
        for name, parameter in module.named_parameters():
            if not parameter.dim():
                raise UserError(
                    f"sharded data parallelism: {name} is a single number; allowed: parameters with a dimension; "
                    "fix: give it the shape (1,)"
                )
            if self.options.half and parameter.dtype in HALVES.values():
                parameter.data = parameter.data.float()  # the shares are the master weights
        for tensor in (*module.parameters(), *module.buffers()):
            _as_first(tensor, axes.dp_group, axes.device)
        self._whole = {number: weakref.ref(each) for each in module.parameters() if (number := id(each)) in names}
        self._names = names
        shard(module, layer_units(module), self.mesh, HALVES.get(self.options.half))
        super().__init__(module, axes, options, GradientSum((), None, None, mean=True))
        self._divisor, self._loss_scale = float(axes.grid.dp), 1.0
        for parameter in module.parameters():
            _give_names(parameter)

    # -- parameters ---------------------------------------------------------------------------------------------------

    def share_of(self, parameter: torch.Tensor) -> torch.Tensor:
        """The share of a parameter that an optimizer got before the model was wrapped; any other as it is."""
        known = self._whole.get(id(parameter))
        if known is None or known() is not parameter:
            return parameter
        return self.roots[0].get_parameter(self._names[id(parameter)])

    def holds(self, parameters: Iterable[torch.Tensor]) -> bool:
        return False  # gradients are reduced by the pass that makes them

    def _equalise(self, tensors: Iterable[torch.Tensor], source: int) -> None:
        super()._equalise((tensor for tensor in tensors if not isinstance(tensor, DTensor)), source)

    # -- steps --------------------------------------------------------------------------------------------------------

    @property
    def loss_scale(self) -> float:
        """Of the losses of `counted` passes; gradients of other passes are multiplied by it."""
        return self._loss_scale

    @loss_scale.setter
    def loss_scale(self, scale: float) -> None:
        self._loss_scale = scale
        self._multiply(scale)

    @contextlib.contextmanager
    def scaled(self, scale: float) -> Iterator[None]:
        with self._multiplied(scale * self._loss_scale):
            yield

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        with self._multiplied(1.0):
            yield

    @contextlib.contextmanager
    def _multiplied(self, factor: float) -> Iterator[None]:
        before = self.axes.grid.dp / self._divisor
        self._multiply(factor)
        try:
            yield
        finally:
            self._multiply(before)

    def end(self, backwards: int) -> None:
        """Nothing is left to do."""

    def _multiply(self, factor: float) -> None:
        """The gradients of the next passes."""
        divisor = self.axes.grid.dp / factor
        if divisor == self._divisor:
            return
        self._divisor = divisor
        for module in self.roots[0].modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(divisor)
                # Gloo cannot multiply while it sums.
                module.set_force_sum_reduction_for_comms(self.axes.device.type == "cpu")

    # -- replicas -----------------------------------------------------------------------------------------------------

    def hook(self, hook: Hook) -> None:
        raise UserError(f"register_comm_hook: gradients are sharded; {NOT_SHARDED}leave it out")

    def begin(self, uneven: UnevenReplicas | None) -> None:
        if uneven:
            raise UserError(
                f"model.join: each rank holds shares of the others' weights; {NOT_SHARDED}equally many batches on all ranks"
            )
        super().begin(None)

    def norm(self, parameters: Iterable[torch.Tensor], order: float) -> torch.Tensor:
        """The norm of the whole gradients of shares. On all ranks of a replica, the same on all."""
        gradients = [each.grad for each in parameters if each.grad is not None]
        dtype = torch.float64 if any(each.dtype == torch.float64 for each in gradients) else torch.float32
        norms = [torch.linalg.vector_norm(local(each), order, dtype=dtype) for each in gradients if local(each).numel()]
        zero = torch.zeros((), dtype=dtype, device=self.axes.device)
        own = torch.linalg.vector_norm(torch.stack(norms), order) if norms else zero
        if order == float("inf"):
            dist.all_reduce(own, dist.ReduceOp.MAX, group=self.mesh.group)
            return own
        powers = own**order
        dist.all_reduce(powers, group=self.mesh.group)
        return powers ** (1 / order)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's rows of a share; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def scale_gradients(parameters: Iterable[torch.Tensor], factor: float | torch.Tensor) -> None:
    """Multiplies the gradients of shares in place."""
    for each in parameters:
        if each.grad is not None:
            local(each.grad).mul_(factor)


def _as_first(tensor: torch.Tensor, group: dist.ProcessGroup | None, device: torch.device) -> None:
    """All ranks get the first one's values, one tensor at a time on the device."""
    if group is not None:
        moved = tensor.data.to(device)
        dist.broadcast(moved, group=group, group_src=0)
        tensor.data.copy_(moved)


def _give_names(parameter: torch.Tensor) -> None:
    """What AWS's example scripts read of a share: `ds_shape` of the whole, and `ds_tensor`, the flat rows of this rank, with
    their number `ds_numel`."""
    flat = local(parameter).detach().view(-1)
    names: dict[str, object] = {"ds_shape": parameter.shape, "ds_numel": parameter.numel(), "ds_tensor": flat}
    for name, value in names.items():
        setattr(parameter, name, value)
    flat.ds_numel = flat.numel()  # type: ignore[attr-defined]
