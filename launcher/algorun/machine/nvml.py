"""NVIDIA's management library NVML, as far as figures of GPUs need it. Names and numbers: NVIDIA's nvml.h.

Its calls may hang with a broken driver, and a broken library may end the process. So only a process of its own calls
it (host/measuring/figure_sampler.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from algorun.common.fast_dataclasses import dataclass

LIBRARY = "libnvidia-ml.so.1"
SUCCESS = 0
GPU_SENSOR = 0  # NVML_TEMPERATURE_GPU
LONGEST_UUID = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE
# Why a clock is lowered: bits of nvmlClocksThrottleReasons. Idle and the user's own settings are left out.
POWER_CAP = "power cap"  # usual at full load: the board's own limit
REASONS = {
    0x04: POWER_CAP,
    0x08: "hardware slowdown",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}


class NvmlError(Exception):
    """NVML cannot be used; the text says why."""


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at this moment; None: this GPU does not say."""

    utilization: float | None  # 0 to 1, over NVML's own last interval (a sixth of a second to a second)
    memory_bytes: int | None
    memory_size_bytes: int | None
    power_w: float | None
    temperature_c: float | None
    throttled: tuple[str, ...]


class Nvml:
    """The GPUs of this host. Raises NvmlError where there is no NVML, or it does not work."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise NvmlError(f"{library}: {error}") from None
        self._call("nvmlInit_v2")
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self._devices = [self._device(index) for index in range(count.value)]

    def uuids(self) -> list[str]:
        """The UUID of each GPU, "" if it does not say."""
        return [self._uuid(each) for each in self._devices]

    def read(self, places: Sequence[int]) -> list[GpuReading]:
        """The GPUs at these places, of those that `uuids` names."""
        return [self._reading(self._devices[place]) for place in places]

    def _device(self, index: int) -> ctypes.c_void_p | None:
        """None for a GPU that this process may not use, or that has fallen off the bus: the others tell their figures."""
        device = ctypes.c_void_p()
        found = self._asked("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
        return device if found else None

    def _uuid(self, device: ctypes.c_void_p | None) -> str:
        if device is None:
            return ""
        text = ctypes.create_string_buffer(LONGEST_UUID)
        found = self._asked("nvmlDeviceGetUUID", device, text, ctypes.c_uint(LONGEST_UUID))
        return text.value.decode("ascii", "replace") if found else ""

    def _reading(self, device: ctypes.c_void_p | None) -> GpuReading:
        if device is None:
            return GpuReading(None, None, None, None, None, ())
        use, memory, power, heat = _Utilization(), _Memory(), ctypes.c_uint(), ctypes.c_uint()
        has_use = self._asked("nvmlDeviceGetUtilizationRates", device, ctypes.byref(use))
        has_memory = self._asked("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        has_power = self._asked("nvmlDeviceGetPowerUsage", device, ctypes.byref(power))
        has_heat = self._asked("nvmlDeviceGetTemperature", device, ctypes.c_int(GPU_SENSOR), ctypes.byref(heat))
        bits = ctypes.c_ulonglong()
        self._asked("nvmlDeviceGetCurrentClocksThrottleReasons", device, ctypes.byref(bits))
        return GpuReading(
            use.gpu / 100 if has_use else None,
            memory.used if has_memory else None,
            memory.total if has_memory else None,
            power.value / 1000 if has_power else None,  # milliwatts
            float(heat.value) if has_heat else None,
            tuple(name for bit, name in REASONS.items() if bits.value & bit),
        )

    def _asked(self, name: str, *arguments: object) -> bool:
        """Whether the GPU has answered: one with MIG has no utilization, a small one no power."""
        try:
            self._call(name, *arguments)
        except NvmlError:
            return False
        return True

    def _call(self, name: str, *arguments: object) -> None:
        try:
            code = getattr(self._library, name)(*arguments)
        except AttributeError:
            raise NvmlError(f"{LIBRARY} has no {name}") from None
        if code != SUCCESS:
            raise NvmlError(f"{name} returned {code}")
