"""A Keras model on partitions that saves, resumes and exports: `smp_tf_checkpoints.py PARTITIONS MODE FOLDER OPTIMIZER`.

MODE `export`: six steps, a checkpoint after three, and save_model at the end. `before` and `after`: resume from that checkpoint before
or after the first step, and make the other three. `plain`: the same in one process with TensorFlow alone, which also loads the
exported model. `missing`: a checkpoint that is not there. `stop`: steps until the job stops, and a checkpoint; `stopped`: what that has.
Rank 0 prints the loss of each step.
"""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

import algorun
import smdistributed.modelparallel.tensorflow as smp

PARTITIONS, MODE, FOLDER, OPTIMIZER = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
smp.init({"partitions": PARTITIONS, "microbatches": 2})
tf.keras.utils.set_random_seed(7 if MODE == "export" else 8)  # resumed weights are not the first ones
x = np.random.RandomState(0).rand(6, 8, 4).astype("float32")
y = np.random.RandomState(1).rand(6, 8, 3).astype("float32")


class Model(tf.keras.Model if MODE == "plain" else smp.DistributedModel):
    def __init__(self):
        super().__init__()
        self.blocks = [tf.keras.layers.Dense(6, activation="tanh") for _ in range(3)]
        self.norm, self.out = tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(3)

    def call(self, x, training=None):
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x, training=training))


optimizers = {
    "adam": lambda: tf.keras.optimizers.Adam(0.01),
    "legacy": lambda: tf.keras.optimizers.legacy.Adam(0.01),
    "ema": lambda: tf.keras.optimizers.Adam(0.01, use_ema=True),
}
model, optimizer = Model(), optimizers[OPTIMIZER]()
done = tf.Variable(0)
checkpoint = tf.train.Checkpoint(optimizer=optimizer, model=model, done=done)


def loss_of(x, y):
    return tf.reduce_mean((model(x, training=True) - y) ** 2)


@smp.step
def forward_backward(x, y):
    loss = loss_of(x, y)
    return optimizer.get_gradients(loss, model.trainable_variables), loss


@smp.step
def predict(x):
    return model(x, training=False)


@tf.function
def train_step(x, y):
    gradients, loss = forward_backward(x, y)
    optimizer.apply_gradients(zip([g.accumulate() for g in gradients], model.trainable_variables, strict=True))
    return loss.reduce_mean()


def plain_step(x, y):
    losses, gradients = [], []
    for xs, ys in zip(np.split(x, 2), np.split(y, 2), strict=True):
        with tf.GradientTape() as tape:
            losses.append(loss_of(xs, ys))
        gradients.append(tape.gradient(losses[-1], model.trainable_variables))
    means = [tf.add_n(each) / 2 for each in zip(*gradients, strict=True)]
    optimizer.apply_gradients(zip(means, model.trainable_variables, strict=True))
    return tf.add_n(losses) / 2


def train(numbers, step):
    for number in numbers:
        loss = step(x[number], y[number])
        done.assign_add(1)
        if smp.rank() == 0:
            print(f"step {number} loss {float(loss):.9f}", flush=True)


if MODE == "plain":
    checkpoint.restore(f"{FOLDER}/ckpt-1")
    train(range(3, 6), plain_step)
    loaded = tf.saved_model.load(f"{FOLDER}/model")
    off = np.abs(loaded(x[0], training=False) - np.load(f"{FOLDER}/predictions.npy")).max()
    print(f"read {int(done)} steps; the exported model is off by {off:.1e}", flush=True)
    raise SystemExit
manager = smp.CheckpointManager(checkpoint, FOLDER, max_to_keep=2)
if MODE == "stop":
    while not algorun.should_stop():  # on every rank, once a step
        train_step(x[int(done) % 6], y[int(done) % 6])
        if done.assign_add(1) == 5:
            print(f"rank {smp.rank()} trains", flush=True)
    path = manager.save()
    print(f"rank {smp.rank()} saved {path}", flush=True)
if MODE == "stopped":
    path = manager.restore()
if MODE in ("stop", "stopped"):
    output = tf.reduce_sum(predict(x[0]).merge())
    print(f"rank {smp.rank()} has {int(done)} steps and output {float(output):.9f}", flush=True)
    raise SystemExit
if MODE == "missing":
    manager.restore("ckpt-9")
if MODE == "before":
    assert manager.restore_or_initialize() == f"{FOLDER}/ckpt-1"
if MODE == "after":
    train_step(x[5], y[5])
    manager.restore()
if MODE == "export":
    manager.restore()  # nothing yet
    train(range(3), train_step)
    path = manager.save()
    assert manager.latest_checkpoint == path
    assert manager.checkpoints == [path]
    print(f"rank {smp.rank()} saved {path} as number {int(checkpoint.save_counter)}", flush=True)
train(range(3, 6), train_step)
assert int(done) == 6
if MODE == "export":
    predictions = predict(x[0]).merge()
    model.save_model(f"{FOLDER}/model")
    assert np.array_equal(predictions, predict(x[0]).merge())
    if smp.rank() == 0:
        np.save(f"{FOLDER}/predictions.npy", predictions)
names = ", ".join(variable.name for variable in model.variables)
print(f"rank {smp.rank()} has {names}", flush=True)
