"""ALGORUN_CUDA_ON_CPU=1: devices named cuda are the CPU, so that scripts written for GPUs run where there are none.

For trying a published script at home, unedited. Where torch.cuda.is_available() it does nothing; elsewhere that stays
False, and whatever asks first (`device = "cuda" if torch.cuda.is_available() else "cpu"`) sees the truth. Led to the CPU:

- `torch.device("cuda")`, and `device=` of all functions that take one;
- `.to(..)` and `.cuda(..)` of tensors and modules, `.type("torch.cuda.FloatTensor")`, `pin_memory`;
- `with torch.device("cuda")`, `torch.set_default_device`;
- `torch.load` of what was saved on a GPU, with any `map_location`;
- `device_ids` and `output_device` of DistributedDataParallel;
- `torch.cuda`: `set_device`, `current_device`, `device`, `synchronize`, `reset_peak_memory_stats`, `get_rng_state` and
  `set_rng_state`. Seeds and the memory counters need nothing: torch keeps the former for later and answers 0 without a
  GPU.

Streams, events, generators on a device and the backend nccl stay torch's own errors. A mode for torch functions holds
in the thread that has entered it, and in processes forked from that, such as a DataLoader's workers; a thread that the
script starts itself may enter `CudaOnCpu()` of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from algorun_train.common.errors import UserError

from .devices import CUDA_ON_CPU as VARIABLE

CPU = torch.device("cpu")
BEFORE_TORCH = 5  # torch restores storages of the CPU at 10, of cuda at 20; lower goes first
LEGACY = "torch.cuda."  # names of legacy tensor types begin so

SCRIPT, STRICT = "script", "strict"
_installed = False


Patched = Any  # a module or class of torch whose functions are replaced, which types do not allow
Given = Any  # whatever a script gives to a function of torch, or gets from one


def _is_cuda(value: object) -> bool:
    """True for what names a GPU: `cuda`, `cuda:1`, a torch.device of that type."""
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and value.split(":")[0] == "cuda"


def _is_index(value: object) -> bool:
    """True for a number that torch takes for the accelerator's index."""
    return isinstance(value, int) and not isinstance(value, bool)


def _on_cpu(args: tuple[Given, ...], kwargs: dict[str, Given]) -> tuple[tuple[Given, ...], dict[str, Given]]:
    """The same arguments with the CPU in the place of every GPU."""
    if any(map(_is_cuda, args)):
        args = tuple(CPU if _is_cuda(arg) else arg for arg in args)
    if kwargs:
        device = kwargs.get("device")
        if _is_cuda(device) or _is_index(device):
            kwargs = {**kwargs, "device": CPU}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
    return args, kwargs


class CudaOnCpu(TorchFunctionMode):
    """Within it, in this thread, functions of torch that get a device named cuda get the CPU."""

    def __torch_function__(self, func: Given, types: Given, args: Given = (), kwargs: Given = None) -> Given:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda or func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.device:
            return CPU if args and (_is_cuda(args[0]) or _is_index(args[0])) else func(*args, **kwargs)
        if func is torch.Tensor.to and len(args) > 1 and _is_index(args[1]):
            args = (args[0], CPU, *args[2:])
        elif func is torch.Tensor.type and len(args) > 1 and str(args[1]).startswith(LEGACY):
            args = (args[0], "torch." + str(args[1]).removeprefix(LEGACY), *args[2:])
        args, kwargs = _on_cpu(args, kwargs)
        return func(*args, **kwargs)


def _restored(storage: Given, location: str) -> Given:
    """torch.load's storages are on the CPU before they are moved: those of a GPU stay there."""
    return storage if _is_cuda(location) else None


class _CurrentDevice:
    """The part of torch.cuda that scripts call before they compute; it moves nothing."""

    index = 0

    @classmethod
    def set(cls, device: Given) -> None:
        """Takes an index or `cuda:1`; a torch.device has become the CPU and says nothing."""
        number = device.partition(":")[2] if isinstance(device, str) else device
        if _is_index(number) or (isinstance(number, str) and number.isdigit()):
            cls.index = max(int(number), 0)

    @classmethod
    def get(cls) -> int:
        return cls.index


class _Within:
    """`with torch.cuda.device(1):`."""

    def __init__(self, device: Given) -> None:
        self.device, self.before = device, 0

    def __enter__(self) -> None:
        self.before = _CurrentDevice.index
        _CurrentDevice.set(self.device)

    def __exit__(self, *error: object) -> None:
        _CurrentDevice.index = self.before


def _nothing(*args: Given, **kwargs: Given) -> None:
    """There is no device to wait for, or to count for."""


def _backward_on_cpu(original: Callable[..., Given]) -> Callable[..., Given]:
    """The engine's backward pass within the mode, which torch leaves for the time of a call such as loss.backward():
    there run the script's hooks, its own autograd functions and what it recomputes."""

    @wraps(original)
    def run(*args: Given, **kwargs: Given) -> Given:
        with CudaOnCpu():
            return original(*args, **kwargs)

    return run


def _module_on_cpu(original: Callable[..., Given]) -> Callable[..., Given]:
    """Module.to, which looks an index up before its tensors see it."""

    @wraps(original)
    def to(self: torch.nn.Module, *args: Given, **kwargs: Given) -> Given:
        if args and _is_index(args[0]):
            args = (CPU, *args[1:])
        args, kwargs = _on_cpu(args, kwargs)
        return original(self, *args, **kwargs)

    return to


def _fork_of_cpu(original: Callable[..., Given]) -> Callable[..., Given]:
    """torch.random.fork_rng, which always forks the CPU's generator: here it draws for the devices too."""

    @wraps(original)
    def fork(devices: Given = None, *args: Given, **kwargs: Given) -> Given:
        return original([], *args, **kwargs)

    return fork


def _random_state(device: Given = None) -> torch.Tensor:
    """torch.cuda.get_rng_state: what is drawn on the CPU is drawn by its generator."""
    return torch.get_rng_state()


def _set_random_state(new_state: torch.Tensor, device: Given = None) -> None:
    """torch.cuda.set_rng_state."""
    torch.set_rng_state(new_state)


def _context_on_cpu(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def init(self: DeviceContext, device: Given) -> None:
        original(self, CPU if _is_cuda(device) else device)

    return init


def _ddp_on_cpu(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def init(
        self: Given, module: Given, device_ids: Given = None, output_device: Given = None, *args: Given, **kwargs: Given
    ) -> None:
        original(self, module, None, None, *args, **kwargs)

    return init


def _available_to_the_script() -> bool:
    return sys._getframe(1).f_globals.get("__name__") == "__main__"


def _replace_functions(library: Patched, cuda: Patched, autograd: Patched) -> None:
    cuda.set_device, cuda.current_device, cuda.device = _CurrentDevice.set, _CurrentDevice.get, _Within
    cuda.synchronize = cuda.reset_peak_memory_stats = _nothing
    cuda.get_rng_state, cuda.set_rng_state = _random_state, _set_random_state
    library.random.fork_rng = _fork_of_cpu(library.random.fork_rng)
    library.UntypedStorage.cuda = library.TypedStorage.cuda = lambda self, *args, **kwargs: self
    autograd._engine_run_backward = _backward_on_cpu(autograd._engine_run_backward)


def _replace_methods(module: Patched, ddp: Patched, context: Patched) -> None:
    module.to = _module_on_cpu(module.to)
    ddp.__init__ = _ddp_on_cpu(ddp.__init__)
    context.__init__ = _context_on_cpu(context.__init__)


def install(value: str = "1") -> None:
    """Leads this process's devices named cuda to the CPU, and says so on rank 0; with a GPU it does nothing.

    `value` is the variable's value: UserError on another one than 1 or "script". With the latter torch.cuda.is_available()
    is True for the script itself, whose first lines may end it otherwise; not for libraries, which would take it as said.
    """
    global _installed
    if value == STRICT:
        raise UserError(
            f"{VARIABLE}={STRICT}: it acts in scripts that `algorun` starts; fix: algorun simulate -j 1x1 .., or {VARIABLE}=1"
        )
    if value not in ("1", SCRIPT):
        raise UserError(f"{VARIABLE}: {value!r}; allowed: 0, 1, {SCRIPT} or {STRICT}; fix: {VARIABLE}=1")
    if _installed or torch.cuda.is_available():
        return
    _installed = True
    torch.serialization.register_package(BEFORE_TORCH, lambda storage: None, _restored)
    _replace_functions(torch, torch.cuda, torch.autograd)
    _replace_methods(torch.nn.Module, DistributedDataParallel, DeviceContext)
    if value == SCRIPT:
        patched: Patched = torch.cuda
        patched.is_available = _available_to_the_script
    mode: TorchFunctionMode = CudaOnCpu()
    mode.__enter__()
    # A worker process that imports the script anew has nothing new to say.
    if os.environ.get("RANK", "0") == "0" and multiprocessing.parent_process() is None:
        print(f"{VARIABLE}={value}: there is no GPU; devices named cuda are the CPU", flush=True)
