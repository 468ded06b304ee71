"""Answers what torch and scripts ask of `torch.cuda`, for the strict device: it is there, and nothing is queued on it."""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from functools import wraps
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from . import gpu_code, gpu_kernels
from .loader import FIX, SETTING
from .waits import WAITS, line_of_script

Given = Any  # whatever a script gives to a function of torch, or gets from one
Patched = Any  # a module or class of torch whose functions are replaced, which types do not allow

GIB = 2**30
CAPABILITY = (9, 0)  # an H100's: libraries ask it for bf16
BEFORE_TORCH = 5  # torch restores storages of the CPU at 10, of cuda at 20; lower goes first
NO_COMPILE = f"torch.compile makes kernels for GPUs: {FIX}"
NO_GRAPH = f"torch.cuda.CUDAGraph records kernels of a GPU: {FIX}"
NO_POOL = f"torch.cuda.MemPool holds memory of a GPU: {FIX}"
NO_FIGURES = f"{SETTING} has no figures of a GPU's memory"
NOWHERE = 1 << 62  # added to an address of the device: nothing can be read there, and equal ones stay equal
COMPARES = (
    "torch",
    "transformers",
    "safetensors",
    "peft",
    "accelerate",
    "algorun_train",
)  # what finds shared memory by its address, and reads nothing
AN_ADDRESS = "gives an address of a GPU: it can be compared; what reads memory there ends with a segmentation fault"
AN_ADDRESS_READ = f"a program has read memory at an address of a GPU: {FIX}; data_ptr() was first taken at"
NO_ARRAY = f"__cuda_array_interface__ is for libraries with kernels for GPUs: {FIX}"
NO_DLPACK = f"DLPack hands over the memory of a GPU: {FIX}"
_installed = False


class Event(torch.Event):
    """torch.cuda.Event: what came before it has happened, so its time is that of the host."""

    _timing = False
    _at: float | None = None

    def __new__(cls, enable_timing: bool = False, **kwargs: Given) -> Event:
        """An event of the device."""
        event = super().__new__(cls, device="cuda", enable_timing=enable_timing)
        event._timing = enable_timing
        return event

    def record(self, stream: Given = None) -> None:
        """Notes the time."""
        self._at = time.perf_counter()

    def elapsed_time(self, end_event: Given) -> float:
        """Milliseconds until `end_event`. Raises as torch does."""
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end_event._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return float(1000 * (end_event._at - self._at))


class Stream(torch.Stream):
    """torch.cuda.Stream: the order of the host's calls is the only order."""

    def __new__(cls, device: Given = None, priority: int = 0, **kwargs: Given) -> Stream:
        """A stream of `device`, by default the current one."""
        return super().__new__(cls, device="cuda" if device is None else device)


class _Device:
    """torch.cuda.get_device_properties."""

    name, major, minor = "strict CUDA on the CPU", *CAPABILITY
    total_memory, multi_processor_count, uuid = 80 * GIB, 132, ""
    warp_size, max_threads_per_multi_processor, regs_per_multiprocessor = 32, 2048, 65536
    shared_memory_per_block, shared_memory_per_block_optin, shared_memory_per_multiprocessor = 49152, 232448, 233472
    L2_cache_size = 50 * 2**20
    is_integrated = is_multi_gpu_board = 0


def install(device: ctypes.CDLL) -> None:
    """Patches this process's torch, once; at its exit the waits are printed."""
    global _installed
    if _installed:
        return
    _installed = True
    cuda: Patched = torch.cuda
    _answers(cuda, device)
    _streams(cuda)
    _tools(cuda)
    _arrays(torch.Tensor)
    _addresses(device, torch.Tensor, torch.UntypedStorage)
    _memory(cuda)
    _storages(torch.UntypedStorage, device)
    _library(torch, dist)
    _replicas(torch._C)
    gpu_kernels.register()
    WAITS.connect(device)
    atexit.register(_report)


def _answers(cuda: Patched, device: ctypes.CDLL) -> None:
    count = int(device.strict_cuda_count())
    cuda.device_count = lambda: count
    cuda.current_device = torch.accelerator.current_device_index
    cuda._lazy_init = cuda.init = lambda: None
    cuda.is_available = cuda.is_initialized = lambda: True
    cuda._is_compiled = lambda: False  # there are none of the other functions of a build for CUDA
    cuda.random.device_count = cuda.device_count  # for torch.manual_seed
    built: Patched = torch._C  # modules of torch.cuda hold functions that ask these
    built._cuda_hasPrimaryContext = lambda index: True
    built._cuda_getDeviceCount, built._cuda_getDevice = cuda.device_count, cuda.current_device
    cuda.set_device = _set_device
    cuda._exchange_device = cuda._maybe_exchange_device = _exchange_device
    cuda.get_device_capability = lambda device=None: CAPABILITY
    cuda.get_device_properties = lambda device=None: _Device()
    cuda.get_device_name = lambda device=None: _Device.name
    cuda.is_bf16_supported = lambda including_emulation=True: True
    cuda.amp.common.amp_definitely_not_available = lambda: False
    device.strict_cuda_give_defaults(True)
    cuda.default_generators = tuple(torch.Generator(f"cuda:{index}") for index in range(count))
    device.strict_cuda_give_defaults(False)


def _streams(cuda: Patched) -> None:
    cuda.Event, cuda.Stream = Event, Stream
    cuda.current_stream = cuda.default_stream = lambda device=None: Stream()
    cuda.stream, cuda.set_stream = _within, lambda stream: None
    cuda.is_current_stream_capturing = lambda: False
    cuda.synchronize = lambda device=None: WAITS.add("torch.cuda.synchronize")
    torch_accelerator: Patched = torch.accelerator
    torch_accelerator.synchronize = cuda.synchronize


def _tools(cuda: Patched) -> None:
    """Marks for profilers are nobody's here; graphs and pools of memory are refused."""
    nothing: Callable[..., Given] = lambda *args: 0  # noqa: E731
    marks = ("rangePushA", "rangePop", "rangeStartA", "rangeEnd", "markA", "deviceRangeStart", "deviceRangeEnd")
    cuda.nvtx._nvtx = types.SimpleNamespace(**dict.fromkeys(marks, nothing))
    cuda.profiler.start = cuda.profiler.stop = nothing
    cuda.can_device_access_peer = lambda device, peer: True
    # Classes, as libraries name them in types.
    cuda.CUDAGraph = cuda.graphs.CUDAGraph = type("CUDAGraph", (), {"__new__": _refused(NO_GRAPH)})
    cuda.MemPool = cuda.memory.MemPool = type("MemPool", (), {"__new__": _refused(NO_POOL)})


def _arrays(tensor: Patched) -> None:
    own = tensor.__cuda_array_interface__.fget

    def interface(self: Given) -> Given:
        if self.device.type == "cuda":
            raise RuntimeError(NO_ARRAY)
        return own(self)  # an AttributeError: libraries ask whether a tensor has it

    tensor.__cuda_array_interface__ = property(interface)
    # torch.from_dlpack, numpy's and CuPy's ask for the first before they take the second.
    for name in ("__dlpack_device__", "__dlpack__"):
        setattr(tensor, name, _only_on_the_host(getattr(tensor, name)))
    torch.utils.dlpack.to_dlpack = torch.to_dlpack = _only_on_the_host(torch.to_dlpack)


def _only_on_the_host(own: Callable[..., Given]) -> Callable[..., Given]:
    @wraps(own)
    def dlpack(tensor: Given, *args: Given, **kwargs: Given) -> Given:
        if tensor.device.type == "cuda":
            raise RuntimeError(NO_DLPACK)
        return own(tensor, *args, **kwargs)

    return dlpack


def _addresses(device: ctypes.CDLL, *kinds: Patched) -> None:
    """Makes addresses of the device unreadable. Names the first line that takes one, unless a library only compares them.

    From then on a program that reads there ends with that line once more, and with what to do.
    """
    told = False

    def tell(frame: FrameType) -> None:
        nonlocal told
        if not told and frame.f_globals.get("__name__", "").partition(".")[0] not in COMPARES:
            told, place = True, line_of_script(frame)
            print(f"{SETTING}: data_ptr() at {place} {AN_ADDRESS}", file=sys.stderr, flush=True)
            device.strict_cuda_at_fault(f"{SETTING}: {AN_ADDRESS_READ} {place}\n".encode())

    def of_device(own: Callable[..., int]) -> Callable[..., int]:
        @wraps(own)
        def data_ptr(self: Given) -> int:
            address = own(self)
            if not address or self.device.type != "cuda":
                return address
            tell(sys._getframe(1))
            return address | NOWHERE

        return data_ptr

    for kind in kinds:
        for name in ("data_ptr", "const_data_ptr"):
            if hasattr(kind, name):
                setattr(kind, name, of_device(getattr(kind, name)))


@contextlib.contextmanager
def _within(stream: Given) -> Iterator[None]:
    yield


def _memory(cuda: Patched) -> None:
    zero = lambda device=None: 0  # noqa: E731
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(cuda, name, zero)
        setattr(cuda.memory, name, zero)
    for name in ("reset_peak_memory_stats", "empty_cache", "ipc_collect"):
        setattr(cuda, name, lambda *args: None)
    cuda.mem_get_info = lambda device=None: (_Device.total_memory, _Device.total_memory)
    # Every statistic is 0, whatever its name.
    cuda.memory_stats = cuda.memory.memory_stats = lambda device=None: collections.defaultdict(int)
    cuda.memory_summary = cuda.memory.memory_summary = lambda device=None, abbreviated=False: NO_FIGURES
    cuda.set_per_process_memory_fraction = cuda.memory.set_per_process_memory_fraction = lambda fraction, device=None: (
        None
    )


def _set_device(device: Given) -> None:
    index = torch.device(device).index if isinstance(device, str | torch.device) else device
    if index is not None and index >= 0:
        torch.accelerator.set_device_index(index)


def _exchange_device(index: int) -> int:
    before = torch.accelerator.current_device_index()
    _set_device(index)
    return before


def _storages(storage: Patched, device: ctypes.CDLL) -> None:
    own, resize = storage.resize_, device.strict_cuda_resize
    resize.argtypes, resize.restype = [ctypes.c_void_p, ctypes.c_size_t], None

    @wraps(own)
    def resized(self: Given, size: int) -> Given:
        if self.device.type != "cuda":
            return own(self, size)
        resize(self._cdata, size)
        return self

    storage.resize_ = resized
    storage.cuda = lambda self, device=None, non_blocking=False: _on_device(self, device)
    torch.serialization.register_package(BEFORE_TORCH, lambda storage: None, _restored)


def _on_device(storage: Given, device: Given) -> Given:
    content = torch.empty(0, dtype=torch.uint8).set_(storage)
    return content.to(torch.device("cuda") if device is None else device).untyped_storage()


def _restored(storage: Given, location: str) -> Given:
    """torch.load's storages are on the CPU before they are moved."""
    return _on_device(storage, location) if location.startswith("cuda") else None


def _library(library: Patched, distributed: Patched) -> None:
    library.compile = _refused(NO_COMPILE)
    library.ops.load_library = gpu_code.refuse_libraries(library.ops.load_library)
    distributed.init_process_group = _over_gloo(distributed.init_process_group)
    distributed.new_group = _over_gloo(distributed.new_group)


def _replicas(built: Patched) -> None:
    """What nn.DataParallel calls, and one clear error for all else that a build for CUDA has."""
    built._scatter = _scatter
    built._gather = lambda tensors, dim, device: torch.cat([each.to(_numbered(device)) for each in tensors], dim)
    built._broadcast_coalesced = lambda tensors, devices, size: [
        [each.to(_numbered(device)) for each in tensors] for device in devices
    ]
    built.__dict__["__getattr__"] = _not_built


def _scatter(tensor: Given, devices: Given, sizes: Given = None, dim: int = 0, streams: Given = None) -> Given:
    parts = tensor.chunk(len(devices), dim) if sizes is None else tensor.split(list(sizes), dim)
    return tuple(part.to(_numbered(device)) for part, device in zip(parts, devices, strict=False))


def _numbered(device: Given) -> Given:
    return torch.device("cpu" if device == -1 else f"cuda:{device}") if isinstance(device, int) else device


def _not_built(name: str) -> Given:
    raise AttributeError(f"torch._C.{name} is part of a build for GPUs: {FIX}")


def _refused(text: str) -> Callable[..., Given]:
    def refuse(*args: Given, **kwargs: Given) -> Given:
        raise RuntimeError(text)

    return refuse


def _over_gloo(original: Callable[..., Given]) -> Callable[..., Given]:
    """With Gloo in the place of NCCL: it moves the same memory."""

    @wraps(original)
    def over(*args: Given, **kwargs: Given) -> Given:
        args = tuple(each.replace("nccl", "gloo") if isinstance(each, str) else each for each in args)
        if isinstance(kwargs.get("backend"), str):
            kwargs = {**kwargs, "backend": kwargs["backend"].replace("nccl", "gloo")}
        return original(*args, **kwargs)

    return over


def _report() -> None:
    print(f"{SETTING}: rank {os.environ.get('RANK', '0')}: {WAITS.line()}", flush=True)
