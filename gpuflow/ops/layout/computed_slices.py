"""Slices of elementwise ops as ops on slices, if that is not more work.

    y = x * 2 + 1                              b = x[:n] * 2 + 1
    b, c = y[:n], y[n:]              ->        c = x[n:] * 2 + 1

Then the full array is not computed: readers of a slice compute it in their kernels, and slices of
a concatenation are its operands.

Tests: tests/control/test_reduce.py, tests/ops/test_linalg_dtypes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from gpuflow.core.jaxpr import Literal
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder

Bound = tuple[int, int, int]  # start, limit, stride

_MAX_SLICES = 16  # of one array
_MAX_COMPUTED = 32  # equations of each


def computed_slices(
    eqn: Any, bounds: Sequence[Bound], cut: Any, definition: DefinitionLookup, build: EqnBuilder
) -> list[Any] | None:
    """The replacement of a slice of an elementwise op, or None.

    Args:
        eqn: the slice.
        bounds: of each dimension.
        cut: ``(atom, bounds) -> atom``, a slice of an operand.
        definition, build: of its ``simplify`` rule.
    """
    x = eqn.inputs[0]
    readers = definition.readers(x)
    if readers is None or len(readers) > _MAX_SLICES:
        return None
    if any(reader.primitive is not eqn.primitive for reader in readers):
        return None
    if sum(prod(reader.outputs[0].aval.shape) for reader in readers) > prod(x.aval.shape):
        return None
    budget = _MAX_COMPUTED

    def computed(atom: Any, bounds: Sequence[Bound], is_free: bool) -> Any:
        nonlocal budget
        source = definition(atom)
        if type(atom) is Literal or not atom.aval.shape:
            return atom
        if not is_free or not budget or source is None or not _is_plain(source):
            return cut(atom, bounds)
        budget -= 1
        operands = []
        for operand in source.inputs:
            operand_bounds = [
                (0, 1, 1) if size == 1 and full != 1 else bound
                for size, full, bound in zip(operand.aval.shape, atom.aval.shape, bounds)
            ]
            operands.append(computed(operand, operand_bounds, definition.is_read_once(operand)))
        return build.apply(source.primitive, *operands, **source.params)

    return [computed(x, bounds, True)] if _is_plain(definition(x)) else None


def _is_plain(eqn: Any) -> bool:
    """Whether an equation is elementwise and independent of sizes."""
    primitive = eqn.primitive
    is_elementwise = primitive.lower.is_elementwise
    return is_elementwise and not primitive.multiple_results and not primitive.size_params
