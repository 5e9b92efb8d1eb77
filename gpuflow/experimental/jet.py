"""Taylor-mode automatic differentiation: derivatives of all orders along a curve.

Tests: tests/experimental/test_jet.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import factorial
from typing import Any

import gpuflow.numpy as jnp
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import aval_of, is_value
from gpuflow.transforms.taylor import taylor_flat
from gpuflow.tree_util import tree_flatten, tree_unflatten


def jet(
    fun: Callable[..., Any],
    primals: Sequence[Any],
    series: Sequence[Sequence[Any]],
    factorial_scaled: bool = True,
    **_: Any,
) -> tuple[Any, Any]:
    """Compute a function along a curve, and its derivatives with respect to the parameter.

    If each argument follows a curve ``x(t)``, ``fun(x(t))`` is a function of the scalar ``t``.
    Given ``x(0)`` and the derivatives of ``x`` at 0, this computes those of ``fun(x(t))``; the
    first is ``jvp``. Derivatives of one order share the results of lower orders, unlike nested
    calls of ``jvp``. Functions with ``custom_jvp`` are differentiated by their rule, those with
    ``custom_vjp`` without it.

    Args:
        fun: a function of arrays that returns a pytree of arrays.
        primals: ``x(0)`` of each argument, f[...] or complex.
        series: the derivatives of ``x`` at 0 for each argument, from the first order on: arrays of
            the argument's shape, equally many for each argument.
        factorial_scaled: whether ``series`` and the result are derivatives; otherwise they are
            Taylor coefficients, that is, derivatives divided by factorials.
        _: accepted; no effect.

    Returns:
        ``fun(*primals)``, and a tree of the same structure with a list of derivatives for each
        array. Those of integers are zeros.

    Raises:
        ValueError: if the ``series`` differ in length, do not match the arguments in number or
            shape, or arguments are trees.
        TypeError: if an argument is an integer array.

    Example:
        >>> import gpuflow as gf, gpuflow.numpy as jnp
        >>> from gpuflow.experimental.jet import jet
        >>> value, (first, second) = jet(jnp.exp, (0.0,), ([1.0, 0.0],))
        >>> float(value), float(first), float(second)
        (1.0, 1.0, 1.0)
    """
    lengths = {len(terms) for terms in series}
    check(
        len(primals) == len(series) and len(lengths) == 1,
        lambda: (
            f"[jet] series must have as many derivatives for each of {len(primals)} arguments; got "
            f"{[len(terms) for terms in series]}. Fix: zeros for derivatives that are 0."
        ),
        ValueError,
    )
    (order,) = lengths
    values = [_argument(k, x) for k, x in enumerate(primals)]
    curves = []
    for k, (x, terms) in enumerate(zip(values, series, strict=True)):
        curves.append([_term(k, n, term, x) for n, term in enumerate(terms, 1)])
    scales = [1.0 if factorial_scaled else float(factorial(n + 1)) for n in range(order)]
    curves = [_scaled(terms, scales) for terms in curves]
    structure: list[Any] = []

    def flat(*operands: Any) -> list[Any]:
        leaves, tree = tree_flatten(fun(*operands))
        structure.append(tree)
        return [jnp.asarray(leaf) for leaf in leaves]

    outs, found = taylor_flat(flat, values, curves, order)
    terms_out = [
        [jnp.zeros_like(out)] * order
        if not dtypes.is_inexact(aval_of(out).dtype)
        else _scaled(terms, [1.0 / scale for scale in scales])
        for out, terms in zip(outs, found, strict=True)
    ]
    return tree_unflatten(structure[0], outs), tree_unflatten(structure[0], terms_out)


def _argument(k: int, x: Any) -> Any:
    check(
        is_value(x),
        lambda: (
            f"[jet] argument {k} must be an array; got {type(x).__name__}. "
            "Fix: a function of several arrays, or gpuflow.flatten_util.ravel_pytree."
        ),
        ValueError,
    )
    value = jnp.asarray(x)
    check(
        dtypes.is_inexact(aval_of(value).dtype),
        lambda: (
            f"[jet] argument {k} must be of floats; got {aval_of(value)}. Fix: x.astype(float)."
        ),
    )
    return value


def _term(k: int, n: int, term: Any, x: Any) -> Any:
    check(
        is_value(term) and aval_of(term).shape in ((), aval_of(x).shape),
        lambda: (
            f"[jet] derivative {n} of argument {k} must be an array like it, {aval_of(x)}; got "
            f"{aval_of(term) if is_value(term) else type(term).__name__}. Fix: jnp.broadcast_to."
        ),
        ValueError,
    )
    aval = aval_of(x)
    return jnp.broadcast_to(jnp.asarray(term, aval.dtype), aval.shape)


def _scaled(terms: Sequence[Any], scales: Sequence[float]) -> list[Any]:
    return [x if scale == 1.0 else x * scale for x, scale in zip(terms, scales, strict=True)]
