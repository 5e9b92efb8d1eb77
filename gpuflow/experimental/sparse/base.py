"""Base class of sparse arrays of all formats.

Tests: tests/experimental/test_sparse.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpuflow.base.errors import check
from gpuflow.core.aval import aval_of, is_value
from gpuflow.core.trace import Tracer
from gpuflow.core.types import Array


class SparseEfficiencyError(ValueError):
    """A layout would store many zeros."""


class SparseEfficiencyWarning(UserWarning):
    """A layout stores many zeros."""


class CuSparseEfficiencyWarning(SparseEfficiencyWarning):
    """Never raised: there is one implementation."""


class JAXSparse:
    """A sparse array: a pytree of its stored arrays.

    Attributes:
        data: the stored elements. Elements with an index out of bounds are padding.
    """

    data: Any
    # NumPy leaves its operators to these classes.
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the dense array."""
        raise NotImplementedError(_lacks(self, "shape"))

    @property
    def nse(self) -> int:
        """Number of stored elements in each batch, including padding."""
        raise NotImplementedError(_lacks(self, "nse"))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements."""
        return aval_of(self.data).dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements, including zeros."""
        return math.prod(self.shape)

    @property
    def T(self) -> Any:
        """The transpose."""
        return self.transpose()

    def transpose(self, axes: Any = None) -> Any:
        """Permute the dimensions."""
        raise NotImplementedError(_lacks(self, "transpose"))

    def todense(self) -> Array:
        """Convert to a dense array."""
        raise NotImplementedError(_lacks(self, "todense"))

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """Return the stored arrays and the static data."""
        raise NotImplementedError(_lacks(self, "tree_flatten"))

    def block_until_ready(self) -> Any:
        """Wait for the stored arrays."""
        for leaf in self.tree_flatten()[0]:
            leaf.block_until_ready()
        return self

    def __len__(self) -> int:
        return self.shape[0]

    def _extra(self) -> str:
        """Further text of an array's repr."""
        text = f"nse={self.nse}"
        for name in ("n_batch", "n_dense"):
            count = getattr(self, name, 0)
            text += f", {name}={count}" if count else ""
        return text

    def __repr__(self) -> str:
        name = type(self).__name__
        if not all(is_value(leaf) for leaf in self.tree_flatten()[0]):
            return f"{name}(<invalid>)"
        text = f"{name}({self.dtype}{[*self.shape]}, {self._extra()})"
        return f"{type(self.data).__name__}[{text}]" if isinstance(self.data, Tracer) else text


def batch_axis(array: Any, axis: int, what: str) -> int:
    """Return the mapped axis: a batch dimension, or the one that a result can have.

    Raises:
        ValueError: another axis.
    """
    count = array.n_batch + (what == "out_axes")
    check(
        0 <= axis < count,
        lambda: (
            f"[vmap] {what} of a {type(array).__name__} must be one of its batch dimensions, "
            f"counted from the front{', or one that follows them' if what == 'out_axes' else ''}; "
            f"got {axis} for {array!r}. Fix: update_layout(n_batch=...)"
            f"{', or None for an argument that is not mapped' if what == 'in_axes' else ''}."
        ),
        ValueError,
    )
    return axis


def _lacks(array: Any, name: str) -> str:
    kind = type(array).__name__
    return f"[{kind}] the format must have {name}; got {kind}. Fix: use BCOO."
