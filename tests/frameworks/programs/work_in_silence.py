"""`work_in_silence.py compile|data SECONDS`: the last rank works for so long and prints nothing; the others wait for it, in JAX.

compile: XLA compiles programs, each larger than the one before. data: files are written a little at a time.
"""

import os
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

PHASE, SECONDS = sys.argv[1], float(sys.argv[2])
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def long_sum(value, terms):
    for number in range(terms):
        value = value * 0.5 + float(number)
    return value


def compile_one(terms):
    jax.jit(lambda value: long_sum(value, terms)).lower(jnp.float32(1.0)).compile()


def prepare(_):
    with tempfile.TemporaryFile() as file:
        for _ in range(5):
            file.write(bytes(8192))
            file.flush()
            time.sleep(0.2)


jax.distributed.initialize(num_processes=SIZE, process_id=RANK)
multihost_utils.sync_global_devices("begin")
if RANK == SIZE - 1:
    work = {"compile": compile_one, "data": prepare}[PHASE]
    end, size = time.monotonic() + SECONDS, 200
    while time.monotonic() < end:
        work(size)
        size += 100
multihost_utils.sync_global_devices("end")
print("went through", flush=True)
