"""Users' scalar functions for ops of lax, such as reduce: traced once, then mapped over arrays.

Tests: tests/numpy/test_numpy_indexing.py, tests/lax/test_lax_definitions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base import tree
from gpuflow.control.programs import Program, trace_program
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.rules import AxisData
from gpuflow.ops.layout.axes import reshape
from gpuflow.transforms.batching import batch_jaxpr


def trace_scalars(
    op: str, function: Callable[..., Any], dtypes: Sequence[Any], name: str
) -> Program:
    """Trace ``function`` for one scalar of each dtype.

    Raises:
        TypeError: if it is not callable, or returns a value that is not an array.
    """
    in_tree = tree.structure(tuple(range(len(dtypes))))
    return trace_program(op, function, in_tree, [ShapedArray((), d) for d in dtypes], name)


def map_scalars(program: Program, operands: Sequence[Any]) -> list[Any]:
    """Apply a scalar program elementwise to arrays of one shape."""
    shape, size = aval_of(operands[0]).shape, aval_of(operands[0]).size
    flat = [reshape(x, (size,)) for x in operands]
    count = len(program.jaxpr.out_avals)
    flags = (*[False] * len(program.consts), *[True] * len(flat))
    mapped, _ = batch_jaxpr(program.jaxpr, AxisData(None, size), flags, (True,) * count)
    return [reshape(x, shape) for x in mapped(*program.consts, *flat)]
