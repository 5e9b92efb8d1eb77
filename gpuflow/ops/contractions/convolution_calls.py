"""Public convolution functions: dimension numbers, padding by name, batch groups.

Tests: tests/ops/test_convolution.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.arguments import as_integers
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.types import Array, ArrayLike, DTypeLike, PrecisionLike, ShardingLike
from gpuflow.ops.contractions.convolution import ConvDims, Dims, Pads, Roles, conv_p, dilated
from gpuflow.ops.contractions.precision import Precision, canonical_precision
from gpuflow.ops.define import types_text
from gpuflow.ops.effects.device_put import in_sharding
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.layout.axes import reshape
from gpuflow.ops.layout.rev import rev
from gpuflow.ops.layout.transpose import transpose


class ConvDimensionNumbers(NamedTuple):
    """The positions of dimensions: (batch, channels, *space) of ``lhs_spec`` and ``out_spec``,
    (outputs, inputs, *space) of ``rhs_spec``.
    """

    lhs_spec: Dims
    rhs_spec: Dims
    out_spec: Dims


# The dimension numbers that conv_general_dilated accepts.
ConvGeneralDilatedDimensionNumbers = None | ConvDimensionNumbers | tuple[str, str, str]

_MAX_ELEMENTS = 2**31  # of the one-hot kernels that extract the elements of a window


@explained
def conv_dimension_numbers(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], dimension_numbers: Any
) -> ConvDimensionNumbers:
    """Parse dimension numbers such as ``("NHWC", "HWIO", "NHWC")``.

    Args:
        lhs_shape, rhs_shape: shapes of the operands, of equal rank.
        dimension_numbers: three strings, ConvDimensionNumbers, or None for ``NC...``, ``OI...``.

    Returns:
        ConvDimensionNumbers.

    Raises:
        TypeError: if ranks differ, or the argument has another type.
        ValueError: if a string lacks one of the letters, or has another length.

    Example:
        >>> numbers = ("NHWC", "HWIO", "NHWC")
        >>> lax.conv_dimension_numbers((1, 8, 8, 3), (3, 3, 3, 16), numbers).rhs_spec
        (3, 2, 0, 1)
    """
    rank = len(tuple(lhs_shape))
    check(
        rank >= 2 and len(tuple(rhs_shape)) == rank,
        lambda: (
            "[conv] operands must have one rank of at least 2; got shapes "
            f"{tuple(lhs_shape)} and {tuple(rhs_shape)}. Fix: add dimensions of size 1."
        ),
    )
    if isinstance(dimension_numbers, ConvDimensionNumbers):
        return dimension_numbers
    if dimension_numbers is None:
        order = tuple(range(rank))
        return ConvDimensionNumbers(order, order, order)
    is_triple = isinstance(dimension_numbers, (tuple, list)) and len(dimension_numbers) == 3
    check(
        is_triple,
        lambda: (
            "[conv] dimension_numbers must be three strings, ConvDimensionNumbers or None; got "
            f"{dimension_numbers!r}. Fix: ('NHWC', 'HWIO', 'NHWC')."
        ),
    )
    lhs, rhs, out = (str(spec) for spec in dimension_numbers)
    space = [letter for letter in rhs if letter not in "OI"]
    specs = []
    for spec, letters in ((lhs, "NC"), (rhs, "OI"), (out, "NC")):
        check(
            len(set(spec)) == rank and sorted(spec) == sorted([*letters, *space]),
            lambda spec=spec, letters=letters: (
                f"[conv] a dimension string must have {rank} different letters, {letters[0]}, "
                f"{letters[1]} and those of space; got {spec!r} in {dimension_numbers!r}. "
                "Fix: ('NHWC', 'HWIO', 'NHWC')."
            ),
            ValueError,
        )
        specs.append(tuple(spec.index(letter) for letter in (*letters, *space)))
    return ConvDimensionNumbers(*specs)


@explained
def padtype_to_pads(
    in_shape: Sequence[int],
    window_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
) -> list[tuple[int, int]]:
    """Return the padding for ``"SAME"``, ``"SAME_LOWER"`` or ``"VALID"``; sizes are dilated.

    Args:
        in_shape: spatial sizes of the input.
        window_shape: spatial sizes of the kernel.
        window_strides: strides of the window.
        padding: ``"SAME"``, ``"SAME_LOWER"`` or ``"VALID"``.

    Returns:
        A list of pairs (low, high).

    Raises:
        ValueError: if the name is unknown.

    Example:
        >>> lax.padtype_to_pads((5,), (2,), (1,), "SAME")
        [(0, 1)]
    """
    name = padding.upper() if isinstance(padding, str) else padding
    check(
        name in ("SAME", "SAME_LOWER", "VALID"),
        lambda: (
            "[padding] a name must be 'SAME', 'SAME_LOWER' or 'VALID'; got "
            f"{padding!r}. Fix: pairs (low, high) for each dimension of space."
        ),
        ValueError,
    )
    if name == "VALID":
        return [(0, 0)] * len(tuple(in_shape))
    pads = []
    for size, window, stride in zip(in_shape, window_shape, window_strides, strict=True):
        total = max((-(-size // stride) - 1) * stride + window - size, 0)
        less, more = total // 2, total - total // 2
        pads.append((less, more) if name == "SAME" else (more, less))
    return pads


def explicit_pads(
    padding: Any, sizes: Sequence[int], windows: Sequence[int], strides: Sequence[int]
) -> Pads:
    """Padding as pairs, from a name or from pairs."""
    if isinstance(padding, str):
        return tuple(padtype_to_pads(sizes, windows, strides, padding))
    pads = tuple((int(low), int(high)) for low, high in padding)
    check(
        len(pads) == len(tuple(sizes)),
        lambda: (
            f"[padding] there must be one pair for each dimension; got {pads} for "
            f"{len(tuple(sizes))}. Fix: (0, 0) where there is none."
        ),
        ValueError,
    )
    return pads


def _per_dimension(name: str, values: Any, count: int) -> Dims:
    result = (1,) * count
    if values is not None:
        result = as_integers("conv_general_dilated", name, values)
    check(
        len(result) == count and all(v >= 1 for v in result),
        lambda: (
            f"[conv_general_dilated] {name} must be {count} numbers of at least 1; got "
            f"{brief(values)}. Fix: one for each dimension of space."
        ),
        ValueError,
    )
    return result


@explained
def conv_general_dilated(
    lhs: ArrayLike, rhs: ArrayLike, window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]], lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None, dimension_numbers: Any = None,
    feature_group_count: int = 1, batch_group_count: int = 1, precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None, *, out_sharding: ShardingLike = None,
) -> Array:  # fmt: skip
    """Compute a convolution as in machine learning, without flipping the kernel.

    Args:
        lhs: the input: batch, channels and spatial dimensions, as in ``dimension_numbers``.
        rhs: the kernel: output channels, input channels and spatial dimensions.
        window_strides: stride of the kernel in each spatial dimension.
        padding: ``"SAME"``, ``"SAME_LOWER"``, ``"VALID"``, or pairs (low, high), which may be
            negative.
        lhs_dilation: dilation of the input, with zeros in between (transposed convolution).
        rhs_dilation: dilation of the kernel.
        dimension_numbers: see ``conv_dimension_numbers``.
        feature_group_count: number of groups of channels.
        batch_group_count: number of groups of the batch, each with its own output channels.
        precision: precision of float32 products, see ``Precision``; None uses
            ``default_matmul_precision``. Algorithms, which specify how ``lax.dot_general``
            multiplies, have no effect, as in JAX.
        preferred_element_type: dtype of the result; for bools, which give "any of all" by default,
            the dtype of the count.
        out_sharding: the sharding of the result; None uses the default device.

    Returns:
        An array in the order of ``dimension_numbers``.

    Raises:
        TypeError: if dtypes or ranks differ.
        ValueError: if channel counts, groups, strides or padding are inconsistent, or the precision
            is invalid.

    Source: the definition of Conv in the XLA operation semantics.

    Example:
        >>> x, kernel = jnp.arange(5.0).reshape(1, 1, 5), jnp.array([[[1.0, 0.0, -1.0]]])
        >>> lax.conv_general_dilated(x, kernel, (1,), "VALID")
        Array([[[-2., -2., -2.]]], dtype=float32)
    """
    if out_sharding is not None:
        out = conv_general_dilated(
            lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers,
            feature_group_count, batch_group_count, precision, preferred_element_type,
        )  # fmt: skip
        return in_sharding("conv_general_dilated", out, out_sharding)
    if dtypes.is_bool(aval_of(lhs).dtype) and dtypes.is_bool(aval_of(rhs).dtype):
        result_dtype = np.bool_ if preferred_element_type is None else preferred_element_type
        wide = np.int32 if dtypes.is_bool(dtypes.canonicalize(result_dtype)) else result_dtype
        lhs, rhs = (convert_element_type(x, wide) for x in (lhs, rhs))
        out = conv_general_dilated(
            lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers,
            feature_group_count, batch_group_count, precision,
        )  # fmt: skip
        return convert_element_type(out, result_dtype)
    numbers = conv_dimension_numbers(aval_of(lhs).shape, aval_of(rhs).shape, dimension_numbers)
    count = aval_of(lhs).ndim - 2
    space = [aval_of(lhs).shape[d] for d in numbers.lhs_spec[2:]]
    kernel = [aval_of(rhs).shape[d] for d in numbers.rhs_spec[2:]]
    strides = _per_dimension("window_strides", window_strides, count)
    dilations = _per_dimension("lhs_dilation", lhs_dilation, count)
    kernel_dilations = _per_dimension("rhs_dilation", rhs_dilation, count)
    check(
        feature_group_count >= 1
        and batch_group_count >= 1
        and min(feature_group_count, batch_group_count) == 1,
        lambda: (
            "[conv_general_dilated] group counts must be at least 1, and one of them 1; got "
            f"{feature_group_count} and {batch_group_count}. Fix: use one kind of groups."
        ),
        ValueError,
    )
    sizes = [dilated(n, d) for n, d in zip(space, dilations, strict=True)]
    windows = [dilated(n, d) for n, d in zip(kernel, kernel_dilations, strict=True)]
    pads = _checked_pads(padding, sizes, windows, strides, dilations)
    _check_groups(aval_of(lhs), aval_of(rhs), numbers, feature_group_count, batch_group_count)
    preferred = _accumulated_in(aval_of(lhs).dtype, preferred_element_type)
    groups = max(feature_group_count, batch_group_count)
    dims, out_spec = _plain_dims(numbers), numbers.out_spec
    if groups > 1:
        # Split the dimension that the groups divide; in the result the output channels.
        split = numbers.lhs_spec[0 if batch_group_count > 1 else 1]
        lhs, rhs = _split(lhs, split, groups), _split(rhs, numbers.rhs_spec[0], groups)
        dims = ConvDims(
            _grouped(dims.lhs, split),
            _grouped(dims.rhs, numbers.rhs_spec[0]),
            _grouped(dims.out, out_spec[1]),
        )
    out = conv_p.bind(
        lhs, rhs, dimension_numbers=dims, window_strides=strides, padding=pads,
        lhs_dilation=dilations, rhs_dilation=kernel_dilations,
        precision=canonical_precision(precision), preferred_element_type=preferred,
    )  # fmt: skip
    if groups == 1:
        return out
    sizes, d = aval_of(out).shape, out_spec[1]
    return reshape(out, (*sizes[:d], sizes[d] * sizes[d + 1], *sizes[d + 2 :]))


def _checked_pads(
    padding: Any, sizes: Sequence[int], windows: Sequence[int], strides: Dims, dilations: Dims
) -> Pads:
    """Padding as pairs, checked against the dilated sizes."""
    check(
        not isinstance(padding, str) or all(d == 1 for d in dilations),
        lambda: (
            "[conv_general_dilated] padding by name is not defined with lhs_dilation; got "
            f"{padding!r} and {dilations}. Fix: pairs, or lax.conv_transpose."
        ),
        ValueError,
    )
    pads = explicit_pads(padding, sizes, windows, strides)
    check(
        all(size + low + high >= 0 for size, (low, high) in zip(sizes, pads, strict=True)),
        lambda: (
            "[conv_general_dilated] negative padding must not cut more than there is; got "
            f"{pads} for sizes {tuple(sizes)} of the input with its holes. Fix: smaller margins."
        ),
        ValueError,
    )
    return pads


def _plain_dims(numbers: ConvDimensionNumbers) -> ConvDims:
    """The roles of dimension numbers without groups."""
    (batch, channels, *space), (outputs, inputs, *kernel), (out_batch, out_channels, *out_space) = (
        numbers
    )
    return ConvDims(
        Roles((), (batch,), (channels,), tuple(space)),
        Roles((), (outputs,), (inputs,), tuple(kernel)),
        Roles((), (out_batch,), (out_channels,), tuple(out_space)),
    )


def _grouped(roles: Roles, split: int) -> Roles:
    """The roles after dimension ``split`` became two, the groups first."""
    shifted = (tuple(d + (d >= split) for d in role) for role in roles)
    return Roles(*shifted)._replace(batch=(split,))


def _split(x: Any, dim: int, groups: int) -> Any:
    shape = aval_of(x).shape
    return reshape(x, (*shape[:dim], groups, shape[dim] // groups, *shape[dim + 1 :]))


def _check_groups(
    lhs: ShapedArray, rhs: ShapedArray, numbers: ConvDimensionNumbers, groups: int, batches: int
) -> None:
    (batch, channels), (outputs, inputs) = (
        [aval.shape[d] for d in spec[:2]]
        for aval, spec in ((lhs, numbers.lhs_spec), (rhs, numbers.rhs_spec))
    )
    check(
        channels == groups * inputs and outputs % groups == 0,
        lambda: (
            "[conv_general_dilated] input channels must be groups times those of the kernel, and "
            f"output channels a multiple of the groups; got {types_text([lhs, rhs])}, that is "
            f"{channels} channels and {inputs} inputs, {outputs} outputs of the kernel, with "
            f"{groups} groups. Fix: dimension_numbers, or feature_group_count."
        ),
        ValueError,
    )
    check(
        batch % batches == 0 and outputs % batches == 0,
        lambda: (
            "[conv_general_dilated] batch_group_count must divide batch and output channels; got "
            f"{batches} for {batch} and {outputs}. Fix: another count."
        ),
        ValueError,
    )


def _accumulated_in(dtype: Any, preferred: Any) -> Any:
    """``preferred_element_type`` as a dtype, checked against that of the operands."""
    if preferred is None:
        return None
    result_dtype = dtypes.canonicalize(preferred)
    check(
        dtypes.is_complex(result_dtype) == dtypes.is_complex(dtype)
        and (not dtypes.is_floating(dtype) or dtypes.is_floating(result_dtype))
        and (dtype.kind != "i" or result_dtype.kind != "u")
        and result_dtype.itemsize >= dtype.itemsize,
        lambda: (
            "[conv_general_dilated] preferred_element_type must be of the operands' kind (or float "
            f"for integers) and not narrower; got {dtypes.short_name(result_dtype)} for "
            f"{dtypes.short_name(dtype)}. Fix: convert the result with x.astype(...)."
        ),
    )
    return result_dtype


@explained
def conv(
    lhs: ArrayLike, rhs: ArrayLike, window_strides: Sequence[int], padding: str,
    precision: PrecisionLike = None, preferred_element_type: DTypeLike | None = None,
) -> Array:  # fmt: skip
    """Compute ``conv_general_dilated`` with batch and channels, or outputs and inputs, first.

    Args:
        lhs: input: batch, channels and spatial dimensions.
        rhs: kernel: output channels, input channels and spatial dimensions.
        window_strides: stride of the kernel in each spatial dimension.
        padding: ``"SAME"``, ``"SAME_LOWER"`` or ``"VALID"``.
        precision: precision of float32 products, see ``Precision``; None uses
            ``default_matmul_precision``.
        preferred_element_type: dtype of the result; None uses the dtype of the operands.

    Returns:
        An array of (batch, output channels, spatial dimensions).

    Raises:
        TypeError: if dtypes or ranks differ.
        ValueError: if channel counts, strides or padding are inconsistent, or the precision is
            invalid.

    Example:
        >>> lax.conv(jnp.ones((1, 1, 4)), jnp.ones((1, 1, 3)), (1,), "SAME")
        Array([[[2., 3., 3., 2.]]], dtype=float32)
    """
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, precision=precision,
        preferred_element_type=preferred_element_type,
    )  # fmt: skip


@explained
def conv_with_general_padding(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Compute ``conv`` with padding and dilation.

    Args:
        lhs: input: batch, channels and spatial dimensions.
        rhs: kernel: output channels, input channels and spatial dimensions.
        window_strides: stride of the kernel in each spatial dimension.
        padding: ``"SAME"``, ``"SAME_LOWER"``, ``"VALID"``, or pairs (low, high).
        lhs_dilation: dilation of the input, with zeros in between; None means 1.
        rhs_dilation: dilation of the kernel; None means 1.
        precision: precision of float32 products, see ``Precision``; None uses
            ``default_matmul_precision``.
        preferred_element_type: dtype of the result; None uses the dtype of the operands.

    Returns:
        An array of (batch, output channels, spatial dimensions).

    Raises:
        TypeError: if dtypes or ranks differ.
        ValueError: if channel counts, strides or padding are inconsistent, or the precision is
            invalid.

    Example:
        >>> x, kernel = jnp.ones((1, 1, 4)), jnp.ones((1, 1, 2))
        >>> lax.conv_with_general_padding(x, kernel, (1,), ((0, 1),), None, (2,))
        Array([[[2., 2., 1.]]], dtype=float32)
    """
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, precision=precision,
        preferred_element_type=preferred_element_type,
    )  # fmt: skip


@explained
def conv_transpose(
    lhs: ArrayLike, rhs: ArrayLike, strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]], rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None, transpose_kernel: bool = False, precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None, use_consistent_padding: bool = False,
) -> Array:  # fmt: skip
    """Compute a transposed convolution, which upsamples by ``strides``.

    Args:
        lhs, rhs: input and kernel; ``NHC`` and ``HIO`` by default, with one letter for each spatial
            dimension.
        strides: dilation of the input.
        padding: ``"SAME"``, ``"VALID"``, or the padding of the dilated input.
        rhs_dilation: dilation of the kernel.
        dimension_numbers: see ``conv_dimension_numbers``.
        transpose_kernel: whether to flip the kernel and swap its input and output channels, which
            gives the gradient of the convolution with that kernel.
        precision, preferred_element_type: as in ``conv_general_dilated``.
        use_consistent_padding: whether explicit padding is that of the forward convolution.

    Returns:
        An array in the order of ``dimension_numbers``.

    Raises:
        TypeError, ValueError: as in ``conv_general_dilated``.

    Example:
        >>> x, kernel = jnp.array([[[1.0], [2.0]]]), jnp.ones((2, 1, 1))
        >>> lax.conv_transpose(x, kernel, (2,), "SAME")[0, :, 0]
        Array([1., 1., 2., 2.], dtype=float32)
    """
    rank = aval_of(lhs).ndim
    if dimension_numbers is None:
        letters = "".join(chr(ord("a") + k) for k in range(rank - 2))
        dimension_numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    numbers = conv_dimension_numbers(aval_of(lhs).shape, aval_of(rhs).shape, dimension_numbers)
    kernel_sizes = [aval_of(rhs).shape[d] for d in numbers.rhs_spec[2:]]
    dilations = _per_dimension("rhs_dilation", rhs_dilation, rank - 2)
    windows = [dilated(k, d) for k, d in zip(kernel_sizes, dilations, strict=True)]
    if isinstance(padding, str) or use_consistent_padding:
        paddings = [padding] * (rank - 2) if isinstance(padding, str) else list(padding)
        pads = [
            conv_transpose_pads(window, stride, pad)
            for window, stride, pad in zip(windows, strides, paddings, strict=True)
        ]
    else:
        pads = list(padding)
    if transpose_kernel:
        rhs = rev(rhs, numbers.rhs_spec[2:])
        order = list(range(rank))
        a, b = numbers.rhs_spec[:2]
        order[a], order[b] = b, a
        rhs = transpose(rhs, order)
    return conv_general_dilated(
        lhs, rhs, (1,) * (rank - 2), pads, tuple(strides), dilations, numbers, precision=precision,
        preferred_element_type=preferred_element_type,
    )  # fmt: skip


def conv_transpose_pads(window: int, stride: int, padding: Any) -> tuple[int, int]:
    """The padding of the dilated input of a transposed convolution along one dimension."""
    if padding == "SAME":
        total = window + stride - 2
        before = window - 1 if stride > window - 1 else -(-total // 2)
    elif padding == "VALID":
        total = window + stride - 2 + max(window - stride, 0)
        before = window - 1
    else:
        check(
            not isinstance(padding, str),
            lambda: (
                f"[conv_transpose] padding must be 'SAME', 'VALID' or pairs; got {padding!r}. "
                "Fix: padding='SAME'."
            ),
            ValueError,
        )
        low, high = padding
        return window - 1 - low, window - 1 - high
    return before, total - before


@explained
def conv_general_dilated_patches(
    lhs: ArrayLike, filter_shape: Sequence[int], window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]], lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None, dimension_numbers: Any = None, precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:  # fmt: skip
    """Return the elements under the kernel at each position, as channels: (channels, *kernel).

    Args:
        lhs: the input.
        filter_shape: spatial sizes of the kernel.
        window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers: as in
            ``conv_general_dilated``; the layout of the kernel is that of ``dimension_numbers``.
        precision: precision of the input; the kernel of zeros and ones is exact with any. None
            leaves elements unchanged, whatever ``default_matmul_precision`` is.
        preferred_element_type: as in ``conv_general_dilated``.

    Returns:
        An array in the order of ``dimension_numbers``, with ``channels * prod(filter_shape)``
        channels.

    Raises:
        TypeError: if dtypes or ranks do not match.
        ValueError: if strides or padding are inconsistent, the window is very large, or the
            precision is invalid.

    Example:
        >>> lax.conv_general_dilated_patches(jnp.arange(4.0).reshape(1, 1, 4), (2,), (1,), "VALID")
        Array([[[0., 1., 2.],
                [1., 2., 3.]]], dtype=float32)
    """
    window = tuple(filter_shape)
    rank = aval_of(lhs).ndim
    probe = (1,) * rank
    numbers = conv_dimension_numbers(aval_of(lhs).shape, probe, dimension_numbers)
    channels = aval_of(lhs).shape[numbers.lhs_spec[1]]
    size = prod(window)
    check(
        0 <= size * size * channels <= _MAX_ELEMENTS,
        lambda: (
            f"[conv_general_dilated_patches] the {channels * size} kernels of a window must "
            f"have at most {_MAX_ELEMENTS} elements; got filter_shape={window}. Fix: a smaller "
            "one."
        ),
        ValueError,
    )
    kernel = _one_hot_kernels(size, window, channels, aval_of(lhs).dtype)
    inverse = [0] * rank
    for k, d in enumerate(numbers.rhs_spec):
        inverse[d] = k
    pair = Precision.HIGHEST if precision is None else (precision, Precision.DEFAULT)
    return conv_general_dilated(
        lhs, transpose(kernel, inverse), window_strides, padding, lhs_dilation, rhs_dilation,
        numbers, feature_group_count=channels, precision=pair,
        preferred_element_type=preferred_element_type,
    )  # fmt: skip


def _one_hot_kernels(size: int, window: Dims, channels: int, dtype: Any) -> Any:
    """One-hot kernels for each channel and element, f[channels * size, 1, *window]."""
    one = np.eye(size, dtype=np.float32).reshape(size, 1, *window)
    return np.tile(one, (channels, 1, *(1,) * len(window))).astype(dtype)
