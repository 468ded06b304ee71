"""A line fitted by Keras and MultiWorkerMirroredStrategy, three epochs or until something happens.

`fit_with_tensorflow.py [END RANK]`. END: `raise` or `kill` after the third epoch on that rank; `stop`: every rank goes on
until the job stops.
"""

from __future__ import annotations

import os
import signal
import sys

import tensorflow as tf

import algorun

end, rank = (sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 2 else ("", -1)


def meet_the_end(epoch: int, logs: object) -> None:
    if epoch == 0:
        print("fitting", flush=True)
    if epoch == 2 and end != "stop" and os.environ["RANK"] == str(rank):
        if end == "raise":
            raise ValueError("a bad sample")
        os.kill(os.getpid(), signal.SIGKILL)


def stop_together(epoch: int, logs: object) -> None:
    mine = tf.constant(float(algorun.should_stop()))
    wanted = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, mine))
    if wanted > 0:
        model.stop_training = True
        print(f"stopped after epoch {epoch}", flush=True)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
inputs = tf.constant([[float(number % 4)] for number in range(64)])
samples = tf.data.Dataset.from_tensor_slices((inputs, 3 * inputs)).repeat().batch(16)
with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", input_shape=(1,))]
    )
    model.compile(optimizer=tf.keras.optimizers.SGD(0.05), loss="mse")
callbacks = [tf.keras.callbacks.LambdaCallback(on_epoch_end=each) for each in (meet_the_end, stop_together)]
model.fit(samples, epochs=10**6 if end else 3, steps_per_epoch=4, verbose=0, callbacks=callbacks)
print(f"weight {model.get_weights()[0].item():.5f} of {strategy.num_replicas_in_sync} replicas", flush=True)
