"""Tokens, which order effects; and dce_sink, which computes unused values.

Tests: tests/lax/test_lax_rest.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.base import dtypes, tree
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of, is_value
from gpuflow.core.effects import USE
from gpuflow.core.lowering import HostCall
from gpuflow.core.rules import AxisData
from gpuflow.ops.define import define
from gpuflow.ops.effects.barrier import optimization_barrier
from gpuflow.ops.zeros import full

_TOKEN = ShapedArray((0,), dtypes.bool_)


def create_token(_: Any = None) -> Any:
    """Return a token without dependencies: an empty array ``bool[0]``.

    Returns:
        A token.

    Example:
        >>> lax.create_token()
        Array([], shape=(0,), dtype=bool)
    """
    return full(_TOKEN.shape, False, _TOKEN.dtype)


def after_all(*operands: Any) -> Any:
    """Return a token that is ready when all given tokens are.

    ``lax.optimization_barrier((token, x))`` converts a value to a token, and makes a value wait for
    a token.

    Args:
        operands: tokens.

    Returns:
        A token.

    Raises:
        TypeError: if an operand is not a token.

    Example:
        >>> lax.after_all(lax.create_token(), lax.create_token())
        Array([], shape=(0,), dtype=bool)
    """
    for operand in operands:
        check(
            is_value(operand)
            and (aval_of(operand).shape, aval_of(operand).dtype) == (_TOKEN.shape, _TOKEN.dtype),
            lambda operand=operand: (
                f"[after_all] operands must be tokens; got {operand!r} of type "
                f"{type(operand).__name__}. Fix: lax.create_token(), or lax.optimization_barrier "
                "for values."
            ),
        )
    return optimization_barrier(list(operands))[0] if operands else create_token()


# --- dce_sink ------------------------------------------------------------------------------


def _sink_shape(x: ShapedArray) -> list[ShapedArray]:
    del x
    return []


def _sink_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    del tangents
    return dce_sink_p.bind(*primals), []


def _sink_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None]
) -> tuple[list[Any], list[Any]]:
    del axis, dims
    return dce_sink_p.bind(*operands), []


dce_sink_p = define(
    "dce_sink",
    multiple_results=True,
    shape=_sink_shape,
    impl=lambda xp, x: [],
    jvp=_sink_jvp,
    transpose=lambda cotangents, x: [None],
    batch=_sink_batch,
    effects=lambda params: frozenset({USE}),
    lower=HostCall(),
)


def dce_sink(val: Any, *, prevent_mlir_dce: bool = False) -> None:
    """Compute the leaves of ``val`` although they are unused; for measurements.

    Args:
        val: a pytree of arrays.
        prevent_mlir_dce: accepted as in JAX; no effect.

    Returns:
        None.

    Example:
        >>> f = gf.jit(lambda x: lax.dce_sink(jnp.sin(x)) or x)
        >>> f(1.0)
        Array(1., dtype=float32, weak_type=True)
    """
    del prevent_mlir_dce
    for leaf in tree.leaves(val):
        dce_sink_p.bind(leaf)
