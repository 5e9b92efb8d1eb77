"""Annotations for functions of arrays, under the names of jax.typing.

Tests: tests/test_surface_modules.py.
"""

from __future__ import annotations

from typing import Any, Protocol, Union

import numpy as np

from gpuflow.base.names import publish
from gpuflow.runtime.array import Array


class SupportsDType(Protocol):
    """An object with a dtype, such as an array."""

    @property
    def dtype(self) -> np.dtype: ...


# Anything that functions accept as an array, lists excluded. A Union, since libraries that print
# annotations read its name.
ArrayLike = Union[  # noqa: UP007
    Array, np.ndarray, np.bool_, np.number, bool, int, float, complex
]
# Anything that functions accept as a dtype: a name, a scalar type, a dtype, or an object with one.
DTypeLike = str | type[Any] | np.dtype | SupportsDType

publish(globals(), "typing", ["ArrayLike", "DTypeLike"])
