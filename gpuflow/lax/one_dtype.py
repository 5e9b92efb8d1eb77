"""Binary and ternary ops of the public ``lax``: operands must have one dtype, scalars included.

In rules of ops, ``mul(x, 2)`` means a 2 of the dtype of ``x``. In user code ``lax.mul(x, 2)``
raises an error for floats, as in JAX: ``jnp.multiply`` promotes.

Tests: tests/lax/test_one_dtype.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from gpuflow.base import dtypes
from gpuflow.core.aval import aval_of
from gpuflow.core.primitive import Primitive
from gpuflow.core.types import Array, ArrayLike, BinaryOp, DTypeLike
from gpuflow.ops.elementwise import (
    arithmetic,
    bits,
    comparison,
    complex_numbers,
    general_powers,
    transcendental,
)
from gpuflow.ops.elementwise.select import clamp as clamp_op
from gpuflow.ops.elementwise.select import select as select_op
from gpuflow.ops.layout import slicing
from gpuflow.ops.random import key_equality
from gpuflow.ops.special import gamma

_PYTHON_SCALARS = (bool, int, float, complex)


def _check_dtypes(name: str, x: Any, y: Any) -> tuple[Any, Any]:
    """Check two operands: a Python scalar must have the dtype of the other one.

    Raises:
        TypeError: if it has another dtype.
    """
    if type(x) is type(y):
        return x, y  # the common case; the op compares dtypes of arrays
    if type(x) in _PYTHON_SCALARS or type(y) in _PYTHON_SCALARS:
        first, second = aval_of(x), aval_of(y)
        if first.dtype != second.dtype:
            raise TypeError(
                f"[{name}] operands must have one dtype; got {first} and {second}. "
                "Fix: convert one of them, or use the function of gpuflow.numpy, which promotes."
            )
    return x, y


def _strict(primitive: Primitive, function: Callable[..., Any]) -> BinaryOp:
    """A function of two operands that must have one dtype."""
    name = primitive.name

    @wraps(function)
    def strict(x: ArrayLike, y: ArrayLike) -> Array:
        return primitive.bind(*_check_dtypes(name, x, y))

    return strict


add = _strict(arithmetic.add_p, arithmetic.add)
sub = _strict(arithmetic.sub_p, arithmetic.sub)
div = _strict(arithmetic.div_p, arithmetic.div)
rem = _strict(arithmetic.rem_p, arithmetic.rem)
max = _strict(arithmetic.max_p, arithmetic.max)
min = _strict(arithmetic.min_p, arithmetic.min)
atan2 = _strict(transcendental.atan2_p, transcendental.atan2)
nextafter = _strict(bits.nextafter_p, bits.nextafter)
mulhi = _strict(bits.mulhi_p, bits.mulhi)
lt = _strict(comparison.lt_p, comparison.lt)
le = _strict(comparison.le_p, comparison.le)
gt = _strict(comparison.gt_p, comparison.gt)
ge = _strict(comparison.ge_p, comparison.ge)
bitwise_and = _strict(comparison.and_p, comparison.bitwise_and)
bitwise_or = _strict(comparison.or_p, comparison.bitwise_or)
bitwise_xor = _strict(comparison.xor_p, comparison.bitwise_xor)
shift_left = _strict(comparison.shift_left_p, comparison.shift_left)
shift_right_logical = _strict(comparison.shift_right_logical_p, comparison.shift_right_logical)
shift_right_arithmetic = _strict(
    comparison.shift_right_arithmetic_p, comparison.shift_right_arithmetic
)
igamma = _strict(gamma.igamma_p, gamma.igamma)
igammac = _strict(gamma.igammac_p, gamma.igammac)
igamma_grad_a = _strict(gamma.igamma_grad_a_p, gamma.igamma_grad_a)
random_gamma_grad = _strict(gamma.random_gamma_grad_p, gamma.random_gamma_grad)
zeta = _strict(gamma.zeta_p, gamma.zeta)
polygamma = _strict(gamma.polygamma_p, gamma.polygamma)
complex = _strict(complex_numbers.complex_p, complex_numbers.complex)


@wraps(key_equality.eq)
def eq(x: ArrayLike, y: ArrayLike) -> Array:
    """See ``ops.key_equality``."""
    return key_equality.eq(*_check_dtypes("eq", x, y))


@wraps(key_equality.ne)
def ne(x: ArrayLike, y: ArrayLike) -> Array:
    """See ``ops.key_equality``."""
    return key_equality.ne(*_check_dtypes("ne", x, y))


@wraps(arithmetic.mul)
def mul(x: ArrayLike, y: ArrayLike, *, out_dtype: DTypeLike | None = None) -> Array:
    """See ``ops.elementwise``."""
    if out_dtype is not None:
        return arithmetic.mul(*_check_dtypes("mul", x, y), out_dtype=out_dtype)
    return arithmetic.mul_p.bind(*_check_dtypes("mul", x, y))


@wraps(general_powers.pow)
def pow(x: ArrayLike, y: ArrayLike) -> Array:
    """See ``ops.general_powers``."""
    if dtypes.is_integer(aval_of(y).dtype):
        return general_powers.pow_p.bind(x, y)
    return general_powers.pow_p.bind(*_check_dtypes("pow", x, y))


@wraps(clamp_op)
def clamp(min: ArrayLike, x: ArrayLike, max: ArrayLike) -> Array:
    """See ``ops.elementwise.select``."""
    return clamp_op(_check_dtypes("clamp", min, x)[0], x, _check_dtypes("clamp", max, x)[0])


@wraps(select_op)
def select(pred: ArrayLike, on_true: ArrayLike, on_false: ArrayLike) -> Array:
    """See ``ops.elementwise.select``."""
    return select_op(pred, *_check_dtypes("select", on_true, on_false))


@wraps(slicing.pad)
def pad(
    operand: ArrayLike, padding_value: ArrayLike, padding_config: Sequence[Sequence[int]]
) -> Array:
    """See ``ops.layout``."""
    return slicing.pad(operand, _check_dtypes("pad", padding_value, operand)[0], padding_config)
