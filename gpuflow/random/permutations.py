"""Random permutations and choices.

Tests: tests/random/test_random_keys.py.
"""

from __future__ import annotations

import math
from typing import Any

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of, is_value
from gpuflow.core.types import Array, ArrayLike, ShardingLike
from gpuflow.numpy.promotion import convert, promote_dtypes_inexact
from gpuflow.numpy.shaping import as_shape
from gpuflow.ops.effects.device_put import in_sharding
from gpuflow.ops.random import generators as random_ops
from gpuflow.random.base import Shape, randint, uniform
from gpuflow.random.gumbel import gumbel
from gpuflow.random.keys import typed_key


@composite
def permutation(
    key: ArrayLike,
    x: ArrayLike,
    axis: int = 0,
    independent: bool = False,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return the elements of ``x``, or the integers below it, in random order.

    Args:
        key: a key.
        x: array, or an integer scalar.
        axis: the axis to permute.
        independent: whether to shuffle each vector along ``axis`` independently.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array like ``x``; int32[x] for an integer.

    Raises:
        TypeError: if ``x`` is a scalar that is not an integer.
        ValueError: if the axis does not exist.

    Example:
        >>> x = gf.random.permutation(gf.random.key(0), 5)
        >>> sorted(x.tolist())
        [0, 1, 2, 3, 4]
    """
    if out_sharding is not None:
        out = permutation(key, x, axis, independent)
        return in_sharding("permutation", out, out_sharding)
    typed, _ = typed_key("permutation", key)
    x = x if is_value(x) else jnp.asarray(x)
    rank = aval_of(x).ndim
    dim = canonicalize_axis(axis, rank or 1, "permutation")
    if rank == 0:
        check(
            dtypes.is_integer(aval_of(x).dtype),
            lambda: (
                f"[permutation] a single x must be an integer; got {aval_of(x)}. "
                "Fix: pass an array, or an int."
            ),
        )
        return _shuffle(typed, jnp.arange(int(x)), 0)
    if independent or rank == 1:
        return _shuffle(typed, x, dim)
    order = _shuffle(typed, jnp.arange(aval_of(x).shape[dim]), 0)
    return jnp.take(x, order, dim)


def _shuffle(typed: Any, x: Any, axis: int) -> Any:
    """Shuffle by sorting random 32-bit keys, in enough rounds that equal keys do not matter.

    Source: TensorFlow's random_ops.cc, as in JAX.
    """
    shape = aval_of(x).shape
    rounds = math.ceil(3 * math.log(max(1, math.prod(shape))) / math.log(2**32 - 1))
    for _ in range(rounds):
        keys = random_ops.random_split(typed, (2,))
        typed = keys[0]
        x = lax.sort_key_val(random_ops.random_bits(keys[1], 32, shape), x, axis)[1]
    return x


@composite
def choice(
    key: ArrayLike,
    a: ArrayLike,
    shape: Shape = (),
    replace: bool = True,
    p: ArrayLike | None = None,
    axis: int = 0,
    mode: str | None = None,
) -> Array:
    """Return random elements of ``a``, or random integers below it.

    Args:
        key: a key.
        a: array, or an integer scalar.
        shape: shape of the samples, which replaces ``axis`` in the result.
        replace: whether to draw with replacement.
        p: f32[count], the probability of each element; None means uniform.
        axis: the axis along which to choose.
        mode: mode of the draws without replacement and with ``p``, as for ``gumbel``.

    Returns:
        An array of the dtype of ``a``, or integers, in which ``shape`` replaces ``axis``.

    Raises:
        ValueError: if ``a`` is empty, there are more draws without replacement than elements, or
            ``p`` has another shape.

    Source: without replacement and with ``p``, Gumbel top-k (Vieira 2014).

    Example:
        >>> x = gf.random.choice(gf.random.key(0), jnp.array([3, 5, 7]), (2,), replace=False)
        >>> x.shape, bool(x[0] != x[1])
        ((2,), True)
    """
    typed, _ = typed_key("choice", key)
    array, sizes = jnp.asarray(a), as_shape("choice", shape)
    rank = aval_of(array).ndim
    if rank:
        axis = canonicalize_axis(axis, rank, "choice")
    count = aval_of(array).shape[axis] if rank else int(a)
    draws = math.prod(sizes)
    if draws == 0:
        return jnp.zeros(sizes, aval_of(array).dtype)
    check(
        count > 0,
        lambda: "[choice] there must be something to choose from; got an empty axis. Fix: axis=.",
        ValueError,
    )
    check(
        replace or draws <= count,
        lambda: (
            f"[choice] without replacement at most {count} elements can be chosen; got shape "
            f"{sizes}. Fix: replace=True, or a smaller shape."
        ),
        ValueError,
    )
    if p is None and not replace:
        shuffled = permutation(typed, array if rank else count, axis if rank else 0)
        indices = lax.slice_in_dim(shuffled, 0, draws, 1, axis if rank else 0)
    else:
        indices = _positions(typed, sizes, draws, count, replace, p, mode)
        indices = jnp.take(array, indices, axis) if rank else indices
    if not rank:
        return jnp.reshape(indices, sizes)
    array_shape = aval_of(array).shape
    return jnp.reshape(indices, (*array_shape[:axis], *sizes, *array_shape[axis + 1 :]))


def _positions(
    typed: Any,
    shape: tuple[int, ...],
    draws: int,
    count: int,
    replace: bool,
    p: Any,
    mode: str | None,
) -> Any:
    """Random indices below ``count``, of any shape of ``draws`` elements."""
    if p is None:
        return randint(typed, shape, 0, count)
    (weights,) = promote_dtypes_inexact(jnp.asarray(p))
    check(
        aval_of(weights).shape == (count,),
        lambda: (
            f"[choice] p must have one probability for each of {count} elements; got "
            f"{aval_of(weights)}. Fix: pass an array of shape ({count},)."
        ),
        ValueError,
    )
    dtype = aval_of(weights).dtype
    if replace:
        below = jnp.cumsum(weights)
        threshold = lax.mul(below[-1], lax.sub(convert(1, dtype), uniform(typed, shape, dtype)))
        return convert(jnp.searchsorted(below, threshold), dtypes.default_int())
    noisy = lax.add(gumbel(typed, (count,), dtype, mode), lax.log(weights))
    return convert(lax.top_k(noisy, draws)[1], dtypes.default_int())
