"""jax.scipy.spatial."""

from typing import TYPE_CHECKING

from gpuflow.base.names import publish as _publish

if TYPE_CHECKING:
    from gpuflow.scipy.spatial import transform as transform

# Imported when it is first asked for.
_MODULES = ("transform",)
_publish(globals(), "scipy.spatial", (), _MODULES)
