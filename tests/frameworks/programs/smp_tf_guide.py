"""What the scripts of AWS's developer guide do, "Modify a TensorFlow training script": `smp_tf_guide.py auto|horovod|manual STEPS`.

Its three sections: automated splitting, the same with Horovod, and manual splitting. A step returns gradients, loss and predictions; a
metric takes the merged predictions in the script's tf.function. Prints the loss of each step and the accuracy of each epoch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp

SECTION, STEPS, EPOCHS = sys.argv[1], int(sys.argv[2]), 2
if SECTION == "horovod":
    import horovod.tensorflow as hvd
sys.path.append(str(Path(__file__).resolve().parents[3]))
from tests.frameworks.digits import digits  # noqa: E402

smp.init()
tf.keras.utils.set_random_seed(1234)  # equal weights with any number of partitions, for the test
images, labels = digits(1, 2, train=True)
data = tf.data.Dataset.from_tensor_slices((images[..., tf.newaxis] / 255.0, labels))
data = data.shuffle(10000, seed=smp.dp_rank()).repeat().batch(32, drop_remainder=True)


class Automated(smp.DistributedModel):
    def __init__(self):
        super().__init__()
        self.conv = tf.keras.layers.Conv2D(32, 3, activation="relu")
        self.flatten = tf.keras.layers.Flatten()
        self.dense1, self.dense2 = tf.keras.layers.Dense(128), tf.keras.layers.Dense(10)

    def call(self, x, training=None):
        return self.dense2(self.dense1(self.flatten(self.conv(x))))


class Manual(Automated):
    def call(self, x):  # as in the guide, whose steps call the model with training=True
        with smp.partition(0):
            x = self.conv(x)
        with smp.partition(1):
            return self.dense2(self.dense1(self.flatten(x)))


model = Manual() if SECTION == "manual" else Automated()
loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam()
train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")


@smp.step
def get_grads(images, labels):
    predictions = model(images, training=True)
    loss = loss_object(labels, predictions)
    return optimizer.get_gradients(loss, model.trainable_variables), loss, predictions


@tf.function
def train_step(images, labels, first_batch):
    gradients, loss, predictions = get_grads(images, labels)
    gradients = [g.accumulate() for g in gradients]
    if SECTION == "horovod":
        gradients = [hvd.allreduce(g) for g in gradients]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905
    if SECTION == "horovod" and first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables(), root_rank=0)
    train_accuracy(labels, predictions.merge())
    return loss.reduce_mean()


for epoch in range(EPOCHS):
    train_accuracy.reset_states()
    for step, (images, labels) in enumerate(data.take(STEPS // EPOCHS)):
        loss = train_step(images, labels, tf.constant(epoch == step == 0))
        if smp.mp_rank() == 0:
            print(f"replica {smp.dp_rank()} loss {float(loss):.8f}", flush=True)
    print(f"replica {smp.dp_rank()} epoch {epoch} accuracy {float(train_accuracy.result()):.8f}", flush=True)
names = " ".join(variable.name.split("/")[1] for variable in model.trainable_variables)
print(f"rank {smp.rank()} has {names}", flush=True)
