"""Small neural networks and optimizers, enough for examples: stax and optimizers."""

from gpuflow.base.names import missing_name as _missing_name

# Each is imported when it is first asked for.
_MODULES = ("optimizers", "stax")
__getattr__ = _missing_name(__name__, "example_libraries", (), _MODULES)
