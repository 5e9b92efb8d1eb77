"""Small neural networks and optimizers for examples: stax and optimizers."""

from typing import TYPE_CHECKING

from gpuflow.base.names import publish as _publish

if TYPE_CHECKING:
    from gpuflow.example_libraries import optimizers as optimizers
    from gpuflow.example_libraries import stax as stax

# Each is imported when it is first asked for.
_MODULES = ("optimizers", "stax")
_publish(globals(), "example_libraries", (), _MODULES)
