"""SageMaker's data parallel library for TensorFlow, as its documentation has it."""

import facts
import tensorflow as tf

import smdistributed.dataparallel.tensorflow as sdp

sdp.init()
rank, world_size = sdp.rank(), sdp.size()
weight = tf.Variable([1.0 + rank])  # another one on each rank
sdp.broadcast_variables([weight], root_rank=0)
optimizer = tf.keras.optimizers.SGD(1.0)
with tf.GradientTape() as tape:
    loss = weight * (rank + 1)
tape = sdp.DistributedGradientTape(tape)
(gradient,) = tape.gradient(loss, [weight])
optimizer.apply_gradients([(gradient, weight)])
total = float((1 - weight[0]) * world_size)  # the gradient was the mean of the ranks + 1
facts.write(rank, world_size=world_size, total=total, local_rank=sdp.local_rank())
if rank == 0:
    facts.save_model(total=total)
print(f"rank {rank} of {world_size} done")
