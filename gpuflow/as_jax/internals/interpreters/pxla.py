"""``jax.interpreters.pxla``: names for annotations."""

from gpuflow.core.mesh import Mesh as Mesh
