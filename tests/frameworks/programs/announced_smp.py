"""The script of AWS's announcement of smdistributed.modelparallel for TensorFlow, with the parts that it leaves out (marked).

`announced_smp.py STEPS`: prints the loss of each step on rank 0, and on each rank its variables and the loss of an evaluation.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tensorflow as tf
from tensorflow.keras.layers import Conv2D, Dense, Flatten

import smdistributed.modelparallel.tensorflow as smp

# Left out there: the data, MNIST in AWS's example.
sys.path.append(str(Path(__file__).resolve().parents[3]))
from tests.frameworks.digits import digits

smp.init()
tf.keras.utils.set_random_seed(1234)  # equal weights on all ranks, for the test


class MyModel(smp.DistributedModel):
    def __init__(self):
        super(MyModel, self).__init__()  # noqa: UP008
        self.conv = Conv2D(32, 3, activation="relu")
        self.flatten = Flatten()
        self.dense1 = Dense(128)
        self.dense2 = Dense(10)

    # Left out there.
    def call(self, x, training=None):
        return self.dense2(self.dense1(self.flatten(self.conv(x))))


# Left out there.
model = MyModel()
loss_obj = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam()
test_loss = tf.keras.metrics.Mean(name="test_loss")
test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")


@smp.step
def forward_backward(images, labels):
    predictions = model(images, training=True)
    loss = loss_obj(labels, predictions)
    grads = optimizer.get_gradients(loss, model.trainable_variables)
    return grads, loss


# Left out there: the loop, and the evaluation that it says may be decorated too.
@tf.function
def train_step(images, labels):
    gradients, loss = forward_backward(images, labels)
    gradients = [g.accumulate() for g in gradients]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905
    return loss.reduce_mean()


@smp.step
def test_step(images, labels):
    predictions = model(images, training=False)
    test_loss(loss_obj(labels, predictions))
    test_accuracy(labels, predictions)
    return predictions


def data(train):
    images, labels = digits(1, 2, train=train)
    return tf.data.Dataset.from_tensor_slices((images[..., tf.newaxis] / 255.0, labels))


train_ds = data(True).shuffle(10000, seed=smp.dp_rank()).repeat().batch(32, drop_remainder=True)
for images, labels in train_ds.take(int(sys.argv[1])):
    loss = train_step(images, labels)
    if smp.rank() == 0:
        print(f"loss {float(loss):.8f}", flush=True)
for images, labels in data(False).batch(148):
    predictions = test_step(images, labels).merge()
names = ", ".join(variable.name for variable in model.trainable_variables)
print(f"rank {smp.rank()} of {smp.size()} has {names}", flush=True)
print(
    f"rank {smp.rank()} evaluated {float(test_loss.result()):.6f} {float(test_accuracy.result()):.6f} {predictions.shape}",
    flush=True,
)
