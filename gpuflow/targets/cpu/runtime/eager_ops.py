"""Selects the ops that run as compiled one-equation programs outside of jit, on the CPU.

All other ops call NumPy, which is as fast for small arrays, and needs no compiler. See
docs/design/0035-composites.md.

Tests: tests/runtime/test_single_ops.py, tests/runtime/test_eager.py.
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
_NARROW_DTYPES = frozenset({dtypes.bfloat16, dtypes.float16, *dtypes.NARROW_FLOATS})
_KERNEL_LOWERINGS = (Elementwise, Indexed, Reduction, TupleReduction)


def plan_of_op(
    primitive: Primitive, avals: Sequence[ShapedArray], params: dict[str, Any]
) -> tuple[Plan, ClosedJaxpr] | None:
    """Return the plan and jaxpr of an op that runs as a native program outside of jit, or None.

    These are library calls of EAGER_BLOCKS, and ops on large arrays that kernels can compute. The
    decision must depend on types alone, so that the same op gives the same bits each time.
    """
    lowering = primitive.lower
    if lowering.what is not None:
        jaxpr = one_op(primitive, avals, params)
        if not isinstance(block_of(jaxpr.jaxpr.eqns[0]), EAGER_BLOCKS):
            return None
        plan, constants = plan_of_call(jaxpr, NATIVE_TARGET), ()
    elif isinstance(lowering, _KERNEL_LOWERINGS):
        jaxpr = one_op(primitive, avals, params)
        threshold = _LARGE_COSTLY if _is_costly(lowering) else _LARGE
        if not any(_is_large(aval, threshold) for aval in (*avals, *jaxpr.out_avals)):
            return None
        plan, constants = compile_plan(jaxpr, target=NATIVE_TARGET)
    elif lowering.view is not None:
        jaxpr = one_op(primitive, avals, params)
        (out,) = jaxpr.out_avals
        if out.size < _LARGE_COSTLY or not _is_data_movement(lowering, avals[0], out, params):
            return None
        plan, constants = compile_plan(jaxpr, target=NATIVE_TARGET)
    else:
        return None
    # A plan that calls Python would only call the op's impl, which is faster without a program.
    return None if constants or calls_python(plan) else (plan, jaxpr)


def _is_data_movement(
    lowering: Layout, x: ShapedArray, out: ShapedArray, params: dict[str, Any]
) -> bool:
    """Whether a layout op permutes dimensions, repeats elements, or is a large reversal.

    NumPy copies all others as fast. Slices use NumPy too: their operands often have new addresses.
    """
    if lowering.steps is not None:
        return out.size == x.size >= _LARGE
    links = lowering.links(x, out, **params)
    if links is None:
        return False
    dims = [dim for _, dim in sorted(links)]
    return out.size > x.size or dims != sorted(dims)


def _is_large(aval: ShapedArray, threshold: int) -> bool:
    return aval.size >= (_LARGE_NARROW if aval.dtype in _NARROW_DTYPES else threshold)


def _is_costly(lowering: Any) -> bool:
    """Whether NumPy computes an element much more slowly than it loads and stores it.

    True for ops that fusion does not recompute (``cheap`` is false), and for ops without an
    equivalent ufunc of NumPy.
    """
    if not lowering.is_elementwise:
        return False
    function = FUNCTIONS.get(lowering.body) if isinstance(lowering.body, str) else None
    lacks_ufunc = function is not None and not isinstance(function.definition, np.ufunc)
    return lacks_ufunc or not lowering.cheap
