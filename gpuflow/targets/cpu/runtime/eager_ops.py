"""Ops outside of jit that are programs of one equation on the CPU; others use NumPy.

NumPy is as fast for small arrays, and needs no compiler. See docs/design/0035-composites.md.
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

# Elements from which on a kernel beats NumPy's loops, with one thread and several passes, by more
# than an occasional bind costs. If NumPy takes one quick pass, only threads help. NumPy computes
# series and all narrow floats one by one, or in a dozen passes.
_LARGE, _LARGE_COSTLY, _LARGE_NARROW = 1 << 15, 1 << 12, 1 << 10
_NARROW = frozenset({dtypes.bfloat16, dtypes.float16, *dtypes.NARROW_FLOATS})
_IN_KERNELS = (Elementwise, Indexed, Reduction, TupleReduction)


def plan_of_op(
    primitive: Primitive, avals: Sequence[ShapedArray], params: dict[str, Any]
) -> tuple[Plan, ClosedJaxpr] | None:
    """The plan of an op that is a native program outside of jit, and its jaxpr, or None.

    Library calls of EAGER_BLOCKS are, and large ops in kernels. Only the types of operands decide,
    so that the same op has the same bits each time.
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
        if out.size < _LARGE_COSTLY or not _is_moved(rule, avals[0], out, params):
            return None
        plan, values = compile_plan(jaxpr, target=NATIVE_TARGET)
    else:
        return None
    # Ops outside of kernels call their impl, which takes fewer steps without a program.
    return None if values or calls_python(plan) else (plan, jaxpr)


def _is_moved(rule: Layout, x: ShapedArray, out: ShapedArray, params: dict[str, Any]) -> bool:
    """Whether elements change their order or repeat; NumPy copies others as fast.

    Slices use NumPy too: their operands often have new addresses. So do small reversals; for large
    ones kernels are faster.
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
    """Whether NumPy takes much longer for an element than to load and store it.

    True if kernels store results instead of computing them again, and if NumPy has no equivalent
    function.
    """
    if not rule.is_elementwise:
        return False
    function = FUNCTIONS.get(rule.body) if isinstance(rule.body, str) else None
    is_missing = function is not None and not isinstance(function.definition, np.ufunc)
    return is_missing or not rule.cheap
