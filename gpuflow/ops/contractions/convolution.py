"""Convolution with any layout: a dot_general with spatial dimensions.

Each operand has batch dimensions (shared), free ones (of the result), depth (contracted) and
space:

    out[b, m, n, s] = sum of lhs[b, m, c, s stride + k dilation - pad] rhs[b, n, c, k] over c and k

Groups are a batch dimension, and derivatives are convolutions of the same arrays with other roles.
convolution_calls.py converts JAX's dimension numbers and groups into this form.

Tests: tests/ops/test_convolution.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.blocks import Convolution
from gpuflow.core.halo import Halo, Sliding, sliding_halo
from gpuflow.core.lowering import Library
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.rules import AxisData, Zero, is_undefined, zero_tangent
from gpuflow.ops.contractions.few_outputs import convolved_by_taps, has_few_outputs
from gpuflow.ops.contractions.precision import may_round
from gpuflow.ops.define import check_same_dtype, define, is_number, types_text
from gpuflow.ops.elementwise.convert import convert_element_type, convert_element_type_p
from gpuflow.ops.elementwise.nary import add_any_p
from gpuflow.ops.layout.rev import rev
from gpuflow.ops.written_out import written_out

Dims = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]


class Roles(NamedTuple):
    """The dimensions of one array by role; those of the result are batch, lhs free, rhs free."""

    batch: Dims
    free: Dims
    depth: Dims
    space: Dims


class ConvDims(NamedTuple):
    """The dimensions of operands and result; ``out.depth`` has those free in rhs."""

    lhs: Roles
    rhs: Roles
    out: Roles


def dilated(size: int, dilation: int) -> int:
    """The extent of ``size`` elements with a dilation."""
    return 0 if size == 0 else (size - 1) * dilation + 1


def window_count(size: int, window: int, stride: int, pads: tuple[int, int]) -> int:
    """Number of positions of a window; sizes are dilated."""
    room = size + sum(pads) - window
    return 0 if room < 0 else room // stride + 1


def _sizes(aval: ShapedArray, dims: Dims) -> Dims:
    return tuple(aval.shape[d] for d in dims)


def _shape(
    lhs: ShapedArray,
    rhs: ShapedArray,
    *,
    dimension_numbers: ConvDims,
    window_strides: Dims,
    padding: Pads,
    lhs_dilation: Dims,
    rhs_dilation: Dims,
    precision: Any,
    preferred_element_type: Any,
) -> ShapedArray:
    del precision
    check_same_dtype("conv_general_dilated", [lhs, rhs])
    check(
        is_number(lhs.dtype),
        lambda: f"[conv_general_dilated] operands must be numbers; got {lhs}. Fix: astype.",
    )
    left, right, out = dimension_numbers
    check(
        all(
            _sizes(lhs, getattr(left, role)) == _sizes(rhs, getattr(right, role))
            for role in ("batch", "depth")
        ),
        lambda: (
            "[conv_general_dilated] dimensions of batch and depth must have equal sizes; got "
            f"{types_text([lhs, rhs])} with {left} and {right}. Fix: the operands."
        ),
        ValueError,
    )
    sizes = [0] * sum(map(len, out))
    sizes_by_role = (
        (out.batch, _sizes(lhs, left.batch)),
        (out.free, _sizes(lhs, left.free)),
        (out.depth, _sizes(rhs, right.free)),
    )
    for dims, values in sizes_by_role:
        for d, size in zip(dims, values, strict=True):
            sizes[d] = size
    for d, n, k, stride, pads, dl, dr in zip(
        out.space,
        _sizes(lhs, left.space),
        _sizes(rhs, right.space),
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        strict=True,
    ):
        sizes[d] = window_count(dilated(n, dl), dilated(k, dr), stride, pads)
    dtype = lhs.dtype if preferred_element_type is None else preferred_element_type
    return ShapedArray(tuple(sizes), dtype)


def padded(xp: Any, x: Any, first: int, pads: Pads, dilation: Dims, filling: Any) -> Any:
    """``x`` dilated and padded in the dimensions from ``first`` on; negative padding cuts."""
    if all(p == (0, 0) for p in pads) and all(d == 1 for d in dilation):
        return x
    lead = x.shape[:first]
    sizes = [dilated(n, d) for n, d in zip(x.shape[first:], dilation, strict=True)]
    shape = [max(n + low + high, 0) for n, (low, high) in zip(sizes, pads, strict=True)]
    out = xp.full((*lead, *shape), filling, x.dtype)
    source: list[slice] = [slice(None)] * first
    target: list[slice] = [slice(None)] * first
    for n, d, (low, _), extent in zip(x.shape[first:], dilation, pads, shape, strict=True):
        # Element k goes to low + k d; those in [0, extent) are copied.
        start = max(-(low // d), 0) if low < 0 else 0
        stop = min(n, -(-(extent - low) // d)) if extent > low else 0
        source.append(slice(start, max(stop, start)))
        target.append(slice(low + start * d, low + max(stop, start) * d, d))
    elements = x[tuple(source)]
    if elements.size:
        out[tuple(target)] = elements
    return out


def windows_of(
    xp: Any, x: Any, first: int, window: Dims, strides: Dims, dilation: Dims, counts: Dims
) -> Any:
    """A view with the elements of each window: ``(*lead, *window, *counts)``."""
    step = x.strides[first:]
    window_strides = [s * d for s, d in zip(step, dilation, strict=True)]
    between = [s * d for s, d in zip(step, strides, strict=True)]
    shape = (*x.shape[:first], *window, *counts)
    every = (*x.strides[:first], *window_strides, *between)
    return xp.lib.stride_tricks.as_strided(x, shape, every)


def _accumulator(dtype: Any) -> Any:
    narrow = dtypes.is_floating(dtype) and dtype.itemsize <= 2
    return np.dtype(np.float32) if narrow else dtype


def _impl(
    xp: Any,
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: ConvDims,
    window_strides: Dims,
    padding: Pads,
    lhs_dilation: Dims,
    rhs_dilation: Dims,
    precision: Any,
    preferred_element_type: Any,
) -> Any:
    """Products of the kernel with the matrix of all windows, at least in float32."""
    aval = _shape(
        ShapedArray(lhs.shape, lhs.dtype),
        ShapedArray(rhs.shape, rhs.dtype),
        dimension_numbers=dimension_numbers,
        window_strides=window_strides,
        padding=padding,
        lhs_dilation=lhs_dilation,
        rhs_dilation=rhs_dilation,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )
    left, right, out = dimension_numbers
    wide = np.result_type(_accumulator(lhs.dtype), _accumulator(aval.dtype))
    terms = prod(rhs.shape[d] for d in (*right.depth, *right.space))
    if aval.size == 0 or terms == 0:
        return xp.zeros(aval.shape, aval.dtype)
    counts, window = _sizes(aval, out.space), _sizes(rhs, right.space)
    batch, rows = _sizes(lhs, left.batch), _sizes(lhs, left.free)
    columns = _sizes(rhs, right.free)
    lead = (prod(batch), prod(rows), prod(_sizes(lhs, left.depth)))
    x = xp.transpose(lhs.astype(wide, copy=False), sum(left, ()))
    x = x.reshape(*lead, *_sizes(lhs, left.space))
    x = padded(xp, x, 3, padding, lhs_dilation, 0)
    matrix = windows_of(xp, x, 3, window, window_strides, rhs_dilation, counts)
    matrix = matrix.reshape(*lead[:2], terms, prod(counts))
    kernel = xp.transpose(rhs.astype(wide, copy=False), sum(right, ()))
    kernel = kernel.reshape(prod(batch), 1, prod(columns), terms)
    product = xp.matmul(kernel, matrix).reshape(*batch, *rows, *columns, *counts)
    order = np.argsort(sum(out, ()))
    return xp.ascontiguousarray(xp.transpose(product, order)).astype(aval.dtype, copy=False)


def _flops(in_avals: Any, out_avals: Any, params: dict[str, Any]) -> int:
    right = params["dimension_numbers"].rhs
    terms = prod(in_avals[1].shape[d] for d in (*right.depth, *right.space))
    return (8 if dtypes.is_complex(out_avals[0].dtype) else 2) * out_avals[0].size * terms


def _convolution(in_avals: Any, out_avals: Any, params: dict[str, Any]) -> Convolution:
    del in_avals, out_avals
    lhs, rhs, out = (tuple(roles) for roles in params["dimension_numbers"])
    return Convolution(
        lhs,
        rhs,
        out,
        params["window_strides"],
        params["padding"],
        params["lhs_dilation"],
        params["rhs_dilation"],
        may_round(params["precision"]),
    )


def _on_cpu(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> list[Any] | None:
    """Convert floats of several or narrow types around a convolution of one type.

    A convolution with few outputs becomes a product and sums.
    """
    del definition
    dtype, out = eqn.inputs[0].aval.dtype, eqn.outputs[0].aval.dtype
    if not dtypes.is_floating(dtype) or not dtypes.is_floating(out):
        return None
    wide = np.result_type(_accumulator(dtype), _accumulator(out))
    if dtype == out == wide:
        return _by_taps(eqn, build)

    def converted(x: Any, to: Any) -> Any:
        if x.aval.dtype == to:
            return x
        return build.apply(convert_element_type_p, x, new_dtype=to, weak_type=False)

    operands = [converted(x, wide) for x in eqn.inputs]
    convolved = build.apply(conv_p, *operands, **{**eqn.params, "preferred_element_type": None})
    return [converted(convolved, out)]


def _by_taps(eqn: Any, build: EqnBuilder) -> list[Any] | None:
    lhs, rhs = (atom.aval for atom in eqn.inputs)
    params = dict(eqn.params)
    if lhs.dtype != rhs.dtype or not has_few_outputs(lhs, rhs, params):
        return None
    del params["window_strides"], params["preferred_element_type"]
    out = eqn.outputs[0].aval.shape
    sizes = tuple([out[d] for d in params["dimension_numbers"].out.space])
    return written_out(convolved_by_taps, eqn, build, **params, sizes=sizes)


def _transposed(eqn: Any, permutation: Dims, build: EqnBuilder) -> Any:
    """Rewrite a permutation of the output as the same convolution with another ``out``."""
    position = {d: k for k, d in enumerate(permutation)}
    lhs, rhs, out = eqn.params["dimension_numbers"]
    permuted = Roles(*(tuple(position[d] for d in role) for role in out))
    params = {**eqn.params, "dimension_numbers": ConvDims(lhs, rhs, permuted)}
    return build.apply(conv_p, *eqn.inputs, **params)


# --- derivatives ---------------------------------------------------------------------------


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    lhs, rhs = primals
    out = conv_p.bind(lhs, rhs, **params)
    terms = []
    if type(tangents[0]) is not Zero:
        terms.append(conv_p.bind(tangents[0], rhs, **params))
    if type(tangents[1]) is not Zero:
        terms.append(conv_p.bind(lhs, tangents[1], **params))
    if not terms:
        return out, zero_tangent(out)
    return out, terms[0] if len(terms) == 1 else add_any_p.bind(*terms)


def _transpose_lhs(ct: Any, lhs: ShapedArray, rhs: Any, params: dict[str, Any]) -> Any:
    """Convolve the cotangent with the reversed kernel; strides and lhs dilation are exchanged."""
    left, right, out = params["dimension_numbers"]
    aval, strides = aval_of(rhs), params["window_strides"]
    pads = []
    for n, k, dl, dr, (low, _), stride, count in zip(
        _sizes(lhs, left.space),
        _sizes(aval, right.space),
        params["lhs_dilation"],
        params["rhs_dilation"],
        params["padding"],
        strides,
        _sizes(aval_of(ct), out.space),
        strict=True,
    ):
        before = dilated(k, dr) - low - 1
        pads.append((before, dilated(n, dl) + dilated(k, dr) - 1 - dilated(count, stride) - before))
    dims = ConvDims(out, Roles(right.batch, right.depth, right.free, right.space), left)
    return conv_p.bind(
        ct,
        rev(rhs, right.space),
        dimension_numbers=dims,
        window_strides=params["lhs_dilation"],
        padding=tuple(pads),
        lhs_dilation=strides,
        rhs_dilation=params["rhs_dilation"],
        precision=params["precision"],
        preferred_element_type=lhs.dtype,
    )


def _transpose_rhs(ct: Any, lhs: Any, rhs: ShapedArray, params: dict[str, Any]) -> Any:
    """Convolve the input with the cotangent as the kernel; their free dimensions are depth."""
    left, right, out = params["dimension_numbers"]
    aval, strides = aval_of(lhs), params["window_strides"]
    pads = []
    for n, k, dl, dr, (low, _), stride, count in zip(
        _sizes(aval, left.space),
        _sizes(rhs, right.space),
        params["lhs_dilation"],
        params["rhs_dilation"],
        params["padding"],
        strides,
        _sizes(aval_of(ct), out.space),
        strict=True,
    ):
        high = dilated(count, stride) - dilated(n, dl) + dilated(k, dr) - low - 1
        pads.append((low, high))
    dims = ConvDims(
        Roles(left.batch, left.depth, left.free, left.space),
        Roles(out.batch, out.depth, out.free, out.space),
        Roles(right.batch, right.depth, right.free, right.space),
    )
    return conv_p.bind(
        lhs,
        ct,
        dimension_numbers=dims,
        window_strides=params["rhs_dilation"],
        padding=tuple(pads),
        lhs_dilation=params["lhs_dilation"],
        rhs_dilation=strides,
        precision=params["precision"],
        preferred_element_type=rhs.dtype,
    )


def _transpose(ct: Any, lhs: Any, rhs: Any, **params: Any) -> list[Any]:
    result: list[Any] = [None, None]
    for k, operand in enumerate((lhs, rhs)):
        if is_undefined(operand):
            aval = operand.aval
            if type(ct) is Zero:
                result[k] = Zero(aval.tangent())
                continue
            # A wider result has a wider cotangent.
            narrowed = convert_element_type(ct, aval.dtype)
            rule = _transpose_rhs if k else _transpose_lhs
            operands = (lhs, aval) if k else (aval, rhs)
            result[k] = rule(narrowed, *operands, params)
    return result


# --- batching ------------------------------------------------------------------------------


def _with(roles: Roles, dim: int, name: str) -> Roles:
    """The roles of an array with one more dimension at ``dim``, of role ``name``."""
    shifted = Roles(*(tuple(d + (d >= dim) for d in role) for role in roles))
    return shifted._replace(**{name: (dim, *getattr(shifted, name))})


def _batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[Any, int]:
    """A mapped dimension becomes a free one of its operand, or a batch one if both have it."""
    del axis
    lhs, rhs, out = params["dimension_numbers"]
    first, second = dims
    if first is not None and second is not None:
        numbers = (_with(lhs, first, "batch"), _with(rhs, second, "batch"), _with(out, 0, "batch"))
    elif first is not None:
        numbers = (_with(lhs, first, "free"), rhs, _with(out, 0, "free"))
    else:
        assert second is not None
        numbers = (lhs, _with(rhs, second, "free"), _with(out, 0, "depth"))
    return conv_p.bind(*operands, **{**params, "dimension_numbers": ConvDims(*numbers)}), 0


def _halo(ins: Sequence[ShapedArray], out: ShapedArray, params: dict[str, Any]) -> Halo:
    """Windows slide over the rows of lhs; rhs is whole."""
    del out
    left, right, result = params["dimension_numbers"]
    windows = {
        dim: Sliding(stride, low, base, dilated(size, dilation))
        for dim, size, stride, (low, _), base, dilation in zip(
            result.space,
            _sizes(ins[1], right.space),
            params["window_strides"],
            params["padding"],
            params["lhs_dilation"],
            params["rhs_dilation"],
            strict=True,
        )
        if size
    }
    dim_of_lhs = dict(zip(result.space, left.space, strict=True))

    def apply(bind: Any, pads: Any, lhs: Any, rhs: Any) -> Any:
        edges = zip(result.space, params["padding"], strict=True)
        padding = tuple(pads.get(dim, low_high) for dim, low_high in edges)
        return bind(lhs, rhs, **{**params, "padding": padding})

    return sliding_halo(windows, lambda dim, rows: [(dim_of_lhs[dim], *rows), None], apply)


conv_p = define(
    "conv_general_dilated",
    shape=_shape,
    impl=_impl,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    lower=Library(
        flops=_flops,
        what=_convolution,
        on_cpu=_on_cpu,
        transposed=_transposed,
        dtype_param="preferred_element_type",
    ),
    tolerance=64,
    halo=_halo,
)
