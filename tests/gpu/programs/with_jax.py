"""The start that docs/frameworks.md gives for JAX, then a product on the device and a sum over all processes."""

import os

import jax

jax.distributed.initialize(num_processes=int(os.environ["WORLD_SIZE"]), process_id=int(os.environ["RANK"]))

SIDE = 1024

device = jax.local_devices()[0]
ones = jax.device_put(jax.numpy.ones((SIDE, SIDE)), device)
product = float(jax.jit(lambda left, right: (left @ right).sum())(ones, ones))
summed = jax.pmap(lambda value: jax.lax.psum(value, "all"), axis_name="all")(
    jax.numpy.full(jax.local_device_count(), jax.process_index() + 1.0)
)
print(
    f"jax {jax.__version__} on {device.platform}: product {product:.0f}, sum {float(summed[0]):.1f} "
    f"of {jax.process_count()} processes, {jax.device_count()} devices",
    flush=True,
)
