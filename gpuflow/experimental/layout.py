"""Formats of arrays, as programs written for JAX name them: all arrays are row-major."""

from gpuflow.base.names import public_names, publish
from gpuflow.core.formats import Format as Format
from gpuflow.core.formats import Layout as Layout

publish(globals(), "experimental.layout", public_names(globals()))
