"""Complex numbers and their components: real, imag, complex, conj, abs, sign.

Transposes pair cotangents and tangents without conjugation: the cotangent of ``z`` pairs with its
tangent as ``real(sum(ct * t))``. That is JAX's convention.

Tests: tests/ops/test_elementwise_rules.py, tests/ops/test_linalg_ops.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Elementwise
from gpuflow.core.rules import Zero
from gpuflow.core.types import Array, ArrayLike
from gpuflow.kir.builder import ComplexPair
from gpuflow.ops.define import define, is_number, linear_jvp, unary_transpose
from gpuflow.ops.elementwise import complex_pairs
from gpuflow.ops.elementwise.arithmetic import constant, div, mul, neg, sub
from gpuflow.ops.elementwise.comparison import eq, ge
from gpuflow.ops.elementwise.convert import convert
from gpuflow.ops.elementwise.nary import batch_elementwise, elementwise, match_scalars, nary_shape
from gpuflow.ops.elementwise.select import where

_COMPONENT_DTYPES = {dtypes.complex64: dtypes.float32, dtypes.complex128: dtypes.float64}
_COMPLEX_DTYPES = {component: cdtype for cdtype, component in _COMPONENT_DTYPES.items()}


def component_dtype(dtype: Any) -> np.dtype:
    """The dtype of the components of a complex dtype."""
    return _COMPONENT_DTYPES[dtype]


# --- real, imag, complex, conj -------------------------------------------------------------

real_p = elementwise(
    "real",
    impl=lambda xp, x: x.real,
    accepts=dtypes.is_complex,
    what="a complex number",
    body="",
    cheap=True,
    pair=complex_pairs.pair_body(lambda builder, x: x.real),
    result=component_dtype,
    derivatives=(lambda t, out, x: real(t),),
    transpose=(lambda ct, x: complex(ct, constant(ct, 0)),),
)

imag_p = elementwise(
    "imag",
    impl=lambda xp, x: x.imag,
    accepts=dtypes.is_complex,
    what="a complex number",
    body="",
    cheap=True,
    pair=complex_pairs.pair_body(lambda builder, x: x.imag),
    result=component_dtype,
    derivatives=(lambda t, out, x: imag(t),),
    transpose=(lambda ct, x: complex(constant(ct, 0), neg(ct)),),
)


def _is_component(dtype: Any) -> bool:
    return dtype in _COMPLEX_DTYPES


def _complex_impl(xp: Any, x: Any, y: Any) -> Any:
    out = xp.empty(np.broadcast_shapes(x.shape, y.shape), _COMPLEX_DTYPES[x.dtype])
    out.real, out.imag = x, y
    return out


complex_p = elementwise(
    "complex",
    arity=2,
    impl=_complex_impl,
    accepts=_is_component,
    what="float32 or float64",
    body="",
    cheap=True,
    pair=complex_pairs.pair_body(lambda builder, x, y: ComplexPair(x, y)),
    result=_COMPLEX_DTYPES.__getitem__,
    derivatives=(
        lambda t, out, x, y: complex(t, constant(t, 0)),
        lambda t, out, x, y: complex(constant(t, 0), t),
    ),
    transpose=(lambda ct, x, y: real(ct), lambda ct, x, y: neg(imag(ct))),
)


def _conj_shape(x: ShapedArray, *, input_dtype: Any) -> ShapedArray:
    check(
        x.dtype in _COMPONENT_DTYPES or x.dtype in _COMPLEX_DTYPES,
        lambda: (
            f"[conj] the operand must be complex, float32 or float64; got {x}. "
            "Fix: convert with x.astype(...)."
        ),
    )
    check(
        x.dtype == input_dtype,
        lambda: (
            f"[conj] input_dtype must be the operand's; got {input_dtype} for {x}. "
            f"Fix: input_dtype={x.dtype}."
        ),
    )
    return ShapedArray(x.shape, _COMPLEX_DTYPES.get(x.dtype, x.dtype), x.weak_type)


def _conj_transpose(cotangent: Any, x: ShapedArray, *, input_dtype: Any) -> Any:
    del input_dtype
    return conj(cotangent) if dtypes.is_complex(x.dtype) else real(cotangent)


def _conj_pair(builder: Any, x: Any) -> ComplexPair:
    if isinstance(x, ComplexPair):
        return ComplexPair(x.real, builder.apply("neg", x.imag))
    return ComplexPair(x, builder.const(x.dtype, 0))


conj_p = define(
    "conj",
    shape=_conj_shape,
    impl=lambda xp, x, *, input_dtype: xp.conj(x).astype(_COMPLEX_DTYPES.get(x.dtype, x.dtype)),
    jvp=linear_jvp(lambda x, input_dtype: conj_p.bind(x, input_dtype=input_dtype)),
    transpose=unary_transpose(_conj_transpose),
    batch=batch_elementwise(lambda x, **params: conj_p.bind(x, **params)),
    lower=Elementwise("", cheap=True, pair=complex_pairs.pair_body(_conj_pair)),
)


def real(x: ArrayLike) -> Array:
    """Return the real parts of complex numbers.

    Args:
        x: array of complex numbers.

    Returns:
        An array of the shape of ``x``: float32 for complex64, float64 for complex128.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.real(jnp.array([1 + 2j]))
        Array([1.], dtype=float32)
    """
    return real_p.bind(x)


def imag(x: ArrayLike) -> Array:
    """Return the imaginary parts of complex numbers.

    Args:
        x: array of complex numbers.

    Returns:
        An array of the shape of ``x``: float32 for complex64, float64 for complex128.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.imag(jnp.array([1 + 2j]))
        Array([2.], dtype=float32)
    """
    return imag_p.bind(x)


def complex(x: ArrayLike, y: ArrayLike) -> Array:
    """Return the complex numbers ``x + iy``.

    Args:
        x: array of real parts, float32 or float64.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        A complex array of the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.complex(jnp.array([1.0]), jnp.array([2.0]))
        Array([1.+2.j], dtype=complex64)
    """
    return complex_p.bind(*match_scalars(x, y))


def conj(x: ArrayLike) -> Array:
    """Return the complex conjugate; real floats become complex.

    Args:
        x: array of complex numbers or real floats.

    Returns:
        A complex array of the shape of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.conj(jnp.array([1 + 2j]))
        Array([1.-2.j], dtype=complex64)
    """
    return conj_p.bind(x, input_dtype=aval_of(x).dtype)


# --- abs, sign -----------------------------------------------------------------------------


def _has_abs(dtype: Any) -> bool:
    return is_number(dtype) and not dtypes.is_unsigned(dtype)


def _replace_zero(x: Any) -> Any:
    """``x`` with 0 replaced by 1."""
    return where(eq(x, 0), 1, x)


def _abs_jvp(t: Any, out: Any, x: Any) -> Any:
    if not dtypes.is_complex(aval_of(x).dtype):
        return where(ge(x, 0), t, neg(t))
    radius = convert(_replace_zero(out), aval_of(x).dtype)
    return real(mul(t, div(conj(x), radius)))


abs_p = elementwise(
    "abs",
    impl=lambda xp, x: xp.abs(x),
    accepts=_has_abs,
    what="a signed integer, a float or a complex number",
    body="abs",
    cheap=True,
    result=lambda dtype: _COMPONENT_DTYPES.get(dtype, dtype),
    derivatives=(_abs_jvp,),
    pair=complex_pairs.pair_body(complex_pairs.modulus),
    passes_nan=True,
)


def _sign_impl(xp: Any, x: Any) -> Any:
    if dtypes.is_complex(x.dtype):
        largest = xp.maximum(xp.abs(x.real), xp.abs(x.imag))
        near = xp.empty_like(x)
        near.real, near.imag = (
            xp.where(xp.isinf(a) & xp.isfinite(b), xp.copysign(1, a), a / largest)
            for a, b in ((x.real, x.imag), (x.imag, x.real))
        )
        return xp.where(x == 0, x.dtype.type(0), near / xp.abs(near))
    return xp.where(x == 0, x, xp.sign(x))


def _sign_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    out, aval = sign(x), aval_of(x)
    if not dtypes.is_complex(aval.dtype) or type(t) is Zero:
        return out, Zero(aval.tangent())
    # sign(z) is z / |z|: only the component of the tangent orthogonal to z rotates it.
    along = convert(real(mul(conj(out), t)), aval.dtype)
    radius = convert(_replace_zero(abs(x)), aval.dtype)
    return out, div(sub(t, mul(out, along)), radius)


sign_p = define(
    "sign",
    shape=nary_shape("sign", 1, is_number, "a number", None),
    impl=lambda xp, x: _sign_impl(xp, x).astype(x.dtype),
    jvp=_sign_jvp,
    batch=batch_elementwise(lambda x: sign(x)),
    lower=Elementwise("sign", cheap=True, pair=complex_pairs.pair_body(complex_pairs.sign)),
)


def abs(x: ArrayLike) -> Array:
    """Elementwise absolute value; the most negative integer is unchanged.

    Args:
        x: array of signed integers, floats or complex numbers.

    Returns:
        An array of the shape and dtype of ``x``; for complex numbers the dtype of their components.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.abs(jnp.array([-2, 3])), lax.abs(3 + 4j)
        (Array([2, 3], dtype=int32), Array(5., dtype=float32, weak_type=True))
    """
    return abs_p.bind(x)


def sign(x: ArrayLike) -> Array:
    """Elementwise sign: -1, 0 or 1; nan and signed zeros are unchanged; ``x / abs(x)`` for complex.

    Args:
        x: array of numbers.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.sign(jnp.array([-2.0, 0.0, 5.0]))
        Array([-1.,  0.,  1.], dtype=float32)
    """
    return sign_p.bind(x)
