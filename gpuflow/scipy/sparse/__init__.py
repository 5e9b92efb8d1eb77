"""jax.scipy.sparse."""

from typing import TYPE_CHECKING

from gpuflow.base.names import publish as _publish

if TYPE_CHECKING:
    from gpuflow.scipy.sparse import linalg as linalg

# Imported when it is first asked for.
_MODULES = ("linalg",)
_publish(globals(), "scipy.sparse", (), _MODULES)
