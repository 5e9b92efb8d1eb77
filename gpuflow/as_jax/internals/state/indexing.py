"""``jax._src.state.indexing``: the class of Pallas's slices, for checks of types."""

from gpuflow.as_jax.internals.pallas import Slice as Slice
