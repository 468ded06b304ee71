"""A Keras model of some kind on partitions, beside the same model in one process: `smp_keras_models.py KIND PARTITIONS`.

Prints on each rank the largest difference of its gradients, of the loss, and of the variables that a step changes, in float64.
"""

from __future__ import annotations

import sys
from typing import ClassVar

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers

import smdistributed.modelparallel.tensorflow as smp

KIND, PARTITIONS = sys.argv[1], int(sys.argv[2])
smp.init({"partitions": PARTITIONS, "microbatches": 2, "pipeline": "interleaved"})
tf.keras.backend.set_floatx("float64")
draw = np.random.RandomState(0)


class Residual(layers.Layer):
    """Two dense layers around which the input passes."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second, self.norm = layers.Dense(2 * width), layers.Dense(width), layers.LayerNormalization()

    def call(self, x):
        return self.norm(x + self.second(tf.nn.gelu(self.first(x))))


class Dense:
    def __init__(self):
        super().__init__()
        self.blocks = [layers.Dense(16, activation="tanh") for _ in range(3)]
        self.out = layers.Dense(5)

    def call(self, x, training=None):
        for block in self.blocks:
            x = block(x)
        return self.out(x)

    batch = draw.rand(8, 6)


class Convolutions(Dense):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = layers.Conv2D(4, 3), layers.BatchNormalization()
        self.flatten = layers.Flatten()

    def call(self, x, training=None):
        return super().call(self.flatten(tf.nn.relu(self.norm(self.conv(x), training=training))))

    batch = draw.rand(8, 8, 8, 2)


class Skip(Dense):
    """A tensor that crosses every cut, a layer called twice, and arithmetic between layers."""

    def call(self, x, training=None):
        a = self.blocks[0](x)
        b = self.blocks[1](a) * 2.0 + a
        return self.out(self.blocks[2](b) + a) + tf.reduce_mean(x, axis=1, keepdims=True)


class Twice(Dense):
    """A layer called twice."""

    def call(self, x, training=None):
        a = self.blocks[0](x)
        return self.out(self.blocks[2](self.blocks[1](self.blocks[1](a))))


class Nested(Dense):
    """Layers that hold layers."""

    def __init__(self):
        super().__init__()
        self.blocks = [Residual(6), Residual(6), Residual(6)]


class Embedding(Dense):
    """A table of vectors: its gradient is sparse."""

    def __init__(self):
        super().__init__()
        self.table = layers.Embedding(20, 6)

    def call(self, x, training=None):
        return super().call(tf.reduce_mean(self.table(x), axis=1))

    batch = draw.randint(0, 20, (8, 7))


class Attention(Dense):
    def __init__(self):
        super().__init__()
        self.table, self.attend = layers.Embedding(20, 8), layers.MultiHeadAttention(2, 4)
        self.norm = layers.LayerNormalization()

    def call(self, x, training=None):
        found = self.table(x)
        found = self.norm(found + self.attend(found, found))
        return super().call(found[:, 0])

    batch = draw.randint(0, 20, (8, 7))


class Recurrent(Dense):
    """A loop of TensorFlow inside a layer."""

    def __init__(self):
        super().__init__()
        self.lstm = layers.LSTM(6)

    def call(self, x, training=None):
        return super().call(self.lstm(x))

    batch = draw.rand(8, 5, 3)


class Several(Dense):
    """Two inputs and two outputs."""

    def __init__(self):
        super().__init__()
        self.other = layers.Dense(5)

    def call(self, both, training=None):
        x, y = both["x"], both["y"]
        h = self.blocks[1](self.blocks[0](x))
        return self.out(h), self.other(self.blocks[2](tf.concat([h, y], 1)))

    batch: ClassVar = {"x": draw.rand(8, 6), "y": draw.rand(8, 2)}


class Own(Dense):
    """A weight of the model's own, used between layers."""

    def __init__(self):
        super().__init__()
        self.scale = self.add_weight(name="scale", shape=(16,), initializer="ones")

    def call(self, x, training=None):
        return self.out(self.blocks[2](self.blocks[1](self.blocks[0](x)) * self.scale))


class Functional(Dense):
    """A Sequential model and one of the functional form, each as a layer."""

    def __init__(self):
        super().__init__()
        self.front = tf.keras.Sequential([layers.Dense(12, activation="relu"), layers.LayerNormalization()])
        start = tf.keras.Input(shape=(12,))
        wide = layers.Dense(24, activation="tanh")(start)
        self.body = tf.keras.Model(start, layers.add([layers.Dense(12)(wide), start]))

    def call(self, x, training=None):
        return super().call(self.body(self.front(x, training=training), training=training))

    batch = draw.rand(8, 6)


class Depthwise(Dense):
    """Separable convolutions, pooling, and a gate between two branches."""

    def __init__(self):
        super().__init__()
        self.conv, self.pool = layers.SeparableConv2D(6, 3, padding="same"), layers.MaxPooling2D()
        self.left, self.right = layers.DepthwiseConv2D(3, padding="same"), layers.Conv2D(6, 1, activation="sigmoid")
        self.mean = layers.GlobalAveragePooling2D()

    def call(self, x, training=None):
        x = self.pool(self.conv(x))
        return super().call(self.mean(self.left(x) * self.right(x)))

    batch = draw.rand(8, 8, 8, 2)


KINDS = {
    each.__name__.lower(): each
    for each in (
        Dense,
        Convolutions,
        Skip,
        Twice,
        Nested,
        Embedding,
        Attention,
        Recurrent,
        Several,
        Own,
        Functional,
        Depthwise,
    )
}
body = KINDS[KIND]


def loss_of(model, x, labels):
    outputs = model(x, training=True)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return tf.add_n([entropy(labels, each) for each in outputs])


plain, model = (type("Model", (body, base), {})() for base in (tf.keras.Model, smp.DistributedModel))
inputs, labels = tf.nest.map_structure(tf.constant, body.batch), tf.constant(np.arange(8) % 5)
microbatches = [tf.nest.map_structure(lambda each: tf.split(each, 2)[n], (inputs, labels)) for n in range(2)]  # noqa: B023
optimizer = tf.keras.optimizers.SGD()


@smp.step
def step(x, labels):
    loss = loss_of(model, x, labels)
    return optimizer.get_gradients(loss, model.trainable_variables), loss


step(inputs, labels)  # makes the variables and cuts the model
loss_of(plain, *microbatches[0])
own = {id(variable) for variable in model.variables}
pairs = list(zip(model.all_variables(), plain.variables, strict=True))
for mine, theirs in pairs:  # drawn anew on each rank
    theirs.assign(tf.constant(np.random.RandomState(theirs.shape.num_elements()).randn(*theirs.shape) * 0.4 + 0.01))
    if "moving_variance" in theirs.name:
        theirs.assign(tf.abs(theirs))
    if id(mine) in own:
        mine.assign(theirs)
gradients, loss = step(inputs, labels)
wanted, losses = [], []
for x, y in microbatches:
    with tf.GradientTape() as tape:
        losses.append(loss_of(plain, x, y))
    found = tape.gradient(losses[-1], plain.trainable_variables)
    wanted.append([tf.convert_to_tensor(each) for each in found])
mean = [tf.add_n(each) / 2 for each in zip(*wanted, strict=True)]
numbers = [n for n, (mine, _) in enumerate(p for p in pairs if p[0].trainable) if id(mine) in own]
assert len(numbers) == len(gradients) == len(model.trainable_variables), (len(numbers), len(gradients))
mine = [tf.convert_to_tensor(each.accumulate()) for each in gradients]
distance = max(float(tf.reduce_max(tf.abs(each - mean[n]))) for n, each in zip(numbers, mine, strict=True))
size = max(float(tf.reduce_max(tf.abs(each))) for each in mine)
changed = [float(tf.reduce_max(tf.abs(a - b))) for a, b in pairs if id(a) in own]
off = abs(float(loss.reduce_mean()) - sum(map(float, losses)) / 2)
print(
    f"rank {smp.rank()}: {len(mine)} gradients up to {size:.3f}, off by {distance:.1e}, loss {off:.1e}, variables {max(changed):.1e}",
    flush=True,
)
