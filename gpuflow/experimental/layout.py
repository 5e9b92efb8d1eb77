"""Array formats under the names of JAX: all arrays are row-major.

Tests: tests/experimental/test_older_names.py.
"""

from typing import Any

import numpy as np

from gpuflow.base.errors import check
from gpuflow.base.names import publish
from gpuflow.base.tree import broadcast_prefix, leaves
from gpuflow.core.formats import Format as Format
from gpuflow.core.formats import Layout as Layout


def with_layout_constraint(x: Any, layouts: Any) -> Any:
    """Return ``x`` unchanged after checking that the layouts are row-major.

    Args:
        x: a pytree of arrays of any shapes and dtypes.
        layouts: a Layout for each array, or a prefix of the tree with Layouts as its leaves.

    Returns:
        ``x``.

    Raises:
        ValueError: if a leaf of ``layouts`` is not a Layout of as many dimensions as its array.

    Example:
        >>> import gpuflow.numpy as jnp
        >>> from gpuflow.experimental.layout import Layout, with_layout_constraint
        >>> with_layout_constraint(jnp.ones((2, 3)), Layout((0, 1))).shape
        (2, 3)
    """
    expanded = broadcast_prefix(layouts, x, "with_layout_constraint")
    for leaf, layout in zip(leaves(x), expanded, strict=True):
        check(
            isinstance(layout, Layout) and len(layout.major_to_minor) == np.ndim(leaf),
            lambda leaf=leaf, layout=layout: (
                "[with_layout_constraint] each array must have a "
                f"Layout of its dimensions; got {layout!r} for an array of {np.ndim(leaf)} "
                "dimensions. "
                f"Fix: with_layout_constraint(x, Layout({tuple(range(np.ndim(leaf)))}))."
            ),
            ValueError,
        )
    return x


publish(globals(), "experimental.layout", ("Format", "Layout", "with_layout_constraint"))
