"""optimization_barrier: uses of any of the values wait for all of them.

Tests: tests/ops/test_barrier.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from gpuflow.base import tree
from gpuflow.base.errors import check
from gpuflow.base.util import safe_zip
from gpuflow.core.aval import ShapedArray, is_value
from gpuflow.core.jaxpr import Atom, Eqn, Literal
from gpuflow.core.lowering import Barrier
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.rules import AxisData, Zero
from gpuflow.ops.define import define

_T = TypeVar("_T")


def optimization_barrier(operand: _T) -> _T:
    """Return the leaves of ``operand`` as values that are opaque to the compiler.

    Computations on the results are not merged with computations on the operands, and they start
    after all leaves are computed.

    Args:
        operand: a pytree of arrays.

    Returns:
        The same pytree. Compiled programs copy nothing.

    Raises:
        TypeError: if a leaf is not an array.

    Example:
        >>> lax.optimization_barrier((jnp.ones(2), 3))
        (Array([1., 1.], dtype=float32), Array(3, dtype=int32, weak_type=True))
    """
    leaves, treedef = tree.flatten(operand)
    for path, leaf in safe_zip(tree.paths(operand), leaves):
        check(
            is_value(leaf),
            lambda path=path, leaf=leaf: (
                f"[optimization_barrier] operands must be arrays or trees of them; got {leaf!r} of "
                f"type {type(leaf).__name__} as operand{path}. Fix: jnp.asarray."
            ),
        )
    return tree.unflatten(treedef, optimization_barrier_p.bind(*leaves))


def _shape(*avals: ShapedArray) -> list[ShapedArray]:
    return list(avals)


def _impl(xp: Any, *arrays: Any) -> list[Any]:
    del xp
    return list(arrays)


def _among(values: Sequence[Any]) -> list[Any]:
    """A barrier over tangents or cotangents that are not zero."""
    nonzero = [value for value in values if type(value) is not Zero]
    outs = iter(optimization_barrier_p.bind(*nonzero))
    return [value if type(value) is Zero else next(outs) for value in values]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    return optimization_barrier_p.bind(*primals), _among(tangents)


def _transpose(cotangents: Sequence[Any], *operands: Any) -> list[Any]:
    del operands
    return _among(cotangents)


def _batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None]
) -> tuple[list[Any], list[int | None]]:
    del axis
    return optimization_barrier_p.bind(*operands), list(dims)


def _simplify(eqn: Eqn, definition: DefinitionLookup, build: EqnBuilder) -> list[Atom] | None:
    """Remove literals and unused results from the barrier."""
    used = [
        k
        for k, (atom, var) in enumerate(safe_zip(eqn.inputs, eqn.outputs))
        if type(atom) is not Literal and definition.is_read(var)
    ]
    if len(used) == len(eqn.inputs):
        return None
    results = list(eqn.inputs)
    if used:
        outs = build.apply(optimization_barrier_p, *[eqn.inputs[k] for k in used])
        for k, out in safe_zip(used, outs):
            results[k] = out
    return results


optimization_barrier_p = define(
    "optimization_barrier",
    multiple_results=True,
    shape=_shape,
    impl=_impl,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    lower=Barrier(),
    simplify=_simplify,
    varies=lambda varying, params: varying,
)
