"""A script for horovod.tensorflow or smdistributed.dataparallel.tensorflow, as their documentation has it.

`reduce_with_tensorflow.py hvd|sdp train|fit|values|FAULT`: trains on this rank's part of each batch and prints the weights;
prints what each function makes of values that tell the rank; or ends with a fault.
"""

from __future__ import annotations

import json
import sys

LIBRARY, MODE = sys.argv[1:]

if LIBRARY == "hvd":
    import horovod.tensorflow as library

    average, total, least = library.Average, library.Sum, library.Min
else:
    import smdistributed.dataparallel.tensorflow as library

    average, total, least = library.ReduceOp.AVERAGE, library.ReduceOp.SUM, library.ReduceOp.MIN

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

library.init()
me = library.rank()
rng = np.random.default_rng(7)
steps = 10
x = rng.integers(0, 12, (steps, 8, 3))
y = rng.random((steps, 8, 2), dtype=np.float32)


def mine(batch):
    """This rank's part of a batch."""
    return np.split(batch, library.size())[me]


def sequential():
    tf.keras.utils.set_random_seed(1 + me)  # other weights on each rank, until they are broadcast
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [tf.keras.Input(shape=(3,), dtype="int64"), layers.Embedding(12, 4), layers.Flatten(), layers.Dense(2)]
    )


def train():
    model, optimizer = sequential(), tf.keras.optimizers.Adam(0.05)
    optimizer.build(model.trainable_variables)

    @tf.function
    def training_step(x, y, first_batch):
        if first_batch:
            library.broadcast_variables(model.variables, root_rank=0)
            variables = optimizer.variables
            library.broadcast_variables(variables() if callable(variables) else variables, root_rank=0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        tape = library.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return library.allreduce(loss)

    losses = [float(training_step(mine(x[n]), mine(y[n]), tf.constant(n == 0))) for n in range(steps)]
    show(model, losses)


def fit():
    model = sequential()
    for variable in model.variables:
        variable.assign(library.broadcast(tf.convert_to_tensor(variable), root_rank=0))
    optimizer = library.DistributedOptimizer(tf.keras.optimizers.Adam(0.05))
    model.compile(optimizer=optimizer, loss="mse")
    parts = [np.concatenate([mine(each) for each in given]) for given in (x, y)]
    model.fit(*parts, batch_size=8 // library.size(), epochs=1, shuffle=False, verbose=0)
    show(model, [])


def show(model, losses):
    weights = np.concatenate([np.ravel(each) for each in model.get_weights()]).tolist()
    row = {"rank": me, "local": library.local_rank(), "losses": losses, "weights": weights}
    print(f"row {json.dumps(row)}", flush=True)


def values():
    row = {}

    def reduced():
        given = tf.constant([1.0, 2.0]) * (me + 1)
        slices = tf.IndexedSlices(tf.ones([1, 2]) * (me + 1.0), tf.constant([me]), tf.constant([4, 2]))
        with tf.GradientTape() as tape:
            tape.watch(given)
            summed = library.allreduce(given**2, op=total)
        return {
            "mean": library.allreduce(given),
            "least": library.allreduce(given, op=least),
            "whole": library.allreduce(tf.constant([me, 7]), op=total),
            "short": library.allreduce(tf.constant([me + 1], tf.int16), op=total),
            "narrow": tf.cast(library.allreduce(tf.cast(given, tf.bfloat16)), tf.float32),
            "gradient": tape.gradient(summed, given),
            "slices": tf.convert_to_tensor(library.allreduce(slices)),
            "last": library.broadcast(given, root_rank=library.size() - 1),
        }

    for name, function in (("eager", reduced), ("graph", tf.function(reduced))):
        row[name] = {key: np.asarray(value).tolist() for key, value in function().items()}
    print(f"row {json.dumps(row)}", flush=True)


def fault():
    given = tf.constant([1.0] * (1 + me))
    if MODE == "shapes":
        library.allreduce(given)
    if MODE == "integers":
        library.allreduce(tf.constant([1, 2]))
    if MODE == "root":
        library.broadcast(given, root_rank=5)
    if MODE == "option":
        library.DistributedGradientTape(tf.GradientTape(), backward_passes_per_step=2)
    if MODE == "name":
        library.broadcast_global_variables(0)
    if MODE == "optimizer":
        library.DistributedOptimizer(object())
    if MODE == "start":
        library.shutdown()
        library.size()
    print("no error", flush=True)


{"train": train, "fit": fit, "values": values}.get(MODE, fault)()
