"""What a rank holds of a Keras model after the first step: `smp_tf_memory.py PARTITIONS WIDTH`, a model of eight WIDTH x WIDTH layers.

Each rank prints the bytes of all variables that live in its process, of its own variables with their two moments, and of those of
all ranks; and by how much its resident memory has grown since before the model, after each of three steps.
"""

from __future__ import annotations

import gc
import sys

import numpy as np
import psutil
import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp

PARTITIONS, WIDTH = int(sys.argv[1]), int(sys.argv[2])
smp.init({"partitions": PARTITIONS, "microbatches": 2})
tf.keras.utils.set_random_seed(1)


class Model(smp.DistributedModel):
    def __init__(self):
        super().__init__()
        self.blocks = [tf.keras.layers.Dense(WIDTH, use_bias=False) for _ in range(8)]

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return x


model, optimizer = Model(), tf.keras.optimizers.Adam(1e-4)


@smp.step
def forward_backward(x):
    loss = tf.reduce_mean(model(x) ** 2)
    return optimizer.get_gradients(loss, model.trainable_variables), loss


def train(x):
    gradients, loss = forward_backward(x)
    gradients = [gradient.accumulate() for gradient in gradients]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss.reduce_mean()


def resident():
    gc.collect()
    return psutil.Process().memory_info().rss


def size(variable):
    """The bytes of what a variable's handle has in memory, whatever shape the variable says."""
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype).numpy().nbytes


x = np.random.RandomState(smp.rank()).rand(4, WIDTH).astype("float32")
tf.linalg.matmul(x, x, transpose_b=True)
before = resident()
grown = []
for _ in range(3):
    train(x)
    grown.append(resident() - before)
live = [each for each in gc.get_objects() if isinstance(each, tf.Variable) and hasattr(each, "handle")]
held = sum({id(each.handle): size(each) for each in live}.values())
own = 3 * sum(each.shape.num_elements() * 4 for each in model.trainable_variables)
full = 3 * sum(each.shape.num_elements() * 4 for each in model.all_variables())
print(f"rank {smp.rank()} holds {held} of {own} of {full} bytes; resident {' '.join(map(str, grown))}", flush=True)
