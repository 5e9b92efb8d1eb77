"""Selects the ops that run as compiled one-equation programs outside of jit, on the CPU.

All other ops call NumPy, which is as fast for small arrays, and needs no compiler. See
docs/design/0035-composites.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.compiler.pipeline import compile_plan, plan_of_call
from gpuflow.compiler.planning.plan import Plan, calls_python
from gpuflow.core.aval import ShapedArray
from gpuflow.core.jaxpr import ClosedJaxpr, one_op
from gpuflow.core.lowering import Elementwise, Indexed, Layout, Reduction, TupleReduction, block_of
from gpuflow.core.primitive import Primitive
from gpuflow.kir.scalar import FUNCTIONS
from gpuflow.targets.cpu.library.table import EAGER_BLOCKS
from gpuflow.targets.cpu.target import NATIVE_TARGET

# Smallest numbers of elements for which a kernel is faster than NumPy by more than an occasional
# bind costs. Cheap ops take NumPy one quick pass, so only threads help. For costly ops (series) and
# all narrow floats, NumPy computes elements one by one, or in a dozen passes.
_LARGE, _LARGE_COSTLY, _LARGE_NARROW = 1 << 15, 1 << 12, 1 << 10
_NARROW = frozenset({dtypes.bfloat16, dtypes.float16, *dtypes.NARROW_FLOATS})
_IN_KERNELS = (Elementwise, Indexed, Reduction, TupleReduction)


def plan_of_op(
    primitive: Primitive, avals: Sequence[ShapedArray], params: dict[str, Any]
) -> tuple[Plan, ClosedJaxpr] | None:
    """Return the plan and jaxpr of an op that runs as a native program outside of jit, or None.

    These are library calls of EAGER_BLOCKS, and ops on large arrays that kernels can compute. The
    decision must depend on types alone, so that the same op gives the same bits each time.
    """
    rule = primitive.lower
    if rule.what is not None:
        jaxpr = one_op(primitive, avals, params)
        if not isinstance(block_of(jaxpr.jaxpr.eqns[0]), EAGER_BLOCKS):
            return None
        plan, values = plan_of_call(jaxpr, NATIVE_TARGET), ()
    elif isinstance(rule, _IN_KERNELS):
        jaxpr = one_op(primitive, avals, params)
        least = _LARGE_COSTLY if _is_costly(rule) else _LARGE
        if not any(_is_large(aval, least) for aval in (*avals, *jaxpr.out_avals)):
            return None
        plan, values = compile_plan(jaxpr, target=NATIVE_TARGET)
    elif rule.view is not None:
        jaxpr = one_op(primitive, avals, params)
        (out,) = jaxpr.out_avals
        if out.size < _LARGE_COSTLY or not _is_data_movement(rule, avals[0], out, params):
            return None
        plan, values = compile_plan(jaxpr, target=NATIVE_TARGET)
    else:
        return None
    # A plan that calls Python would only call the op's impl, which is faster without a program.
    return None if values or calls_python(plan) else (plan, jaxpr)


def _is_data_movement(
    rule: Layout, x: ShapedArray, out: ShapedArray, params: dict[str, Any]
) -> bool:
    """Whether a layout op permutes dimensions, repeats elements, or is a large reversal.

    NumPy copies all others as fast. Slices use NumPy too: their operands often have new addresses.
    """
    if rule.steps is not None:
        return out.size == x.size >= _LARGE
    links = rule.links(x, out, **params)
    if links is None:
        return False
    dims = [dim for _, dim in sorted(links)]
    return out.size > x.size or dims != sorted(dims)


def _is_large(aval: ShapedArray, least: int) -> bool:
    return aval.size >= (_LARGE_NARROW if aval.dtype in _NARROW else least)


def _is_costly(rule: Any) -> bool:
    """Whether NumPy computes an element much more slowly than it loads and stores it.

    True for ops that fusion does not recompute (``cheap`` is false), and for ops without an
    equivalent ufunc of NumPy.
    """
    if not rule.is_elementwise:
        return False
    function = FUNCTIONS.get(rule.body) if isinstance(rule.body, str) else None
    is_missing = function is not None and not isinstance(function.definition, np.ufunc)
    return is_missing or not rule.cheap
