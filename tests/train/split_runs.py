"""Runs a model whole and cut, and compares. Written apart from the cut's own trial, which it is meant to check."""

import torch

from algorun_train.parallel.model.trees import arguments, leaves


def whole(model, example, seed=3):
    """(tensors of the output, gradients by name) of one pass with a fixed seed."""
    args, kwargs = arguments(example)
    model.zero_grad()
    torch.manual_seed(seed)
    outputs = leaves(model(*args, **kwargs))
    _loss(outputs).backward()
    return [output.detach() for output in outputs], _gradients(model)


def cut_at(cutting, begins):
    """Stages beginning at the segments `begins` (the first is 0)."""
    ends = [*begins[1:], len(cutting.segments)]
    return [cutting.stage(begin, end) for begin, end in zip(begins, ends, strict=True)]


def split(stages, model, entry, seed=3):
    """The same through stages, every boundary cut off from autograd as between two processes."""
    model.zero_grad()
    torch.manual_seed(seed)
    runs, received = [], [tensor.detach() for tensor in entry]
    for stage in stages:
        outputs = leaves(stage(*received))
        runs.append((received, outputs))
        received = [tensor.detach().requires_grad_() for tensor in outputs] if stage is not stages[-1] else []
    _loss(runs[-1][1]).backward()
    for (entries, _), (_, sent) in zip(runs[:0:-1], runs[-2::-1], strict=True):
        torch.autograd.backward(sent, [entry.grad for entry in entries])
        assert all(entry.grad is not None for entry in entries)  # a pipeline sends them all
    return [output.detach() for output in runs[-1][1]], _gradients(model)


def assert_equal(one, other):
    (outputs, gradients), (its_outputs, its_gradients) = one, other
    assert len(outputs) == len(its_outputs) > 0
    for mine, its in zip(outputs, its_outputs, strict=True):
        assert torch.equal(mine, its)
    assert gradients.keys() == its_gradients.keys()
    assert gradients
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            gradient, its_gradients[name], rtol=1e-6, atol=1e-6 * float(gradient.abs().max()), msg=name
        )


def _loss(outputs):
    return sum(
        (output.float() * torch.linspace(-1, 1, output.numel()).view(output.shape)).sum()
        for output in outputs
        if output.requires_grad
    )


def _gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
