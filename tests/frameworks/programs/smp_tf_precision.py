"""Steps in mixed precision, or with gradients that are clipped: `smp_tf_precision.py PARTITIONS bf16|fp16|fp16-legacy|clip`."""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp

PARTITIONS, MODE = int(sys.argv[1]), sys.argv[2]
smp.init({"partitions": PARTITIONS, "microbatches": 2, "ddp": True})
keras = tf.keras
if MODE != "clip":
    keras.mixed_precision.set_global_policy("mixed_bfloat16" if MODE == "bf16" else "mixed_float16")
keras.utils.set_random_seed(3)


class Model(smp.DistributedModel):
    def __init__(self):
        super().__init__()
        self.blocks = [keras.layers.Dense(8, activation="tanh") for _ in range(3)]
        self.out = keras.layers.Dense(2, dtype="float32")

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return self.out(x)


model = Model()
optimizer = (keras.optimizers.legacy if MODE == "fp16-legacy" else keras.optimizers).Adam(
    0.01, global_clipnorm=1.0 if MODE == "clip" else None
)
if MODE.startswith("fp16"):
    optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)


@smp.step
def forward_backward(x, y):
    loss = tf.reduce_mean((model(x) - y) ** 2)
    return optimizer.get_gradients(loss, model.trainable_variables), loss


@tf.function
def train_step(x, y):
    gradients, loss = forward_backward(x, y)
    optimizer.apply_gradients(zip([g.accumulate() for g in gradients], model.trainable_variables, strict=True))
    return loss.reduce_mean()


rng = np.random.RandomState(0)
for _ in range(6):
    loss = train_step(*(tf.constant(rng.rand(8, width), tf.float32) for width in (4, 2)))
    if smp.rank() == 0:
        print(f"loss {float(loss):.9f}", flush=True)
