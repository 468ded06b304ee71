"""Operators that torch has kernels of for GPUs only, made of others: cells of recurrent networks, and SyncBatchNorm.

What nn.LSTM, nn.GRU and nn.SyncBatchNorm call on a GPU. Autograd is torch's own: each forward has its backward here.
"""

from __future__ import annotations

import torch
from torch import Tensor

_registered: list[torch.library.Library] = []


def register() -> None:
    """For tensors on the strict device, once in a process."""
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in (
        ("_thnn_fused_lstm_cell", lstm_cell),
        ("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward),
        ("_thnn_fused_gru_cell", gru_cell),
        ("_thnn_fused_gru_cell_backward", gru_cell_backward),
        ("batch_norm_stats", batch_norm_stats),
        ("batch_norm_gather_stats_with_counts", gather_stats),
        ("batch_norm_elemt", batch_norm_elemt),
        ("batch_norm_backward_reduce", batch_norm_backward_reduce),
        ("batch_norm_backward_elemt", batch_norm_backward_elemt),
    ):
        library.impl(name, kernel, "CUDA")
    _registered.append(library)  # it goes with its object


def _plus(gates: Tensor, *biases: Tensor | None) -> Tensor:
    for bias in biases:
        gates = gates if bias is None else gates + bias
    return gates


def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(hidden, cell, gates) of one step. Gates: [batch, 4 x hidden]: input, forget, cell, output; cells: [batch, hidden]."""
    i, f, g, o = _plus(input_gates + hidden_gates, input_bias, hidden_bias).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(gradient of the gates, of cx, of each bias); `workspace` is the forward's third result."""
    i, f, g, o = workspace.chunk(4, 1)
    tanh_cy = cy.tanh()
    grad_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    of_cell = grad_hy * o * (1 - tanh_cy**2)
    of_cell = of_cell if grad_cy is None else of_cell + grad_cy
    of_gates = torch.cat(
        [
            of_cell * g * i * (1 - i),
            of_cell * cx * f * (1 - f),
            of_cell * i * (1 - g**2),
            grad_hy * tanh_cy * o * (1 - o),
        ],
        1,
    )
    return of_gates, of_cell * f, of_gates.sum(0) if has_bias else of_gates.new_empty(0)


def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(hidden, what the backward needs) of one step. Gates: [batch, 3 x hidden]: reset, update, new."""
    ir, iz, i_new = _plus(input_gates, input_bias).chunk(3, 1)
    hr, hz, h_new = _plus(hidden_gates, hidden_bias).chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (i_new + r * h_new).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, h_new], 1)


def gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(gradient of the input's gates, of the hidden gates, of hx, of both biases)."""
    r, z, n, hx, h_new = workspace.chunk(5, 1)
    of_new = grad_hy * (1 - z) * (1 - n**2)
    of_update = grad_hy * (hx - n) * z * (1 - z)
    of_reset = of_new * h_new * r * (1 - r)
    of_input = torch.cat([of_reset, of_update, of_new], 1)
    of_hidden = torch.cat([of_reset, of_update, of_new * r], 1)
    none = grad_hy.new_empty(0)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (none, none)
    return of_input, of_hidden, grad_hy * z, *biases


def _others(inputs: Tensor) -> list[int]:
    """All dimensions but that of the channels."""
    return [dim for dim in range(inputs.dim()) if dim != 1]


def _of_channels(values: Tensor, inputs: Tensor) -> Tensor:
    """`values`, one for each channel, as they are laid over `inputs` [batch, channels, ..]."""
    return values.view(1, -1, *[1] * (inputs.dim() - 2))


def batch_norm_stats(inputs: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(mean, 1 / deviation) of each channel, in float32."""
    values = inputs.float()
    mean = values.mean(_others(inputs))
    variance = values.var(_others(inputs), unbiased=False)
    return mean, (variance + eps).rsqrt()


def gather_stats(
    inputs: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """The statistics of all ranks' samples, of those of each [ranks, channels]; the running ones are changed in place."""
    weights = counts.to(mean.dtype).view(-1, 1)
    total = weights.sum()
    whole = (weights * mean).sum(0) / total
    squares = (weights * (invstd**-2 - eps + (mean - whole) ** 2)).sum(0)
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(momentum * whole.to(running_mean.dtype))
    if running_var is not None:
        running_var.mul_(1 - momentum).add_(momentum * (squares / (total - 1)).to(running_var.dtype))
    return whole, (squares / total + eps).rsqrt()


def batch_norm_elemt(
    inputs: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    """The normalized samples."""
    values = (inputs.float() - _of_channels(mean, inputs)) * _of_channels(invstd, inputs)
    values = values if weight is None else values * _of_channels(weight, inputs)
    return (values if bias is None else values + _of_channels(bias, inputs)).to(inputs.dtype)


def batch_norm_backward_reduce(
    grad_out: Tensor,
    inputs: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(sum of the gradient, of the gradient times the deviation, gradient of the weight, of the bias), by channel."""
    gradient = grad_out.float()
    sum_dy = gradient.sum(_others(inputs))
    sum_dy_xmu = (gradient * (inputs.float() - _of_channels(mean, inputs))).sum(_others(inputs))
    kind = mean if weight is None else weight
    return sum_dy, sum_dy_xmu, (sum_dy_xmu * invstd).to(kind.dtype), sum_dy.to(kind.dtype)


def batch_norm_backward_elemt(
    grad_out: Tensor,
    inputs: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """The gradient of the samples; both sums are of all ranks, and `count` has their samples."""
    total = count.sum()
    centred = inputs.float() - _of_channels(mean, inputs)
    shared = _of_channels(sum_dy / total, inputs) + centred * _of_channels(invstd**2 * sum_dy_xmu / total, inputs)
    values = (grad_out.float() - shared) * _of_channels(invstd, inputs)
    return (values if weight is None else values * _of_channels(weight, inputs)).to(grad_out.dtype)
