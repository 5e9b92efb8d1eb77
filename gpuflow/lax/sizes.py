"""Shape functions: results of convolutions and window reductions, and arrays of sizes.

Tests: tests/lax/test_lax_rest.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import HasAval, aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.lax.shapes import asarray, broadcast
from gpuflow.ops.contractions.convolution import dilated, window_count
from gpuflow.ops.contractions.convolution_calls import conv_transpose_pads, padtype_to_pads
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.layout.axes import broadcast_in_dim

Shape = tuple[int, ...]
Padding = str | Sequence[tuple[int, int]]


@explained
def broadcast_to_rank(x: ArrayLike, rank: int) -> Array:
    """Add leading dimensions of size 1 to ``x`` up to ``rank`` dimensions.

    Args:
        x: array.
        rank: rank of the result.

    Returns:
        An array with the same elements.

    Example:
        >>> lax.broadcast_to_rank(jnp.ones(3), 2).shape
        (1, 3)
    """
    missing = rank - aval_of(x).ndim
    return broadcast(x, (1,) * missing) if missing > 0 else asarray(x)


@explained
def broadcast_like(arr: ArrayLike, like_arr: ArrayLike) -> Array:
    """Broadcast ``arr`` to the shape of another array.

    Args:
        arr: array.
        like_arr: array with the requested shape.

    Returns:
        An array of the dtype of ``arr``.

    Raises:
        TypeError: if shapes do not match.

    Example:
        >>> lax.broadcast_like(jnp.array([1, 2]), jnp.zeros((2, 2)))
        Array([[1, 2],
               [1, 2]], dtype=int32)
    """
    shape, rank = aval_of(like_arr).shape, aval_of(arr).ndim
    return broadcast_in_dim(arr, shape, range(len(shape) - rank, len(shape)))


@explained
def shape_as_value(shape: Sequence[int]) -> Any:
    """Return a shape as a vector of int32, or int64 if a size requires it.

    An array of sizes is converted to the default integer dtype.

    Args:
        shape: a sequence of sizes, or a vector of them.

    Returns:
        An integer vector.

    Raises:
        TypeError: if the array is not an integer vector.

    Example:
        >>> lax.shape_as_value((2, 3))
        array([2, 3], dtype=int32)
    """
    if isinstance(shape, HasAval):
        aval = aval_of(shape)
        check(
            aval.ndim == 1 and dtypes.is_integer(aval.dtype),
            lambda: (
                f"[shape_as_value] sizes must be a vector of integers; got {aval}. Fix: x.shape."
            ),
        )
        return convert_element_type(shape, dtypes.default_int())
    wide = any(size > np.iinfo(np.int32).max for size in shape)
    return np.asarray(tuple(shape), np.int64 if wide else np.int32)


# --- windows -------------------------------------------------------------------------------


@explained
def reduce_window_shape_tuple(
    operand_shape: Sequence[int],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Shape:
    """Return the shape of the result of ``reduce_window``.

    Args:
        operand_shape: shape of the operand.
        window_dimensions: sizes of the window.
        window_strides: strides of the window.
        padding: pairs (low, high).
        base_dilation: dilation of the operand; None means 1.
        window_dilation: dilation of the window; None means 1.

    Returns:
        A tuple of ints.

    Example:
        >>> lax.reduce_window_shape_tuple((5,), (2,), (1,), ((0, 0),))
        (4,)
    """
    sizes = _with_holes(operand_shape, base_dilation)
    windows = _with_holes(window_dimensions, window_dilation)
    _check_rank("reduce_window_shape_tuple", len(sizes), windows, window_strides, padding)
    return tuple(
        window_count(n, w, stride, pads)
        for n, w, stride, pads in zip(sizes, windows, window_strides, padding, strict=True)
    )


def _with_holes(sizes: Sequence[int], dilation: Sequence[int] | None) -> Sequence[int]:
    if dilation is None:
        return sizes
    check(
        all(d >= 1 for d in dilation),
        lambda: (
            f"[reduce_window] dilations must be at least 1; got {tuple(dilation)}. "
            "Fix: 1 where elements are next to each other."
        ),
    )
    return [dilated(n, d) for n, d in zip(sizes, dilation, strict=True)]


# --- convolutions --------------------------------------------------------------------------


@explained
def conv_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    strides: Sequence[int],
    pads: Padding,
    batch_group_count: int = 1,
) -> Shape:
    """Return the shape of a convolution in the layouts (N, C, *space) and (O, I, *space).

    Args:
        lhs_shape: (batch, channels, *spatial).
        rhs_shape: (output channels, input channels, *spatial).
        strides: strides of the kernel.
        pads: ``"SAME"``, ``"SAME_LOWER"``, ``"VALID"``, or pairs (low, high).
        batch_group_count: number of groups of the batch.

    Returns:
        A tuple of ints: (batch, outputs, *space).

    Raises:
        TypeError: if the number of padding pairs and of spatial dimensions differs.
        ValueError: if negative padding exceeds a dimension.

    Example:
        >>> lax.conv_shape_tuple((8, 3, 10), (16, 3, 3), (2,), "VALID")
        (8, 16, 4)
    """
    space, window = _space_of("conv_shape_tuple", lhs_shape, rhs_shape, strides)
    pairs = padtype_to_pads(space, window, strides, pads) if isinstance(pads, str) else pads
    check(
        len(pairs) == len(space),
        lambda: (
            f"[conv_shape_tuple] there must be {len(space)} pairs of margins; got {pads}. "
            "Fix: (0, 0) where there is none."
        ),
    )
    check(
        all(n + sum(pair) >= 0 for n, pair in zip(space, pairs, strict=True)),
        lambda: (
            "[conv_shape_tuple] negative margins must not exceed a dimension; got "
            f"{pads} for {space}. Fix: smaller margins."
        ),
        ValueError,
    )
    counts = [
        window_count(n, w, stride, pair)
        for n, w, stride, pair in zip(space, window, strides, pairs, strict=True)
    ]
    return (int(lhs_shape[0]) // batch_group_count, int(rhs_shape[0]), *map(int, counts))


@explained
def conv_general_permutations(dimension_numbers: Sequence[str]) -> tuple[Shape, Shape, Shape]:
    """Convert strings such as ``("NHWC", "HWIO", "NHWC")`` to permutations of dimensions.

    Args:
        dimension_numbers: three strings.

    Returns:
        The positions of these letters for the input (N, C, *space), the kernel (O, I, *space) and
        the result; spatial dimensions are in the order of the kernel's.

    Raises:
        TypeError: if a string lacks or repeats one of its letters, or its letters differ from the
            kernel's.

    Example:
        >>> lax.conv_general_permutations(("NHWC", "HWIO", "NHWC"))
        ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    """
    check(
        len(dimension_numbers) == 3,
        lambda: (
            "[conv_general_permutations] dimension_numbers must be three strings; got "
            f"{brief(dimension_numbers)}. Fix: ('NHWC', 'HWIO', 'NHWC')."
        ),
    )
    kernel = dimension_numbers[1]
    space = [letter for letter in kernel if letter not in "OI"]
    permutations = []
    for spec, letters in zip(dimension_numbers, ("NC", "OI", "NC"), strict=True):
        check(
            sorted(spec) == sorted([*letters, *space]) and len(set(spec)) == len(spec),
            lambda spec=spec, letters=letters: (
                "[conv_general_permutations] a dimension string must have different letters, "
                f"{letters[0]}, {letters[1]} and those of space {space}; got {spec!r} in "
                f"{tuple(dimension_numbers)}. Fix: ('NHWC', 'HWIO', 'NHWC')."
            ),
        )
        permutations.append(tuple(spec.index(letter) for letter in (*letters, *space)))
    return permutations[0], permutations[1], permutations[2]


@explained
def conv_general_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Padding,
    dimension_numbers: Sequence[str],
) -> Shape:
    """Return the shape of a convolution with dimension numbers as strings.

    Args:
        lhs_shape: shape of the input.
        rhs_shape: shape of the kernel.
        window_strides: strides of the kernel.
        padding: ``"SAME"``, ``"SAME_LOWER"``, ``"VALID"``, or pairs (low, high).
        dimension_numbers: three strings.

    Returns:
        A tuple of ints.

    Raises:
        TypeError: if a string lacks one of its letters, or the number of padding pairs does not
            match.

    Example:
        >>> numbers = ("NHC", "HIO", "NHC")
        >>> lax.conv_general_shape_tuple((8, 10, 3), (3, 3, 16), (1,), "SAME", numbers)
        (8, 10, 16)
    """
    lhs, rhs, out = conv_general_permutations(dimension_numbers)
    _check_rank("conv_general_shape_tuple", len(lhs), lhs_shape, rhs_shape)
    shape = conv_shape_tuple(
        [lhs_shape[d] for d in lhs], [rhs_shape[d] for d in rhs], window_strides, padding
    )
    return _in_order(shape, out)


@explained
def conv_transpose_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Padding,
    dimension_numbers: Sequence[str],
) -> Shape:
    """Return the shape of a transposed convolution with dimension numbers as strings.

    Args:
        lhs_shape: shape of the input.
        rhs_shape: shape of the kernel.
        window_strides: dilation of the input.
        padding: ``"SAME"``, ``"VALID"``, or pairs: padding of the dilated input.
        dimension_numbers: three strings.

    Returns:
        A tuple of ints.

    Raises:
        TypeError: if a string lacks one of its letters.

    Example:
        >>> numbers = ("NHC", "HIO", "NHC")
        >>> lax.conv_transpose_shape_tuple((8, 5, 3), (3, 3, 16), (2,), "SAME", numbers)
        (8, 10, 16)
    """
    lhs, rhs, out = conv_general_permutations(dimension_numbers)
    _check_rank("conv_transpose_shape_tuple", len(lhs), lhs_shape, rhs_shape)
    _check_rank("conv_transpose_shape_tuple", len(lhs) - 2, window_strides)
    space, window = [lhs_shape[d] for d in lhs[2:]], [rhs_shape[d] for d in rhs[2:]]
    pairs = (
        [conv_transpose_pads(w, s, padding) for w, s in zip(window, window_strides, strict=True)]
        if isinstance(padding, str)
        else padding
    )
    _check_rank("conv_transpose_shape_tuple", len(space), pairs)
    sizes = [
        (n - 1) * stride - w + 2 + sum(pair)
        for n, w, stride, pair in zip(space, window, window_strides, pairs, strict=True)
    ]
    return _in_order((lhs_shape[lhs[0]], rhs_shape[rhs[0]], *sizes), out)


def _check_rank(op: str, rank: int, *shapes: Sequence[int]) -> None:
    check(
        all(len(shape) == rank for shape in shapes),
        lambda: (
            f"[{op}] there must be a size, stride or pair for each of {rank} dimensions; got "
            f"{' and '.join(map(brief, shapes))}. Fix: add the missing ones."
        ),
        ValueError,
    )


def _space_of(
    op: str, lhs_shape: Sequence[int], rhs_shape: Sequence[int], strides: Sequence[int]
) -> tuple[Shape, Shape]:
    """The spatial dimensions of both operands."""
    _check_rank(op, len(strides) + 2, lhs_shape, rhs_shape)
    return tuple(lhs_shape[2:]), tuple(rhs_shape[2:])


def _in_order(shape: Sequence[int], positions: Shape) -> Shape:
    """The sizes with ``shape[k]`` at ``positions[k]``."""
    ordered = [0] * len(positions)
    for size, position in zip(shape, positions, strict=True):
        ordered[position] = int(size)
    return tuple(ordered)
