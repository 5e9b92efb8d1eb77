"""Conversion of dtypes by value, and identity ops: copy, stop_gradient.

Tests: tests/ops/test_elementwise_rules.py, tests/ops/test_identities.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from gpuflow.base import dtypes, tree
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Elementwise
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.rules import AxisData, Zero
from gpuflow.core.types import Array, ArrayLike
from gpuflow.kir.builder import ComplexPair
from gpuflow.kir.scalar import compute_dtype
from gpuflow.ops.define import define, linear_jvp, unary_transpose
from gpuflow.ops.elementwise.identities import first_of, same, sink_broadcasts
from gpuflow.ops.elementwise.nary import zero_jvp
from gpuflow.ops.linear_maps import wraps

_T = TypeVar("_T")

# NumPy's ``isbuiltin`` of dtypes that another library registered.
_USER_DEFINED = 2
_INT32_LOW, _INT32_HIGH = -(2**31), 2**31 - 1


def batch_unary(apply: Callable[..., Any]) -> Callable[..., tuple[Any, int]]:
    """The batch rule of a unary op that does not depend on axes."""

    def batch(
        axis: AxisData, operands: Sequence[Any], dims: Sequence[int], **params: Any
    ) -> tuple[Any, int]:
        del axis
        return apply(operands[0], **params), dims[0]

    return batch


# --- convert_element_type ------------------------------------------------------------------


def _convert_shape(x: ShapedArray, *, new_dtype: Any, weak_type: bool) -> ShapedArray:
    check(
        not dtypes.is_extended(x.dtype) and not dtypes.is_extended(new_dtype),
        lambda: (
            f"[convert_element_type] random keys do not convert; got {x} and "
            f"{dtypes.short_name(new_dtype)}. Fix: use key_data(key) or wrap_key_data(x)."
        ),
    )
    check(
        x.dtype != dtypes.float0 or new_dtype == dtypes.float0,
        lambda: (
            f"[convert_element_type] the operand must hold numbers; got {x}, which holds none. "
            "Fix: jnp.zeros_like(x, dtype=...)."
        ),
    )
    return ShapedArray(x.shape, new_dtype, weak_type)


def _convert_impl(xp: Any, x: Any, *, new_dtype: Any, weak_type: bool) -> Any:
    del weak_type
    if dtypes.is_bool(new_dtype):
        return x != 0
    if dtypes.is_complex(x.dtype) and not dtypes.is_complex(new_dtype):
        x = x.real
    if dtypes.is_integer(new_dtype) and dtypes.is_floating(x.dtype):
        return _float_to_integer(xp, x, new_dtype)
    if x.dtype.isbuiltin == new_dtype.isbuiltin == _USER_DEFINED:
        # NumPy has no casts between two dtypes of ml_dtypes.
        x = x.astype(np.int8 if dtypes.is_integer(x.dtype) else np.float32)
    return x.astype(new_dtype)


def _float_to_integer(xp: Any, x: Any, dtype: Any) -> Any:
    """Truncate and saturate; nan gives 0."""
    wide = x if x.dtype.itemsize >= 4 else x.astype(np.float32)
    bounds = ml_dtypes.iinfo(dtype)
    # The power of two above the maximum is a float even where the maximum is not.
    low, high = float(bounds.min), float(int(bounds.max) + 1)
    in_range = xp.where((wide >= low) & (wide < high), wide, wide.dtype.type(0))
    out = in_range.astype(dtype)
    out = xp.where(wide >= high, dtype.type(int(bounds.max)), out)
    return xp.where(wide < low, dtype.type(int(bounds.min)), out)


def _convert_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, new_dtype: Any, weak_type: bool
) -> tuple[Any, Any]:
    out = convert_element_type_p.bind(primals[0], new_dtype=new_dtype, weak_type=weak_type)
    if not dtypes.is_inexact(new_dtype):
        return out, Zero(aval_of(out).tangent())
    return out, convert_element_type_p.bind(tangents[0], new_dtype=new_dtype, weak_type=weak_type)


def _convert_transpose(cotangent: Any, x: ShapedArray, *, new_dtype: Any, weak_type: bool) -> Any:
    del new_dtype, weak_type
    if not dtypes.is_inexact(x.dtype):
        return Zero(x.tangent())
    return convert_element_type_p.bind(cotangent, new_dtype=x.dtype, weak_type=x.weak_type)


def convert_value(builder: Any, value: Any, dtype: Any) -> Any:
    """Convert a KernelIR value to the compute dtype of ``dtype``, rounded to ``dtype``."""
    return builder.round(builder.cast(value, compute_dtype(dtype.name)), dtype.name)


def _convert_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    del in_avals, params
    return convert_value(builder, values[0], out_aval.dtype)


def _convert_pair(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    """Convert complex numbers by component; else drop the imaginary part, or add a zero one.

    A bool is whether a component differs from 0.
    """
    del in_avals, params
    (x,) = values
    if dtypes.is_bool(out_aval.dtype):
        nonzero = (builder.cast(component, "bool") for component in (x.real, x.imag))
        return builder.apply("or", *nonzero)
    if not dtypes.is_complex(out_aval.dtype):
        return convert_value(builder, x.real, out_aval.dtype)
    component_dtype = compute_dtype(out_aval.dtype.name)
    if isinstance(x, ComplexPair):
        return ComplexPair(
            builder.cast(x.real, component_dtype), builder.cast(x.imag, component_dtype)
        )
    return ComplexPair(builder.cast(x, component_dtype), builder.const(component_dtype, 0))


def _convert_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> Any:
    """Simplify a conversion to the same dtype, or through a dtype that loses nothing."""
    x, dtype = eqn.inputs[0], eqn.params["new_dtype"]
    if x.aval.dtype == dtype:
        return same(eqn, x)
    source = definition(x)
    if source is None:
        return None
    if source.primitive is convert_element_type_p:
        first = source.inputs[0]
        if not _may_skip(first.aval.dtype, x.aval.dtype, dtype):
            return None
        return [build.apply(convert_element_type_p, first, **eqn.params)]
    rule = source.primitive.lower
    if rule.converted is not None:
        result = rule.converted(source, dtype, build)
        return None if result is None else [result]
    return None


def _may_skip(first: Any, middle: Any, last: Any) -> bool:
    """Whether first -> middle -> last equals first -> last for every value."""
    if any(dtypes.is_extended(d) or dtypes.is_complex(d) for d in (first, middle, last)):
        return False
    if wraps(first) and wraps(middle) and wraps(last):
        # Bits are truncated or added; the middle dtype has all bits of the last one.
        return last.itemsize <= middle.itemsize or _holds(middle, first)
    if not _holds(middle, first):
        return False
    # Floats saturate and integers wrap, so the middle dtype of integers may not be a float.
    return dtypes.is_floating(first) or not dtypes.is_floating(middle) or not wraps(last)


def _holds(wide: Any, narrow: Any) -> bool:
    """Whether ``wide`` represents every value of ``narrow``."""
    if dtypes.is_bool(narrow):
        return True
    if wraps(narrow):
        bounds = np.iinfo(narrow)
        if wraps(wide):
            return bool(np.iinfo(wide).min <= bounds.min and bounds.max <= np.iinfo(wide).max)
        bits = 8 * narrow.itemsize - (narrow.kind == "i")
        return dtypes.is_floating(wide) and bits <= ml_dtypes.finfo(wide).nmant + 1
    floats = dtypes.is_floating(narrow) and wide in (dtypes.float32, dtypes.float64)
    return floats and wide.itemsize > narrow.itemsize


def _convert_image(eqn: Any, linear: Any, build: EqnBuilder) -> Any:
    """Conversion to narrower integers commutes with sums, which are modular."""
    x, dtype = eqn.inputs[0], eqn.params["new_dtype"]
    if not (wraps(dtype) and wraps(x.aval.dtype) and dtype.itemsize <= x.aval.dtype.itemsize):
        return None
    inner = linear(x)
    return None if inner is None else build.apply(convert_element_type_p, inner, **eqn.params)


convert_element_type_p = define(
    "convert_element_type",
    shape=_convert_shape,
    impl=_convert_impl,
    jvp=_convert_jvp,
    transpose=unary_transpose(_convert_transpose),
    batch=batch_unary(lambda x, **params: convert_element_type_p.bind(x, **params)),
    lower=Elementwise(
        _convert_body, cheap=True, image=_convert_image, pair=_convert_pair, continuous=True
    ),
    passes_nan=True,
    simplify=first_of(_convert_simplify, sink_broadcasts),
)


def check_holds_complex(name: str, value: complex, dtype: Any) -> None:
    """Raise TypeError for a Python complex number that would become real.

    Arrays lose their imaginary parts; Python numbers are refused, as in JAX and NumPy.
    """
    check(
        dtypes.is_complex(dtype) or dtypes.is_bool(dtype),
        lambda: (
            f"[{name}] a complex number must get a complex dtype; got {value} for {dtype}. "
            f"Fix: {value}.real, or dtype=complex."
        ),
    )


def convert_element_type(operand: ArrayLike, new_dtype: Any, weak_type: bool = False) -> Array:
    """Convert the elements of ``operand``.

    Args:
        operand: array of numbers or bools.
        new_dtype: a dtype or a Python number type; narrowed to 32 bits unless x64 is enabled.
        weak_type: whether the result is weakly typed.

    Returns:
        An array of ``new_dtype``. Floats are truncated to integers and saturate, and nan gives 0.
        Integers wrap, including Python ints of any size. Complex numbers lose their imaginary part;
        bool is ``x != 0``.

    Raises:
        TypeError: if ``operand`` holds random keys, or a Python complex number would become real.

    Example:
        >>> lax.convert_element_type(jnp.array([1.7, -1.7, jnp.nan]), jnp.int32)
        Array([ 1, -1,  0], dtype=int32)
    """
    dtype = dtypes.canonicalize(new_dtype)
    aval = aval_of(operand)
    if aval.dtype == dtype and aval.weak_type == weak_type and hasattr(operand, "aval"):
        return operand  # type: ignore[return-value]
    if type(operand) is int and not _INT32_LOW <= operand <= _INT32_HIGH:
        operand = _large_int(operand, dtype)
    elif type(operand) is complex:
        check_holds_complex("convert_element_type", operand, dtype)
    return convert_element_type_p.bind(operand, new_dtype=dtype, weak_type=bool(weak_type))


def _large_int(value: int, dtype: Any) -> Any:
    """A Python int in ``dtype``: its lowest bits, or the nearest float."""
    if dtypes.is_integer(dtype):
        value &= (1 << 64) - 1
        wide = np.asarray(value, np.uint64)
        return wide.astype(dtype)[()]
    return np.asarray(value, float).astype(dtype)[()]


def convert(x: Any, dtype: Any) -> Any:
    """``x`` as ``dtype``; see ``convert_element_type``."""
    return convert_element_type(x, dtype)


# --- copy, stop_gradient -------------------------------------------------------------------


def _same_shape(x: ShapedArray) -> ShapedArray:
    return x


def _same_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    del builder, in_avals, out_aval, params
    return values[0]


copy_p = define(
    "copy",
    shape=_same_shape,
    impl=lambda xp, x: xp.array(x, copy=True),
    jvp=linear_jvp(lambda x: copy_p.bind(x)),
    transpose=unary_transpose(lambda ct, x: copy_p.bind(ct)),
    batch=batch_unary(lambda x: copy_p.bind(x)),
    lower=Elementwise(_same_body, cheap=True, pair=_same_body),
    passes_nan=True,
)

stop_gradient_p = define(
    "stop_gradient",
    shape=_same_shape,
    impl=lambda xp, x: x,
    jvp=zero_jvp(lambda: stop_gradient_p),
    batch=batch_unary(lambda x: stop_gradient_p.bind(x)),
    lower=Elementwise(_same_body, cheap=True, pair=_same_body),
    simplify=lambda eqn, definition, build: same(eqn, eqn.inputs[0]),
)


def copy(x: Any) -> Any:
    """Copy ``x`` into new memory.

    Args:
        x: array or scalar.

    Returns:
        An array of the shape and dtype of ``x``.

    Example:
        >>> lax.copy(jnp.array([1, 2]))
        Array([1, 2], dtype=int32)
    """
    return copy_p.bind(x)


def stop_gradient(x: _T) -> _T:
    """Return ``x`` as a constant with respect to differentiation.

    Args:
        x: a pytree of arrays and scalars.

    Returns:
        A pytree with the same values.

    Example:
        >>> gf.grad(lambda x: x * lax.stop_gradient(x))(3.0)
        Array(3., dtype=float32, weak_type=True)
    """

    def stop(leaf: Any) -> Any:
        return stop_gradient_p.bind(leaf) if dtypes.is_inexact(aval_of(leaf).dtype) else leaf

    return tree.tree_map(stop, x)
