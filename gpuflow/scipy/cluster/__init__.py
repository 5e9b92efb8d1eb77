"""jax.scipy.cluster."""

from typing import TYPE_CHECKING

from gpuflow.base.names import publish as _publish

if TYPE_CHECKING:
    from gpuflow.scipy.cluster import vq as vq

# Imported when it is first asked for.
_MODULES = ("vq",)
_publish(globals(), "scipy.cluster", (), _MODULES)
