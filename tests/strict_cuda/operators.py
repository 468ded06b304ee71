"""Runs torch's own list of operators on the strict device and on the CPU, and prints where they differ.

torch.testing._internal has samples of inputs for each operator. Results and gradients must be equal, with the same shape and
type, results with the same strides. Prints one line: `operators: {"equal": number, "different": {name: what}}`.
"""

from __future__ import annotations

import json
import warnings

import torch
from torch.testing._internal.common_methods_invocations import op_db

SAMPLES = 3  # of an operator
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5, "equal_nan": True}


def on_device(value):
    """`value`, with its tensors, devices and the word cpu moved to the strict device."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cuda").requires_grad_(value.requires_grad)
    if isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu"):
        return "cuda"
    if isinstance(value, dict):
        return {key: on_device(each) for key, each in value.items()}
    return type(value)(map(on_device, value)) if type(value) in (list, tuple) else value


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [each for item in value for each in tensors(item)] if isinstance(value, list | tuple) else []


def gradients(results, inputs):
    """Of the sum of all results, by the inputs that have one."""
    sums = [each.sum() for each in tensors(results) if each.requires_grad and each.is_floating_point()]
    wanted = [each for each in tensors(inputs) if each.requires_grad]
    return torch.autograd.grad(sum(sums), wanted, allow_unused=True) if sums and wanted else ()


def compare(ours, wanted, *, values=True, strides=False):
    for mine, other in zip(ours, wanted, strict=True):
        if mine is None and other is None:
            continue
        assert mine.shape == other.shape, f"shape {tuple(mine.shape)}, not {tuple(other.shape)}"
        assert mine.dtype == other.dtype, f"{mine.dtype}, not {other.dtype}"
        if strides:
            assert mine.stride() == other.stride(), f"strides {mine.stride()}, not {other.stride()}"
        if values:
            kind = torch.complex128
            same = torch.allclose(mine.detach().cpu().to(kind), other.detach().cpu().to(kind), **TOLERANCE)
            assert same, "other values"


def look(operator, dtype):
    """Raises where the device differs; tells how many samples the CPU could run."""
    ran = 0
    has_gradient = operator.supports_autograd and dtype == torch.float32
    for number, sample in enumerate(operator.sample_inputs("cpu", dtype, requires_grad=has_gradient)):
        if number == SAMPLES:
            break
        args, kwargs = [sample.input, *sample.args], sample.kwargs
        theirs, named = on_device(args), on_device(kwargs)
        try:
            torch.manual_seed(0)
            wanted = operator(*args, **kwargs)
            wanted_gradients = gradients(wanted, args)
        except Exception:
            continue  # the CPU's own kernel refuses it
        ran += 1
        torch.manual_seed(0)
        results = operator(*theirs, **named)
        compare(tensors(results), tensors(wanted), values="empty" not in operator.name, strides=True)
        compare(gradients(results, theirs), wanted_gradients)
    return ran


def main() -> None:
    warnings.simplefilter("ignore")
    equal, different = 0, {}
    for operator in op_db:
        name = f"{operator.name} {operator.variant_test_name}".strip()
        kinds = sorted(operator.dtypes, key=str)
        if not kinds:
            continue  # it has none for the CPU
        try:
            equal += look(operator, torch.float32 if torch.float32 in kinds else kinds[0]) > 0
        except Exception as error:
            different[name] = f"{type(error).__name__}: {error}"[:200]
    print("operators: " + json.dumps({"equal": equal, "different": different}), flush=True)


if __name__ == "__main__":
    main()
