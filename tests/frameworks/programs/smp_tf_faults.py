"""A script for smdistributed.modelparallel.tensorflow with a fault, named by the first argument; it ends with one clear error.

`smp_tf_faults.py FAULT FILE`: the fault `checkpoint` would write the file. After `killed-once` the second attempt ends well.
"""

from __future__ import annotations

import os
import signal
import sys

import numpy as np

FAULT = sys.argv[1]
if FAULT == "keras3":
    import tensorflow  # noqa: F401  # before the library, which would have chosen legacy Keras

import smdistributed.modelparallel.tensorflow as smp  # noqa: E402

tf = sys.modules["tensorflow"]

smp.init({"partitions": 2, "microbatches": 2})


class Model(smp.DistributedModel):
    def __init__(self):
        super().__init__()
        self.blocks = [tf.keras.layers.Dense(4) for _ in range(1 if FAULT == "layers" else 3)]

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return x


model, optimizer = Model(), tf.keras.optimizers.SGD()


@smp.step
def step(x):
    if FAULT == "tape":
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        return tape.gradient(loss, model.trainable_variables)
    gradients = optimizer.get_gradients(tf.reduce_mean(model(x) ** 2), model.trainable_variables)
    return [tf.clip_by_norm(each, 1.0) for each in gradients] if FAULT == "clip" else gradients


step(np.ones((8 + 2 * smp.rank() if FAULT == "shapes" else 9 if FAULT == "batch" else 8, 4)))
if FAULT in ("killed", "killed-once"):
    if smp.rank() == 1 and (FAULT == "killed" or os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"):
        os.kill(os.getpid(), signal.SIGKILL)
    step(np.ones((8, 4)))  # waits for the other rank
if FAULT == "outside":
    model(np.ones((8, 4)))
if FAULT == "checkpoint":
    tf.train.Checkpoint(model=model).save(sys.argv[2])
print("no error")
