"""rng_uniform: uniform random numbers that cannot be reproduced.

Tests: tests/lax/test_lax_definitions.py.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from operator import index as as_index
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.caches import cache
from gpuflow.base.errors import OutOfMemoryError, check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.effects import RANDOM
from gpuflow.core.lowering import HostCall
from gpuflow.core.rules import AxisData, Zero, zero_tangent
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.define import define, is_number, types_text
from gpuflow.ops.elementwise.arithmetic import add, div, mul, sub
from gpuflow.ops.elementwise.nary import match_scalars
from gpuflow.ops.layout.axes import broadcast_in_dim
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.zeros import instantiate


def _shape(a: ShapedArray, b: ShapedArray, *, shape: tuple[int, ...]) -> ShapedArray:
    check(
        a.shape == b.shape and a.dtype == b.dtype,
        lambda: (
            f"[rng_uniform] bounds must be scalars of one dtype; got {types_text([a, b])}. "
            "Fix: random.uniform, whose bounds broadcast."
        ),
        ValueError,
    )
    check(
        is_number(a.dtype) and not dtypes.is_complex(a.dtype),
        lambda: f"[rng_uniform] bounds must be real numbers; got {a}. Fix: x.astype('float32').",
    )
    check(
        all(size >= 0 for size in shape),
        lambda: f"[rng_uniform] sizes must not be negative; got {shape}. Fix: use sizes >= 0.",
        ValueError,
    )
    return ShapedArray((*a.shape, *shape), a.dtype, a.weak_type and b.weak_type)


@cache
def _generator(xp: Any, process: int) -> Any:
    """The generator of a process, seeded by the system: forked children have others."""
    del process
    return xp.random.default_rng()


def _impl(xp: Any, a: Any, b: Any, *, shape: tuple[int, ...]) -> Any:
    generator = _generator(xp, os.getpid())
    a, b = (x.reshape(x.shape + (1,) * len(shape)) for x in (a, b))
    sizes = (*a.shape[: a.ndim - len(shape)], *shape)
    if not dtypes.is_floating(a.dtype):
        # A float64 fraction of a range of 64-bit integers would miss most of them.
        draws = generator.integers(0, 2**64, sizes, dtype=np.uint64)
        span = xp.maximum(b.astype(np.uint64) - a.astype(np.uint64), np.uint64(1))
        return (a.astype(np.uint64) + draws % span).astype(a.dtype)
    wide = a.dtype if a.dtype.itemsize >= 4 else np.dtype(np.float32)
    low, high = a.astype(wide), b.astype(wide)
    drawn = (low + generator.random(sizes, dtype=wide) * (high - low)).astype(a.dtype)
    # Rounding may reach the upper bound.
    return xp.where(drawn < b, drawn, a)


def _expanded(x: Any, out: ShapedArray) -> Any:
    return broadcast_in_dim(x, out.shape, range(aval_of(x).ndim))


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, shape: tuple[int, ...]
) -> tuple[Any, Any]:
    """Differentiate samples with respect to the bounds: each is a fraction of the range."""
    out = rng_uniform_p.bind(*primals, shape=shape)
    if all(type(tangent) is Zero for tangent in tangents):
        return out, zero_tangent(out)
    aval = aval_of(out)
    start, end = (_expanded(x, aval) for x in primals)
    low, high = (_expanded(instantiate(tangent), aval) for tangent in tangents)
    share = div(sub(out, start), sub(end, start))
    return out, add(low, mul(share, sub(high, low)))


def _batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], *, shape: tuple[int, ...]
) -> tuple[Any, int]:
    bounds = [batch_to_dim(x, d, 0, axis.size) for x, d in zip(operands, dims, strict=True)]
    return rng_uniform_p.bind(*bounds, shape=shape), 0


# The effect prevents that two draws are merged as equal expressions.
rng_uniform_p = define(
    "rng_uniform",
    shape=_shape,
    impl=_impl,
    jvp=_jvp,
    batch=_batch,
    effects=lambda params: frozenset({RANDOM}),
    lower=HostCall(),
    size_params=frozenset({"shape"}),
)


@explained
def rng_uniform(a: ArrayLike, b: ArrayLike, shape: Sequence[int]) -> Array:
    """Return unseeded uniform random numbers in [a, b); use ``random.uniform`` for a seed.

    Args:
        a, b: scalars of one dtype of real numbers; with b <= a the result is undefined.
        shape: shape of the result.

    Returns:
        An array of ``shape`` and the dtype of the bounds.

    Raises:
        TypeError: if the bounds are not real numbers.
        ValueError: if the bounds are not scalars of one dtype, or a size is negative.

    Example:
        >>> x = lax.rng_uniform(0.0, 1.0, (3,))
        >>> x.shape, bool(((x >= 0) & (x < 1)).all())
        ((3,), True)
    """
    a, b = match_scalars(a, b)
    check(
        not aval_of(a).shape,
        lambda: (
            f"[rng_uniform] bounds must be scalars of one dtype; got "
            f"{types_text([aval_of(a), aval_of(b)])}. Fix: random.uniform, whose bounds broadcast."
        ),
        ValueError,
    )
    sizes = tuple(map(as_index, shape))
    check(
        math.prod(sizes) < 2**60,
        lambda: f"[rng_uniform] the result must fit into memory; got {sizes}. Fix: smaller sizes.",
        OutOfMemoryError,
    )
    return rng_uniform_p.bind(a, b, shape=sizes)
