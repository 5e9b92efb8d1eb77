"""Annotations for functions of arrays, under the names of jax.typing."""

from __future__ import annotations

from typing import Any, Protocol, Union

import numpy as np

from gpuflow.base.names import publish
from gpuflow.runtime.array import Array


class SupportsDType(Protocol):
    """An object with a dtype, such as an array."""

    @property
    def dtype(self) -> np.dtype: ...


# What functions take for an array; lists are not among them. A Union, since libraries that print
# annotations read its name.
ArrayLike = Union[  # noqa: UP007
    Array, np.ndarray, np.bool_, np.number, bool, int, float, complex
]
# What functions take for a dtype: a name, a type of numbers, a dtype, or what has one.
DTypeLike = str | type[Any] | np.dtype | SupportsDType

publish(globals(), "typing", ["ArrayLike", "DTypeLike"])
