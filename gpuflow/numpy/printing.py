"""Arrays as text: NumPy's functions and print options, which gpuflow arrays obey.

Tests: tests/numpy/test_numpy_errors.py, tests/test_docstrings.py.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.numpy.arguments import as_array


@explained
def array_repr(
    arr: Any,
    max_line_width: int | None = None,
    precision: int | None = None,
    suppress_small: bool | None = None,
) -> str:
    """Format an array as a constructor call.

    Args:
        arr: array.
        max_line_width, precision, suppress_small: by default those of ``set_printoptions``.

    Returns:
        A str, as from ``repr``.

    Example:
        >>> jnp.array_repr(jnp.array([1.25, 2.0]), precision=1)
        'Array([1.2, 2. ], dtype=float32)'
    """
    x = as_array("array_repr", arr)
    with np.printoptions(**_options(max_line_width, precision, suppress_small)):
        return repr(x)


@explained
def array_str(
    a: Any,
    max_line_width: int | None = None,
    precision: int | None = None,
    suppress_small: bool | None = None,
) -> str:
    """Format the values of an array.

    Args:
        a: array.
        max_line_width: maximum length of a line; by default that of ``set_printoptions``.
        precision: number of digits after the decimal point; by default that of
            ``set_printoptions``.
        suppress_small: whether to print numbers near 0 as 0; by default that of
            ``set_printoptions``.

    Returns:
        A str, as from ``str``.

    Example:
        >>> jnp.array_str(jnp.array([1.25, 2.0]), precision=1)
        '[1.2 2. ]'
    """
    x = as_array("array_str", a)
    with np.printoptions(**_options(max_line_width, precision, suppress_small)):
        return str(x)


def _options(width: int | None, precision: int | None, suppress: bool | None) -> dict[str, Any]:
    for what, limit in (("max_line_width", width), ("precision", precision)):
        check(
            limit is None or abs(limit) < 2**31,
            lambda what=what, limit=limit: (
                f"[array_repr] {what} must fit into 32 bits; got {limit}. Fix: {what}=75."
            ),
            ValueError,
        )
    options = {"linewidth": width, "precision": precision, "suppress": suppress}
    return {name: value for name, value in options.items() if value is not None}


def get_printoptions() -> dict[str, Any]:
    """Return the print options; gpuflow uses NumPy's.

    Returns:
        A dict of the options by name.

    Example:
        >>> jnp.get_printoptions()["precision"]
        8
    """
    return dict(np.get_printoptions())


@explained
def set_printoptions(*args: Any, **kwargs: Any) -> None:
    """Set the print options, also those of NumPy.

    Args:
        args, kwargs: NumPy's options: ``precision``, ``threshold``, ``edgeitems``, ``linewidth``,
            ``suppress`` and the other options of ``np.set_printoptions``.

    Returns:
        None.

    Example:
        >>> options = jnp.get_printoptions()
        >>> jnp.set_printoptions(precision=2)
        >>> print(jnp.array([0.123456]))
        [0.12]
        >>> jnp.set_printoptions(**options)
    """
    np.set_printoptions(*args, **kwargs)


def printoptions(*args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
    """Set the print options inside the block, also those of NumPy.

    Args:
        args, kwargs: NumPy's options: ``precision``, ``threshold``, ``edgeitems``, ``linewidth``,
            ``suppress`` and the other options of ``np.set_printoptions``.

    Returns:
        A context manager, which returns the options as a dict.

    Example:
        >>> with jnp.printoptions(precision=2):
        ...     print(jnp.array([0.123456]))
        [0.12]
    """
    return np.printoptions(*args, **kwargs)
