"""A small libnvidia-ml.so.1 for machines without GPUs, compiled by the C compiler of the machine.

FAKE_NVML says what it does: nothing (works), `broken`, `hanging`, `crashing`, `divided` (GPUs with MIG say little), `lost` (the second GPU has fallen off the bus).
"""

from __future__ import annotations

import shutil
import subprocess

import pytest

GPUS = 4
SOURCE = r"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int does(const char *what) { const char *set = getenv("FAKE_NVML"); return set && !strcmp(set, what); }

int nvmlInit_v2(void) {
  if (does("hanging")) for (;;) sleep(1);
  if (does("crashing")) raise(SIGSEGV);
  return does("broken") ? 18 : 0; /* NVML_ERROR_LIB_RM_VERSION_MISMATCH */
}
int nvmlDeviceGetCount_v2(unsigned *count) { *count = GPUS; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  if (does("lost") && index == 1) return 15; /* NVML_ERROR_GPU_IS_LOST */
  *device = (void *)(index + 1L); return 0;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
  snprintf(uuid, length, "GPU-0000000%ld-aaaa", (long)device - 1); return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
  if (does("divided")) return 3; /* NVML_ERROR_NOT_SUPPORTED */
  rates[0] = 25 * ((long)device - 1); rates[1] = 7; return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
  memory[0] = 80ULL << 30; memory[1] = 60ULL << 30; memory[2] = 20ULL << 30; return 0;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { *milliwatts = 123500; return 0; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) { *celsius = sensor ? 0 : 61; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
  *reasons = (long)device == 1 ? 0x45 : 0x01; return 0; /* idle; the first: at its power limit, and hot */
}
"""


def build(folder):
    """The folder that holds the library, for LD_LIBRARY_PATH. Skips the test without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the library that stands for NVML")
    source = folder / "nvml.c"
    source.write_text(SOURCE)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", f"-DGPUS={GPUS}", "-o", str(library), str(source)], check=True, timeout=60
    )
    return folder
