"""``jax.experimental.colocated_python.serialization``: a class for annotations."""

from gpuflow.as_jax.internals.absent import absent_class

DeviceList = absent_class(
    "jax.experimental.colocated_python.serialization.DeviceList",
    "devices must be those of jax.devices(); got a list of them. Fix: a tuple of devices.",
)
