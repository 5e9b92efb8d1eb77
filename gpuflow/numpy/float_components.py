"""Signs, exponents, fractions and bits of numbers, and functions built on them, elementwise.

Tests: tests/numpy/test_extreme_points.py, tests/numpy/test_numpy_gradients.py.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.control.custom.jvp import custom_jvp
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import as_array, as_arrays
from gpuflow.numpy.elementary import (
    ceil,
    floor,
    imag,
    real,
)
from gpuflow.numpy.logic import greater, isinf, isnan, less, where
from gpuflow.numpy.promotion import (
    constant,
    convert,
    like,
    no_out,
    promote_args,
    promote_args_inexact,
    promote_dtypes_inexact,
    promote_shapes,
)
from gpuflow.ops.elementwise.select import where as select_where

_BITS = {2: np.dtype(np.int16), 4: np.dtype(np.int32), 8: np.dtype(np.int64)}


def _real_only(name: str, x: Any, error: type[Exception] = TypeError) -> None:
    check(
        not dtypes.is_complex(aval_of(x).dtype),
        lambda: f"[{name}] operands must be real; got {aval_of(x)}. Fix: use x.real and x.imag.",
        error,
    )


# --- signs ---------------------------------------------------------------------------------


@composite
def signbit(x: ArrayLike, /) -> Array:
    """Return whether the sign bit is set; it is set for -0.0.

    Args:
        x: array of real numbers; floats of 16, 32 or 64 bits.

    Returns:
        Bools of the shape of ``x``.

    Raises:
        ValueError: if an argument is complex.
        NotImplementedError: if floats have 8 bits or less.

    Example:
        >>> jnp.signbit(jnp.array([-0.0, 0.0, -1.0]))
        Array([ True, False,  True], dtype=bool)
    """
    (x,) = promote_args("signbit", x)
    dtype = aval_of(x).dtype
    _real_only("signbit", x, ValueError)
    if not dtypes.is_floating(dtype):
        return lax.lt(x, like(0, x)) if dtype.kind == "i" else lax.ne(x, x)
    check(
        dtype.itemsize in _BITS,
        lambda: f"[signbit] floats must have 16, 32 or 64 bits; got {dtype}. Fix: x.astype(float).",
        NotImplementedError,
    )
    bits = lax.bitcast_convert_type(x, _BITS[dtype.itemsize])
    return lax.lt(bits, convert(0, _BITS[dtype.itemsize]))


@composite
def copysign(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Return ``abs(x1)`` with the sign of ``x2``.

    Args:
        x1, x2: real arrays that broadcast; integers are converted to floats.

    Returns:
        Floats of the common shape and dtype.

    Raises:
        TypeError: if an argument is complex.

    Example:
        >>> jnp.copysign(jnp.array([1.0, -2.0]), -0.0)
        Array([-1., -2.], dtype=float32)
    """
    x1, x2 = promote_args_inexact("copysign", x1, x2)
    _real_only("copysign", x1)
    size = lax.abs(x1)
    return select_where(signbit(x2), lax.neg(size), size)


@composite
def heaviside(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Return 0 for negative, ``x2`` for zero and 1 for positive ``x1``; nan for nan.

    Args:
        x1, x2: real arrays that broadcast; integers are converted to floats.

    Returns:
        Floats of the common shape and dtype.

    Raises:
        TypeError: if an argument is complex, or shapes do not broadcast.

    Example:
        >>> jnp.heaviside(jnp.array([-2.0, 0.0, 3.0]), 0.5)
        Array([0. , 0.5, 1. ], dtype=float32)
    """
    x1, x2 = promote_args_inexact("heaviside", x1, x2)
    zero, one = constant(0, x1), constant(1, x1)
    steps = where(lax.gt(x1, zero), one, where(lax.ne(x1, x1), x1, x2))
    return where(lax.lt(x1, zero), zero, steps)


@composite
def angle(z: ArrayLike, deg: bool = False) -> Array:
    """Return the angle of complex numbers; that of negative numbers is pi.

    Args:
        z: array.
        deg: whether to return degrees instead of radians.

    Returns:
        Floats of the shape of ``z``, in [-pi, pi] or [-180, 180].

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> jnp.round(jnp.angle(jnp.array([1, 1j, -1]), deg=True), 3)
        Array([  0.,  90., 180.], dtype=float32)
    """
    z = as_array("angle", z)
    dtype = aval_of(z).dtype
    pair = [real(z), imag(z)]
    if not dtypes.is_inexact(dtype) or (dtypes.is_floating(dtype) and aval_of(z).ndim == 0):
        pair = [lax.convert_element_type(x, dtypes.default_float()) for x in pair]
    out = lax.atan2(pair[1], pair[0])
    return lax.mul(out, like(180 / np.pi, out)) if deg else out


@composite
def isreal(x: ArrayLike) -> Array:
    """Return whether the imaginary part is 0, elementwise.

    Args:
        x: array.

    Returns:
        Bools of the shape of ``x``; True for real arrays.

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> jnp.isreal(jnp.array([1 + 2j, 3]))
        Array([False,  True], dtype=bool)
    """
    imaginary = imag(as_array("isreal", x))
    return lax.eq(imaginary, like(0, imaginary))


@composite
def iscomplex(x: ArrayLike) -> Array:
    """Return whether the imaginary part is not 0, elementwise.

    Args:
        x: array.

    Returns:
        Bools of the shape of ``x``; False for real arrays.

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> jnp.iscomplex(jnp.array([1 + 2j, 3]))
        Array([ True, False], dtype=bool)
    """
    imaginary = imag(as_array("iscomplex", x))
    return lax.ne(imaginary, like(0, imaginary))


# --- nan loses -----------------------------------------------------------------------------


@composite
def fmax(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return the larger of two elements, ignoring nan if possible.

    Args:
        x1, x2: arrays that broadcast; complex numbers are compared by real part first.

    Returns:
        An array of the common shape and dtype; nan if both elements are.

    Raises:
        TypeError: if an argument is not array-like, or shapes do not broadcast.

    Example:
        >>> jnp.fmax(jnp.array([1.0, jnp.nan, 5.0]), 3.0)
        Array([3., 3., 5.], dtype=float32)
    """
    x1, x2 = promote_args("fmax", x1, x2)
    return where(greater(x1, x2) | isnan(x2), x1, x2)


@composite
def fmin(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return the smaller of two elements, ignoring nan if possible.

    Args:
        x1, x2: arrays that broadcast; complex numbers are compared by real part first.

    Returns:
        An array of the common shape and dtype; nan if both elements are.

    Raises:
        TypeError: if an argument is not array-like, or shapes do not broadcast.

    Example:
        >>> jnp.fmin(jnp.array([1.0, jnp.nan, 5.0]), 3.0)
        Array([1., 3., 3.], dtype=float32)
    """
    x1, x2 = promote_args("fmin", x1, x2)
    return where(less(x1, x2) | isnan(x2), x1, x2)


# --- exponents and fractions ---------------------------------------------------------------


@composite
def modf(x: ArrayLike, /, out: None = None) -> tuple[Array, Array]:
    """Split numbers into fractional and integral parts, both with the sign of the number.

    Args:
        x: array of real numbers; integers are converted to floats.
        out: must be None.

    Returns:
        (fractional part, integral part), floats of the shape of ``x``.

    Raises:
        TypeError: if an argument is complex.
        NotImplementedError: if ``out`` is given.

    Example:
        >>> jnp.modf(jnp.array([1.25, -2.5]))
        (Array([ 0.25, -0.5 ], dtype=float32), Array([ 1., -2.], dtype=float32))
    """
    no_out("modf", out)
    (x,) = promote_args_inexact("modf", x)
    whole = where(lax.ge(x, like(0, x)), floor(x), ceil(x))
    return lax.sub(x, whole), whole


@custom_jvp
def _frexp(x: Any) -> tuple[Any, Any]:
    dtype = aval_of(x).dtype
    info, uint = ml_dtypes.finfo(dtype), _BITS[dtype.itemsize]
    mask, bias = (1 << info.nexp) - 1, 1 - int(info.minexp)
    small = lax.lt(lax.abs(x), convert(float(info.tiny), dtype))
    # A subnormal number is scaled to a normal one first.
    scaled = where(small, lax.mul(x, convert(float(1 << info.nmant), dtype)), x)
    bits = lax.bitcast_convert_type(scaled, uint)
    exponent = (bits >> convert(int(info.nmant), uint)) & convert(mask, uint)
    shift = where(small, convert(bias - 1 + int(info.nmant), uint), convert(bias - 1, uint))
    sign_mantissa = bits & convert(~(mask << int(info.nmant)), uint)
    fraction = lax.bitcast_convert_type(
        sign_mantissa | convert((bias - 1) << int(info.nmant), uint), dtype
    )
    special = isinf(x) | isnan(x) | (x == 0)
    exponent = where(special, convert(0, uint), lax.sub(exponent, shift))
    return where(special, x, fraction), lax.convert_element_type(exponent, np.int32)


@_frexp.defjvp
def _frexp_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    fraction, exponent = _frexp(primals[0])
    scale = lax.exp2(lax.neg(lax.convert_element_type(exponent, aval_of(fraction).dtype)))
    none = np.zeros(aval_of(exponent).shape, dtypes.float0)
    return (fraction, exponent), (lax.mul(tangents[0], scale), none)


@composite
def frexp(x: ArrayLike, /) -> tuple[Array, Array]:
    """Return ``m`` in [0.5, 1) and int32 ``e`` with ``x == m * 2**e``.

    Args:
        x: array of real numbers; integers are converted to floats.

    Returns:
        (m, e) of the shape of ``x``: floats with the sign of ``x``, and int32. 0, nan and
        infinities are returned unchanged.

    Raises:
        TypeError: if an argument is complex.

    Example:
        >>> jnp.frexp(jnp.array([1.0, -6.0, 0.0]))
        (Array([ 0.5 , -0.75,  0.  ], dtype=float32), Array([1, 3, 0], dtype=int32))
    """
    (x,) = promote_args_inexact("frexp", x)
    _real_only("frexp", x)
    return _frexp(x)


@composite
def ldexp(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Compute ``x1 * 2**x2``, exact even if ``2**x2`` overflows or underflows.

    Args:
        x1: array of real numbers; integers are converted to floats.
        x2: array of integers; it broadcasts with ``x1``.

    Returns:
        Floats of the common shape, in the dtype of ``x1``.

    Raises:
        ValueError: if ``x1`` is complex, or ``x2`` is not an integer array.

    Example:
        >>> jnp.ldexp(jnp.array([0.5, -0.75]), jnp.array([1, 3]))
        Array([ 1., -6.], dtype=float32)
    """
    x1, x2 = as_arrays("ldexp", x1, x2)
    _real_only("ldexp", x1, ValueError)
    check(
        not dtypes.is_inexact(aval_of(x2).dtype),
        lambda: f"[ldexp] x2 must be integers; got {aval_of(x2)}. Fix: x2.astype(int).",
        ValueError,
    )
    (x1,) = promote_dtypes_inexact(x1)
    x1, x2 = promote_shapes("ldexp", (x1, x2))
    dtype = aval_of(x1).dtype
    fraction, exponent = _frexp(x1)
    power = lax.add(lax.convert_element_type(exponent, dtype), lax.convert_element_type(x2, dtype))
    grows = lax.gt(power, convert(0, dtype))
    fraction = where(grows, fraction * convert(2, dtype), fraction)
    power = where(grows, lax.sub(power, convert(1, dtype)), power)
    out = lax.mul(fraction, lax.exp2(power))
    return where(isinf(x1) | (x1 == 0), x1, out)


def nextafter(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return the next float after ``x`` towards ``y``.

    Args:
        x, y: real arrays that broadcast; integers are converted to floats.

    Returns:
        Floats of the common shape and dtype.

    Raises:
        TypeError: if an argument is complex.

    Example:
        >>> (jnp.nextafter(1.0, 2.0) - 1) * 2**23
        Array(1., dtype=float32, weak_type=True)
    """
    return lax.nextafter(*promote_args_inexact("nextafter", x, y))


@composite
def spacing(x: ArrayLike, /) -> Array:
    """Return the distance to the next float away from zero, with the sign of ``x``.

    Args:
        x: array of real numbers; integers are converted to floats.

    Returns:
        Floats of the shape of ``x``.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.spacing(jnp.array([1.0, -1024.0])) * 2**23
        Array([ 1.000e+00, -1.024e+03], dtype=float32)
    """
    (x,) = promote_args_inexact("spacing", x)
    _real_only("spacing", x, ValueError)
    dtype = aval_of(x).dtype
    infinity = convert(np.inf, dtype)
    if dtype == dtypes.float16:
        return lax.sub(lax.nextafter(x, infinity), x)
    least = convert(float(ml_dtypes.finfo(dtype).smallest_subnormal), dtype)
    step = lax.sub(lax.nextafter(x, copysign(infinity, x)), x)
    return where(step == 0, copysign(least, x), step)


# --- functions with removable singularities ------------------------------------------------


@composite
def sinc(x: ArrayLike, /) -> Array:
    """Compute ``sin(pi x) / (pi x)``, which is 1 at 0, with derivatives of all orders.

    Args:
        x: array; integers are converted to floats.

    Returns:
        Floats of the shape of ``x``; complex for complex numbers.

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> jnp.round(jnp.sinc(jnp.array([0.0, 0.5, 1.0])), 3) + 0.0
        Array([1.   , 0.637, 0.   ], dtype=float32)
        >>> gf.grad(jnp.sinc)(0.0)
        Array(0., dtype=float32, weak_type=True)
    """
    (x,) = promote_args_inexact("sinc", x)
    scaled = lax.mul(like(np.pi, x), x)
    size = lax.abs(scaled)
    is_near = lax.lt(size, like(0.3, size))
    safe = select_where(is_near, like(1, scaled), scaled)
    # The series near 0, because the derivatives of the quotient cancel there.
    # Elsewhere it is not used, but must be finite so that its derivative is not nan.
    near = select_where(is_near, scaled, like(0, scaled))
    square = lax.mul(near, near)
    series, term = like(0, x), 1.0
    for order in range(12, 0, -2):
        term = 1.0 / (order * (order + 1))
        series = lax.mul(lax.neg(square), lax.mul(lax.add(like(1, x), series), like(term, x)))
    sine = select_where(is_near, like(1, scaled), _sin_pi(x))
    return select_where(is_near, lax.add(like(1, x), series), lax.div(sine, safe))


def _sin_pi(x: Any) -> Any:
    """``sin(pi x)``, exact at integers: they are subtracted before the product with pi."""
    x_real = lax.real(x) if dtypes.is_complex(aval_of(x).dtype) else x
    nearest = lax.round(x_real, lax.RoundingMethod.TO_NEAREST_EVEN)
    half = lax.mul(like(0.5, x_real), nearest)
    is_even = lax.eq(half, lax.round(half, lax.RoundingMethod.TO_NEAREST_EVEN))
    within = lax.sub(x, convert(nearest, aval_of(x).dtype, aval_of(x).weak_type))
    sine = lax.sin(lax.mul(like(np.pi, x), within))
    return select_where(is_even, sine, lax.neg(sine))


@custom_jvp
def _i0(x: Any) -> Any:
    # In two factors, since the exponential overflows before the product does.
    root = lax.exp(lax.mul(like(0.5, x), lax.abs(x)))
    return lax.mul(root, lax.mul(root, lax.bessel_i0e(x)))


@_i0.defjvp
def _i0_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    x = primals[0]
    return _i0(x), lax.mul(tangents[0], lax.mul(lax.exp(lax.abs(x)), lax.bessel_i1e(x)))


@composite
def i0(x: ArrayLike) -> Array:
    """Compute the modified Bessel function of the first kind and order 0.

    Args:
        x: array of real numbers; integers are converted to floats.

    Returns:
        Floats of the shape of ``x``.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.round(jnp.i0(jnp.array([0.0, 1.0])), 3)
        Array([1.   , 1.266], dtype=float32)
    """
    (x,) = promote_args_inexact("i0", x)
    _real_only("i0", x, ValueError)
    return _i0(x)
