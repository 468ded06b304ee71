"""A Keras model in replicas: `smp_tf_replicas.py PARTITIONS PLACEMENT USE`.

Every job sees the same 16 samples in a step, whatever its number of replicas. Each rank prints the losses of its replica, its places,
and a sum of its weights. USE `sgd` trains; `changed` and `outputs` use gradients in ways that end with an error.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp

PARTITIONS, PLACEMENT, USE = int(sys.argv[1]), sys.argv[2], sys.argv[3]
smp.init({"partitions": PARTITIONS, "microbatches": 2, "placement_strategy": PLACEMENT, "horovod": True})
# Different first weights on each rank but rank 0's pipeline: those of the first replica count.
tf.keras.utils.set_random_seed(5 + smp.dp_rank())
x = np.random.RandomState(0).randint(0, 12, (8, 16, 5))
y = np.random.RandomState(1).rand(8, 16, 3).astype("float32")


class Model(smp.DistributedModel):
    def __init__(self):
        super().__init__()
        self.table = tf.keras.layers.Embedding(12, 6)  # its gradient is sparse
        self.blocks = [tf.keras.layers.Dense(6, activation="tanh") for _ in range(3)]
        self.out = tf.keras.layers.Dense(3)

    def call(self, x, training=None):
        x = tf.reduce_mean(self.table(x), axis=1)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


model = Model()
optimizer = tf.keras.optimizers.SGD(0.5, momentum=0.9)


@smp.step
def forward_backward(x, y):
    loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    gradients = optimizer.get_gradients(loss, model.trainable_variables)
    if USE == "changed":
        gradients = [2.0 * tf.convert_to_tensor(each) for each in gradients]
    return gradients, loss


def train_step(x, y):
    gradients, loss = forward_backward(x, y)
    if USE == "outputs":
        gradients[0].outputs  # noqa: B018
    optimizer.apply_gradients(zip([g.accumulate() for g in gradients], model.trainable_variables, strict=True))
    return loss.reduce_mean()


in_graph = tf.function(train_step)
losses = []
for number in range(8):
    mine = [np.split(each[number], smp.dp_size())[smp.dp_rank()] for each in (x, y)]
    losses.append(float((in_graph if USE == "sgd" and number != 4 else train_step)(*mine)))
for number, loss in enumerate(losses):
    print(f"rank {smp.rank()} step {number} loss {loss:.9f}", flush=True)
places = {name: getattr(smp, name)() for name in ("rank", "mp_rank", "mp_size", "dp_rank", "dp_size", "local_rank")}
total = sum(float(tf.reduce_sum(tf.abs(v))) for v in model.trainable_variables)
print(f"places {json.dumps(places)} weights {total!r}", flush=True)
