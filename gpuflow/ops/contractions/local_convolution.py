"""Locally connected layers: convolutions with a separate kernel at each position.

Tests: tests/ops/test_convolution.py, tests/lax/test_lax_rest.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, PrecisionLike
from gpuflow.ops.contractions.convolution_calls import (
    conv_dimension_numbers,
    conv_general_dilated_patches,
)
from gpuflow.ops.contractions.dot_general import dot_general
from gpuflow.ops.contractions.precision import canonical_precision
from gpuflow.ops.define import types_text
from gpuflow.ops.layout.transpose import transpose


@explained
def conv_general_dilated_local(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    filter_shape: Sequence[int],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: PrecisionLike = None,
) -> Array:
    """Compute a convolution with a separate kernel for each position of the result.

    Args:
        lhs: the input: batch, channels and spatial dimensions.
        rhs: the kernels: output channels, the elements of a kernel in the order (channels,
            *kernel), and the spatial dimensions of the result, in the order of
            ``dimension_numbers``.
        window_strides, padding, lhs_dilation, rhs_dilation: as in ``conv_general_dilated``.
        filter_shape: spatial sizes of the kernel.
        dimension_numbers: see ``conv_dimension_numbers``.
        precision: as in ``dot_general``, except algorithms.

    Returns:
        An array in the order of ``dimension_numbers``.

    Raises:
        TypeError: if dtypes or ranks differ.
        ValueError: if sizes, strides or padding are inconsistent.

    Example:
        >>> x = jnp.arange(4.0).reshape(1, 1, 4)
        >>> kernels = jnp.array([[[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]])
        >>> lax.conv_general_dilated_local(x, kernels, (1,), "VALID", (2,))
        Array([[[0., 2., 5.]]], dtype=float32)
    """
    how = canonical_precision(precision)
    check(
        how is None or (isinstance(how, tuple) and len(how) == 2),
        lambda: (
            "[conv_general_dilated_local] precision must be a lax.Precision, a pair of them, or a "
            f"name; got {how!r}. Fix: precision='highest'."
        ),
        ValueError,
    )
    patches = conv_general_dilated_patches(
        lhs,
        filter_shape,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        dimension_numbers,
        None if how is None else how[0],
    )
    probe = (1, 1, *filter_shape)
    numbers = conv_dimension_numbers(aval_of(lhs).shape, probe, dimension_numbers)
    patches = transpose(patches, numbers.out_spec)
    rank = aval_of(patches).ndim
    check(
        aval_of(rhs).ndim == rank,
        lambda: (
            "[conv_general_dilated_local] operands must have one rank; got "
            f"{types_text([aval_of(lhs), aval_of(rhs)])}. Fix: a kernel for each position."
        ),
    )
    kernels = transpose(rhs, numbers.rhs_spec)
    patch_shape, kernel_shape = aval_of(patches).shape, aval_of(kernels).shape
    check(
        patch_shape[1:] == kernel_shape[1:],
        lambda: (
            "[conv_general_dilated_local] the kernels must have channels times kernel elements as "
            f"inputs, and the space of the result, {patch_shape[1:]}; got {kernel_shape[1:]}. "
            "Fix: rhs, or filter_shape."
        ),
    )
    space = tuple(range(2, rank))
    product = dot_general(patches, kernels, (((1,), (1,)), (space, space)), how)
    # The product has the spatial dimensions first, then batch and outputs.
    order = [0] * rank
    for dim, source in zip(numbers.out_spec, (rank - 2, rank - 1, *range(rank - 2)), strict=True):
        order[dim] = source
    return transpose(product, order)
