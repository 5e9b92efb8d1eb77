"""``jax.lib``: the version of jaxlib; ``jax._src.lib`` has a number for its extension modules."""

from gpuflow.as_jax.internals.jaxlib import xla_client as xla_client
from gpuflow.as_jax.versions import __version__ as __version__

jaxlib_extension_version = 0  # there are no extension modules, of which later ones have more
