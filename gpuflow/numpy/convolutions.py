"""Convolution and correlation of vectors.

Tests: tests/numpy/test_numpy_functions.py, tests/numpy/test_numpy_gradients.py.
"""

from __future__ import annotations

from typing import Any

from gpuflow import lax
from gpuflow.base.arguments import check_choice
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, DTypeLike, PrecisionLike
from gpuflow.numpy.arguments import as_arrays
from gpuflow.numpy.elementary import conj
from gpuflow.numpy.promotion import promote_dtypes, promote_dtypes_inexact

_MODES = ("full", "same", "valid")


@composite
def convolve(
    a: ArrayLike,
    v: ArrayLike,
    mode: str = "full",
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Return the convolution of two vectors, ``sum_k a[k] v[i - k]``.

    Args:
        a, v: vectors of m and n elements; their order does not matter.
        mode: ``"full"``: the whole overlap, m + n - 1 elements; ``"same"``: the size of the longer
            vector; ``"valid"``: only full overlaps.
        precision: precision of the products, as for ``lax.dot``.
        preferred_element_type: dtype of the sum; None uses the dtype of the operands.

    Returns:
        A vector of floats or complex numbers, or of ``preferred_element_type``.

    Raises:
        ValueError: if an argument is not a vector or is empty, or the mode is unknown.

    Example:
        >>> jnp.convolve(jnp.array([1., 2., 3.]), jnp.array([1., 1.]))
        Array([1., 3., 5., 3.], dtype=float32)
        >>> jnp.convolve(jnp.array([1., 2., 3.]), jnp.array([1., 1.]), mode="valid")
        Array([3., 5.], dtype=float32)
    """
    a, v = _vectors("convolve", a, v, mode, preferred_element_type)
    if aval_of(a).size < aval_of(v).size:
        a, v = v, a
    return _slide(a, lax.rev(v, (0,)), mode, precision, preferred_element_type)


@composite
def correlate(
    a: ArrayLike,
    v: ArrayLike,
    mode: str = "valid",
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Return the correlation of two vectors, ``sum_k a[i + k] conj(v[k])``.

    Args:
        a, v: vectors of m and n elements; ``v`` is conjugated.
        mode: ``"valid"``: only full overlaps; ``"same"``: the size of the longer vector;
            ``"full"``: the whole overlap, m + n - 1 elements.
        precision: precision of the products, as for ``lax.dot``.
        preferred_element_type: dtype of the sum; None uses the dtype of the operands.

    Returns:
        A vector of floats or complex numbers, or of ``preferred_element_type``.

    Raises:
        ValueError: if an argument is not a vector or is empty, or the mode is unknown.

    Example:
        >>> jnp.correlate(jnp.array([1., 2., 4.]), jnp.array([0., 1.]))
        Array([2., 4.], dtype=float32)
        >>> jnp.correlate(jnp.array([1., 2., 4.]), jnp.array([0., 1.]), mode="full")
        Array([1., 2., 4., 0.], dtype=float32)
    """
    a, v = _vectors("correlate", a, v, mode, preferred_element_type)
    v = conj(v)
    if aval_of(a).size < aval_of(v).size:
        return lax.rev(_slide(v, a, mode, precision, preferred_element_type), (0,))
    return _slide(a, v, mode, precision, preferred_element_type)


def _vectors(name: str, a: Any, v: Any, mode: str, element_type: Any) -> list[Any]:
    check_choice(name, "mode", mode, _MODES)
    operands = as_arrays(name, a, v)
    avals = [aval_of(x) for x in operands]
    check(
        all(aval.ndim == 1 and aval.size for aval in avals),
        lambda: (
            f"[{name}] operands must be vectors with elements; got {avals[0]} and {avals[1]}. "
            "Fix: gpuflow.vmap for more axes."
        ),
        ValueError,
    )
    return (promote_dtypes_inexact if element_type is None else promote_dtypes)(*operands)


def _slide(x: Any, kernel: Any, mode: str, precision: Any, element_type: Any) -> Any:
    """Sum of products of a kernel with the elements under it, at each kernel position."""
    width = aval_of(kernel).shape[0]
    edges = {
        "valid": (0, 0),
        "same": (width // 2, width - width // 2 - 1),
        "full": (width - 1, width - 1),
    }
    out = lax.conv_general_dilated(
        x[None, None],
        kernel[None, None],
        (1,),
        [edges[mode]],
        precision=precision,
        preferred_element_type=element_type,
    )
    return out[0, 0]
