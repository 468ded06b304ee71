"""`work_in_silence.py jax|tensorflow compile|data SECONDS`: the last rank works for so long and prints nothing; the others wait for it.

compile: the framework compiles programs, each larger than the one before. data: files are read and written a little at a time.
"""

import os
import sys
import tempfile
import time

KIND, PHASE, SECONDS = sys.argv[1], sys.argv[2], float(sys.argv[3])
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def long_sum(value, terms):
    for number in range(terms):
        value = value * 0.5 + float(number)
    return value


def with_jax():
    import jax
    import jax.numpy as jnp
    from jax.experimental import multihost_utils

    jax.distributed.initialize(num_processes=SIZE, process_id=RANK)
    jax.devices()

    def compile_one(terms):
        jax.jit(lambda value: long_sum(value, terms)).lower(jnp.float32(1.0)).compile()

    return compile_one, lambda: multihost_utils.sync_global_devices("step")


def with_tensorflow():
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    step = tf.function(
        lambda: strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))
    )

    def compile_one(terms):
        tf.function(lambda value: long_sum(value, terms), jit_compile=True)(tf.constant(1.0))

    return compile_one, step


def prepare(_):
    with tempfile.TemporaryFile() as file:
        for _ in range(5):
            file.write(bytes(8192))
            file.flush()
            time.sleep(0.2)


compile_one, exchange = {"jax": with_jax, "tensorflow": with_tensorflow}[KIND]()
exchange()
if RANK == SIZE - 1:
    work = compile_one if PHASE == "compile" else prepare
    end, size = time.monotonic() + SECONDS, 200
    while time.monotonic() < end:
        work(size)
        size += 100
exchange()
print("went through", flush=True)
