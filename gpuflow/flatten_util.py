"""Conversion of pytrees of arrays to vectors, under the names of jax.flatten_util.

Tests: tests/test_flatten_util.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import tree as base_tree
from gpuflow.base.errors import check
from gpuflow.base.names import public_names, publish
from gpuflow.core.aval import aval_of
from gpuflow.numpy.promotion import check_arraylike, common_type, convert
from gpuflow.numpy.shaping import ravel
from gpuflow.ops.zeros import full


def ravel_pytree(pytree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Flatten a pytree of arrays into one vector.

    Args:
        pytree: a pytree of arrays, which are promoted to their common dtype.

    Returns:
        The vector, and a function from such a vector to a pytree of the same structure, shapes and
        dtypes. A pytree without leaves gives an empty float32 vector.

    Raises:
        TypeError: if a leaf is not an array, or the vector passed to ``unravel`` has another dtype.
        ValueError: if the vector passed to ``unravel`` has another length.

    Example:
        >>> vector, back = gf.flatten_util.ravel_pytree({"w": jnp.ones((2, 2)), "b": jnp.zeros(1)})
        >>> vector
        Array([0., 1., 1., 1., 1.], dtype=float32)
        >>> back(2 * vector)["w"].shape
        (2, 2)
    """
    leaves, treedef = base_tree.flatten(pytree)
    leaves = check_arraylike("ravel_pytree", *leaves)
    avals = [aval_of(leaf) for leaf in leaves]
    if not leaves:
        dtype, flat = np.dtype(np.float32), full((0,), 0, np.float32)
    else:
        dtype = common_type(avals)[0] if len({aval.dtype for aval in avals}) > 1 else avals[0].dtype
        flat = lax.concatenate([ravel(convert(leaf, dtype)) for leaf in leaves], 0)
    ends = np.cumsum([0, *[aval.size for aval in avals]])

    def unravel(vector: Any) -> Any:
        vector_aval = aval_of(vector)
        check(
            vector_aval.shape == (int(ends[-1]),),
            lambda: (
                "[ravel_pytree] the vector must have the length of the tree; got "
                f"{vector_aval} for {int(ends[-1])} elements. "
                "Fix: pass a vector like the one ravel_pytree gave."
            ),
            ValueError,
        )
        check(
            vector_aval.dtype == dtype,
            lambda: (
                f"[ravel_pytree] the vector must have the dtype of the tree, {dtype}; got "
                f"{vector_aval}. Fix: x.astype({dtype.name!r})."
            ),
        )
        segments = [
            lax.reshape(lax.slice(vector, (int(start),), (int(stop),)), aval.shape)
            for start, stop, aval in zip(ends[:-1], ends[1:], avals, strict=True)
        ]
        pairs = zip(segments, avals, strict=True)
        return base_tree.unflatten(treedef, [convert(x, aval.dtype) for x, aval in pairs])

    return flat, unravel


publish(globals(), "flatten_util", public_names(globals(), __name__))
