"""``jax.experimental.layout``: classes that can be named, not made: arrays are row-major."""

from gpuflow.as_jax.internals.absent import absent_class

_REASON = (
    "an array must be dense and row-major, for gpuflow chooses no layouts; got a use of it. Fix: "
    "leave formats and layouts out."
)

Format = absent_class("jax.experimental.layout.Format", _REASON)
Layout = absent_class("jax.experimental.layout.Layout", _REASON)
