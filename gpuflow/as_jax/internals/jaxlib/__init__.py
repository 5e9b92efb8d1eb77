"""``jaxlib``: its version, and classes that libraries ask for in its extension modules."""

from gpuflow.as_jax.versions import __version__ as __version__
from gpuflow.as_jax.versions import __version_info__ as __version_info__
