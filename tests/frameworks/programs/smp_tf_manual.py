"""A Keras model with smp.partition: `smp_tf_manual.py PARTITIONS manual|auto|falling|missing|twice|number|late`.

Prints the loss of each step, this rank's variables, and what a hook sees after the partition.
"""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp

PARTITIONS, MODE = int(sys.argv[1]), sys.argv[2]
manual = {} if MODE == "auto" else {"auto_partition": False, "default_partition": 0}
smp.init({"partitions": PARTITIONS, "microbatches": 2, **manual})
tf.keras.utils.set_random_seed(3)
LAST = PARTITIONS - 1


class Model(smp.DistributedModel):
    def __init__(self):
        super().__init__()
        self.wide, self.flat = tf.keras.layers.Dense(64, activation="tanh", name="wide"), tf.keras.layers.Flatten()
        self.one, self.two = (tf.keras.layers.Dense(4, activation="tanh", name=name) for name in ("one", "two"))

    def call(self, x, training=None):
        with smp.partition(LAST if MODE == "falling" else 9 if MODE == "number" else 0):
            x = self.wide(x)
        if MODE == "missing":
            return self.two(self.one(x))
        if MODE == "twice":
            x = self.one(tf.reshape(x, [-1, 64])[:, :4])
        with smp.partition(0), smp.partition(0 if MODE == "falling" else LAST):
            x = self.one(self.flat(x) if MODE != "twice" else x)
            return self.two(x)


model, optimizer = Model(), tf.keras.optimizers.SGD(0.1)


@smp.register_post_partition_hook
def shown():
    print(f"rank {smp.rank()} hook {tf.executing_eagerly()} {len(model.trainable_variables)}", flush=True)


@smp.step
def forward_backward(x, y):
    loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    return optimizer.get_gradients(loss, model.trainable_variables), loss


@tf.function
def train_step(x, y):
    gradients, loss = forward_backward(x, y)
    optimizer.apply_gradients(zip([g.accumulate() for g in gradients], model.trainable_variables, strict=True))
    return loss.reduce_mean()


draw = np.random.RandomState(0)
for _ in range(4):
    loss = train_step(draw.rand(8, 6).astype("float32"), draw.rand(8, 4).astype("float32"))
    print(f"rank {smp.rank()} loss {float(loss):.8f}", flush=True)
    if MODE == "late":
        smp.register_post_partition_hook(shown)
print(f"rank {smp.rank()} has {' '.join(variable.name for variable in model.trainable_variables)}", flush=True)
