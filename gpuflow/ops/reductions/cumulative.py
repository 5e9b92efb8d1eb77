"""Cumulative ops along one axis: sums, products, extrema and logsumexp.

With ``reverse`` they run from the end:  x0 x1 x2 -> (x0+x1+x2) (x1+x2) x2.

Tests: tests/ops/test_cumulative.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.blocks import Launches
from gpuflow.core.lowering import Library
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.primitive import Primitive
from gpuflow.core.rules import AxisData, Zero, zero_tangent
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.define import check_kind, define, is_number, linear_jvp, unary_transpose
from gpuflow.ops.elementwise.arithmetic import add, constant, mul, mul_p, sub
from gpuflow.ops.elementwise.arithmetic import max as op_max
from gpuflow.ops.elementwise.arithmetic import min as op_min
from gpuflow.ops.elementwise.comparison import eq, is_finite, ne
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.elementwise.identities import constant_of
from gpuflow.ops.elementwise.select import maximum, minimum, where
from gpuflow.ops.elementwise.transcendental import exp, log
from gpuflow.ops.handwritten.blocks import scan_block
from gpuflow.ops.handwritten.launch import fits_kernels
from gpuflow.ops.layout.axes import insert_axis, reshape, squeeze
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.layout.iota import ScanAxis, counts, iota_p, triangles
from gpuflow.ops.layout.rev import rev
from gpuflow.ops.layout.slicing import slice_in_dim
from gpuflow.ops.linear_maps import LinearMap, wraps
from gpuflow.ops.reductions.cumulative_kernels import Combine, scan_launches
from gpuflow.ops.written_out import written_out

# Longest scan that is unrolled into equations; longer ones are shorter as a separate kernel.
MAX_UNROLLED = 8

_TWICE = {np.dtype(np.float32): np.float64, np.dtype(np.complex64): np.complex128}

Pair = tuple[Any, Any]
Scan = Callable[[Any, Any, Any, int], None]


def _define(
    name: str,
    scan: Scan,
    accepts: Callable[[Any], bool],
    what: str,
    combine: Combine | None = None,
    function: Callable[[Any, Any], Any] | None = None,
    simplify: Callable[..., Any] | None = None,
    **rules: Any,
) -> Primitive:
    """Define a cumulative op; ``scan(xp, x, out, axis)`` fills ``out`` from front to back.

    ``combine`` defines the kernels, ``function`` is the op that combines two elements.
    """

    def shape(x: ShapedArray, *, axis: int, reverse: bool) -> ShapedArray:
        del reverse
        check_kind(name, x, accepts, what)
        check(
            0 <= axis < x.ndim,
            lambda: (
                f"[{name}] axis must be in [0, {x.ndim}); got {axis} for {x}. Fix: count from the "
                f"front; jnp.{name} takes negative axes where it exists."
            ),
            ValueError,
        )
        return ShapedArray(x.shape, x.dtype, x.weak_type)

    def call(xp: Any, outs: Sequence[Any], x: Any, *, axis: int, reverse: bool) -> None:
        if not x.size:
            return
        out = outs[0]
        if reverse:
            x, out = xp.flip(x, axis), xp.flip(out, axis)
        scan(xp, x, out, axis)

    def impl(xp: Any, x: Any, *, axis: int, reverse: bool) -> Any:
        out = xp.empty(x.shape, x.dtype)
        call(xp, [out], x, axis=axis, reverse=reverse)
        return out

    def launches(views: Any, outs: Any, params: dict[str, Any]) -> Launches | None:
        return scan_launches(combine, views, outs, **params) if combine is not None else None

    def batch(
        axis_data: AxisData,
        operands: Sequence[Any],
        dims: Sequence[int],
        *,
        axis: int,
        reverse: bool,
    ) -> tuple[Any, int]:
        del axis_data
        batched_axis = axis + (axis >= dims[0])
        return primitive.bind(operands[0], axis=batched_axis, reverse=reverse), dims[0]

    def simplified(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> Any:
        simpler = None if simplify is None else simplify(eqn, definition, build)
        if simpler is not None or function is None or not _is_short(eqn):
            return simpler
        return written_out(_short_scan, eqn, build, combine=function, **eqn.params)

    combine_name = "logaddexp" if combine is None else combine.name
    lower = Library(call, what=scan_block(combine_name, None if combine is None else launches))
    primitive = define(
        name, shape=shape, impl=impl, batch=batch, lower=lower, simplify=simplified, **rules
    )
    return primitive


def _is_short(eqn: Any) -> bool:
    aval = eqn.outputs[0].aval
    count = aval.shape[eqn.params["axis"]]
    return aval.size > 0 and count <= MAX_UNROLLED and fits_kernels(aval.dtype)


def _short_scan(
    x: Any, *, axis: int, reverse: bool, combine: Callable[[Any, Any], Any]
) -> list[Any]:
    """The scan of a few elements, unrolled, as precise as a long one."""
    dtype, count = aval_of(x).dtype, aval_of(x).shape[axis]
    is_sum = combine is add
    wide = _TWICE.get(dtype, _wide(dtype)) if is_sum else _wide(dtype)
    order = range(count)[::-1] if reverse else range(count)
    terms = {k: squeeze(slice_in_dim(x, k, k + 1, 1, axis), (axis,)) for k in order}
    running: Any = None
    for k in order:
        term = convert_element_type(terms[k], wide)
        if running is None:
            # Sums start from +0, so that none is -0.
            running = add(term, constant(term, 0)) if is_sum else term
        else:
            running = combine(running, term)
        terms[k] = convert_element_type(running, dtype)
    return [concatenate([insert_axis(terms[k], axis) for k in range(count)], axis)]


def _wide(dtype: Any) -> Any:
    """The accumulation dtype: float32 for 16-bit floats."""
    return dtypes.float32 if dtypes.is_floating(dtype) and dtype.itemsize <= 2 else dtype


def _as_constant(dtype: str, value: int) -> Any:
    """A number as a constant of kernels."""
    return float(value) if dtype.startswith("float") else value


def _bound_of(dtype: str, greatest: bool) -> Any:
    """The greatest or smallest number of a compute dtype."""
    if dtype.startswith("float"):
        return np.inf if greatest else -np.inf
    bounds = np.iinfo(dtype)
    return int(bounds.max if greatest else bounds.min)


def _along(axis: int, start: int | None, stop: int | None) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, slice(start, stop))


def _doubling(xp: Any, combine: Callable[..., Any], x: Any, axis: int) -> Any:
    """The scan with any function, in log2(n) steps: for functions without a library call.

    Source: Hillis and Steele 1986, "Data parallel algorithms".
    """
    step = 1
    while step < x.shape[axis]:
        earlier, later = x[_along(axis, None, -step)], x[_along(axis, step, None)]
        head = x[_along(axis, None, step)]
        x = xp.concatenate([head, combine(xp, earlier, later)], axis)
        step *= 2
    return x


# --- tangents of scans ---------------------------------------------------------------------


def _tree_scan(combine: Callable[[Pair, Pair], Pair], pair: Pair, axis: int) -> Pair:
    """The scan of pairs (value, tangent) as a tree, so that every step can be differentiated.

        a   b   c   d   e       combine neighbors:  ab  cd
        a  ab  ...              scan of these:      ab  abcd
        a  ab abc abcd abcde    elements between:   ab.c  abcd.e

    Source: Blelloch 1990, "Prefix sums and their applications".
    """
    size = aval_of(pair[0]).shape[axis]
    if size < 2:
        return pair

    def every(of: Pair, start: int, stop: int, stride: int) -> Pair:
        cut = [slice_in_dim(x, start, stop, stride, axis) for x in of]
        return cut[0], cut[1]

    paired = size - size % 2
    pairs = combine(every(pair, 0, paired, 2), every(pair, 1, paired, 2))
    odd = _tree_scan(combine, pairs, axis)
    first = every(pair, 0, 1, 1)
    count = (size - 1) // 2
    if count == 0:
        return _interleave(first[0], odd[0], axis), _interleave(first[1], odd[1], axis)
    between = combine(every(odd, 0, count, 1), every(pair, 2, size, 2))
    evens = [concatenate([a, b], axis) for a, b in zip(first, between, strict=True)]
    return _interleave(evens[0], odd[0], axis), _interleave(evens[1], odd[1], axis)


def _interleave(even: Any, odd: Any, axis: int) -> Any:
    """Interleave to e0 o0 e1 o1 ...; there may be one more even element."""
    shape, count = aval_of(even).shape, aval_of(odd).shape[axis]
    facing = even if shape[axis] == count else slice_in_dim(even, 0, count, 1, axis)
    columns = [insert_axis(x, axis + 1) for x in (facing, odd)]
    mixed = concatenate(columns, axis + 1)
    mixed = reshape(mixed, (*shape[:axis], 2 * count, *shape[axis + 1 :]))
    if shape[axis] == count:
        return mixed
    return concatenate([mixed, slice_in_dim(even, count, None, 1, axis)], axis)


def _scan_jvp(
    apply: Callable[..., Any], combine: Callable[[Pair, Pair], Pair]
) -> Callable[..., Any]:
    """The jvp rule of the scan with ``combine``, which combines pairs (value, tangent)."""

    def jvp(
        primals: Sequence[Any], tangents: Sequence[Any], *, axis: int, reverse: bool
    ) -> tuple[Any, Any]:
        x, t = primals[0], tangents[0]
        out = apply(x, axis, reverse)
        if type(t) is Zero:
            return out, zero_tangent(out)
        if not reverse:
            return out, _tree_scan(combine, (x, t), axis)[1]
        scanned = _tree_scan(combine, (rev(x, (axis,)), rev(t, (axis,))), axis)
        return out, rev(scanned[1], (axis,))

    return jvp


def _product_pair(first: Pair, second: Pair) -> Pair:
    (x, x_tangent), (y, y_tangent) = first, second
    return mul(x, y), add(mul(x_tangent, y), mul(x, y_tangent))


def _extremum_pair(pick: Callable[[Any, Any], Any]) -> Callable[[Pair, Pair], Pair]:
    def combine(first: Pair, second: Pair) -> Pair:
        (x, x_tangent), (y, y_tangent) = first, second
        out = pick(x, y)
        # Ties share the tangent: JAX's rule for max and min.
        share = where(eq(x, y), constant(x, 0.5), 1.0)
        from_x = where(eq(x, out), share, 0.0)
        from_y = where(eq(y, out), share, 0.0)
        return out, add(mul(x_tangent, from_x), mul(y_tangent, from_y))

    return combine


def _logaddexp_pair(first: Pair, second: Pair) -> Pair:
    (x, x_tangent), (y, y_tangent) = first, second
    larger = op_max(x, y)
    if not dtypes.is_complex(aval_of(x).dtype):
        larger = where(is_finite(larger), larger, constant(larger, 0))
    # The sum does not depend on ``larger``, and neither do its derivatives; a formula in terms of
    # the distance would have wrong second derivatives for equal values. The imaginary part of
    # complex numbers is not wrapped to [-pi, pi]: only its exponential is used.
    out = add(larger, log(add(exp(sub(x, larger)), exp(sub(y, larger)))))
    terms = [mul(t, _share(v, out)) for v, t in ((x, x_tangent), (y, y_tangent))]
    return out, add(*terms)


def _share(x: Any, out: Any) -> Any:
    """exp(x) / exp(out); one half each for equal infinities."""
    share = exp(sub(x, out))
    return where(ne(share, share), constant(x, 0.5), share)


# --- cumsum --------------------------------------------------------------------------------


def _sum_scan(xp: Any, x: Any, out: Any, axis: int) -> None:
    wide = _wide(x.dtype)
    if xp is np and x.dtype in _TWICE:
        # Sequentially in twice the precision: else the error would grow with the length.
        out[...] = np.add.accumulate(x, axis, dtype=_TWICE[x.dtype])
    elif xp is np and wide == x.dtype:
        np.add.accumulate(x, axis, dtype=x.dtype, out=out)
    else:
        out[...] = xp.cumsum(x.astype(wide), axis, dtype=wide).astype(x.dtype)
    if dtypes.is_inexact(x.dtype):
        _clear_signs_of_zeros(out, axis)


def _clear_signs_of_zeros(out: Any, axis: int) -> None:
    """Make -0 results +0, because sums start from +0; only sums that begin with zeros have them."""
    if (out[_along(axis, 0, 1)] == 0).any():
        out += out.dtype.type(0)


@explained
def cumsum(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """Return the cumulative sum along ``axis``.

    Args:
        operand: array of numbers. float16 and bfloat16 are summed in float32; integers wrap.
        axis: a nonnegative dimension of ``operand``.
        reverse: whether to accumulate from the end.

    Returns:
        An array of the type of ``operand``.

    Raises:
        TypeError: if an argument is boolean.
        ValueError: if the axis does not exist.

    Example:
        >>> lax.cumsum(jnp.array([1, 2, 3]))
        Array([1, 3, 6], dtype=int32)
    """
    return cumsum_p.bind(operand, axis=int(axis), reverse=bool(reverse))


def _cumsum_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> list[Any] | None:
    """Closed form of the cumulative sum of an iota: k (k + 1) / 2 modulo a power of two."""
    x, axis = eqn.inputs[0], eqn.params["axis"]
    scan = ScanAxis(x.aval.shape, axis, eqn.params["reverse"])

    def of_equation(source: Any) -> Any:
        out = source.outputs[0]
        if source.primitive is not iota_p:
            constant = constant_of(out, definition)
            return None if constant is None else counts(scan, out.aval.dtype, build, int(constant))
        if source.params["dimension"] == axis:
            return triangles(scan, out.aval.dtype, build)
        return build.apply(mul_p, out, counts(scan, out.aval.dtype, build))

    if not wraps(x.aval.dtype) or x.aval.shape[axis] >= 1 << 31:
        return None
    linear = LinearMap(definition, build, of_equation, lambda dtype: counts(scan, dtype, build))
    result = linear(x)
    return None if result is None else [result]


cumsum_p = _define(
    "cumsum",
    _sum_scan,
    is_number,
    "a number (not bool)",
    Combine("add", lambda dtype: _as_constant(dtype, 0), lambda dtype: True),
    add,
    simplify=_cumsum_simplify,
    jvp=linear_jvp(lambda x, axis, reverse: cumsum(x, axis, reverse)),
    transpose=unary_transpose(lambda ct, x, *, axis, reverse: cumsum(ct, axis, not reverse)),
)


# --- cumprod -------------------------------------------------------------------------------


def _product_scan(xp: Any, x: Any, out: Any, axis: int) -> None:
    wide = _wide(x.dtype)
    if xp is np and wide == x.dtype:
        np.multiply.accumulate(x, axis, dtype=x.dtype, out=out)
    else:
        out[...] = xp.cumprod(x.astype(wide), axis, dtype=wide).astype(x.dtype)


@explained
def cumprod(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """Return the cumulative product along ``axis``.

    Args:
        operand: array of numbers; integers wrap.
        axis: a nonnegative dimension of ``operand``.
        reverse: whether to accumulate from the end.

    Returns:
        An array of the type of ``operand``.

    Raises:
        TypeError: if an argument is boolean.
        ValueError: if the axis does not exist.

    Example:
        >>> lax.cumprod(jnp.array([1, 2, 3]), reverse=True)
        Array([6, 6, 3], dtype=int32)
    """
    return cumprod_p.bind(operand, axis=int(axis), reverse=bool(reverse))


cumprod_p = _define(
    "cumprod",
    _product_scan,
    is_number,
    "a number (not bool)",
    # The product of a block may overflow although that of all before does not.
    Combine("mul", lambda dtype: _as_constant(dtype, 1), dtypes.is_integer),
    mul,
    jvp=_scan_jvp(cumprod, _product_pair),
)


# --- cummax, cummin ------------------------------------------------------------------------


def _extremum_scan(
    function: Callable[..., Any], ufunc: Any, mark: Callable[[Any, Any], Any], marked: float
) -> Scan:
    """The scan of a cumulative extremum.

    A result of 0 has the sign of ``marked`` from the first element with that sign bit (``mark``)
    on; NumPy leaves the sign of max(-0, 0) open.
    """

    def scan(xp: Any, x: Any, out: Any, axis: int) -> None:
        if xp is not np or dtypes.is_complex(x.dtype):
            out[...] = _doubling(xp, function, x, axis)
            return
        wide = x.astype(_wide(x.dtype), copy=False)
        running = ufunc.accumulate(wide, axis, out=out if wide.dtype == out.dtype else None)
        if dtypes.is_floating(x.dtype):
            zero = running == 0
            if zero.any():
                seen = np.logical_or.accumulate(mark(np, wide), axis)[zero]
                running[zero] = np.where(seen, marked, -marked)
        if running is not out:
            out[...] = running.astype(out.dtype)

    return scan


@explained
def cummax(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """Return the cumulative maximum along ``axis``; nan propagates, -0.0 is below 0.0.

    Args:
        operand: array of numbers.
        axis: a nonnegative dimension of ``operand``.
        reverse: whether to accumulate from the end.

    Returns:
        An array of the type of ``operand``.

    Raises:
        TypeError: if an argument is boolean.
        ValueError: if the axis does not exist.

    Example:
        >>> lax.cummax(jnp.array([1, 3, 2]))
        Array([1, 3, 3], dtype=int32)
    """
    return cummax_p.bind(operand, axis=int(axis), reverse=bool(reverse))


@explained
def cummin(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """Return the cumulative minimum along ``axis``; nan propagates, -0.0 is below 0.0.

    Args:
        operand: array of numbers.
        axis: a nonnegative dimension of ``operand``.
        reverse: whether to accumulate from the end.

    Returns:
        An array of the type of ``operand``.

    Raises:
        TypeError: if an argument is boolean.
        ValueError: if the axis does not exist.

    Example:
        >>> lax.cummin(jnp.array([2, 3, 1]))
        Array([2, 2, 1], dtype=int32)
    """
    return cummin_p.bind(operand, axis=int(axis), reverse=bool(reverse))


cummax_p = _define(
    "cummax",
    _extremum_scan(maximum, np.maximum, lambda xp, x: ~xp.signbit(x), 0.0),
    is_number,
    "a number (not bool)",
    Combine("max", lambda dtype: _bound_of(dtype, greatest=False), lambda dtype: True),
    op_max,
    jvp=_scan_jvp(cummax, _extremum_pair(op_max)),
)

cummin_p = _define(
    "cummin",
    _extremum_scan(minimum, np.minimum, lambda xp, x: xp.signbit(x), -0.0),
    is_number,
    "a number (not bool)",
    Combine("min", lambda dtype: _bound_of(dtype, greatest=True), lambda dtype: True),
    op_min,
    jvp=_scan_jvp(cummin, _extremum_pair(op_min)),
)


# --- cumlogsumexp --------------------------------------------------------------------------


def _logaddexp(xp: Any, x: Any, y: Any) -> Any:
    """``log(exp(x) + exp(y))``; for complex numbers with imaginary part in [-pi, pi]."""
    if x.dtype.kind != "c":
        return xp.logaddexp(x, y)
    larger = maximum(xp, x, y)
    out = larger + xp.log1p(xp.exp(x + y - (larger + larger)))
    revolutions = xp.round(out.imag / (2 * np.pi)).astype(out.imag.dtype)
    return (out - 1j * out.imag.dtype.type(2 * np.pi) * revolutions).astype(x.dtype)


def _logsumexp_scan(xp: Any, x: Any, out: Any, axis: int) -> None:
    wide = x.astype(_wide(x.dtype), copy=False)
    if xp is np and not dtypes.is_complex(x.dtype):
        out[...] = np.logaddexp.accumulate(wide, axis).astype(x.dtype, copy=False)
    else:
        out[...] = _doubling(xp, _logaddexp, wide, axis).astype(x.dtype)
    _clear_signs_of_zeros(out, axis)


@explained
def cumlogsumexp(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """Compute ``log(cumsum(exp(operand)))`` without overflow.

    Args:
        operand: array of floats or complex numbers.
        axis: a nonnegative dimension of ``operand``.
        reverse: whether to accumulate from the end.

    Returns:
        An array of the type of ``operand``.

    Raises:
        TypeError: if the dtype is not supported.
        ValueError: if the axis does not exist.

    Example:
        >>> lax.cumlogsumexp(jnp.array([1000.0, -jnp.inf]))
        Array([1000., 1000.], dtype=float32)
    """
    return cumlogsumexp_p.bind(operand, axis=int(axis), reverse=bool(reverse))


cumlogsumexp_p = _define(
    "cumlogsumexp",
    _logsumexp_scan,
    dtypes.is_inexact,
    "a float or complex number",
    jvp=_scan_jvp(cumlogsumexp, _logaddexp_pair),
)
