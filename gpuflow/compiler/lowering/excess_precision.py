"""Excess precision: roundings to 16-bit floats that a kernel may omit between operations.

    x, y: bfloat16        strict                      with excess precision
    (x * y + x) * y       round(round(round(x * y) + x) * y)    round((x * y + x) * y)

A value keeps its rounding if it affects more than the last bits of a result:

- stored values are rounded when they are stored;
- operands of discontinuous ops are rounded: comparisons, floor, conversions to integers, argmax.
  So are all values that they are computed from, back to values in memory. Then every kernel sees
  the same bits: a maximum equals one of its operands, even if other kernels recompute them;
- an explicit conversion between float dtypes rounds its operand and its result.

Tests: tests/compiler/test_excess_precision.py, tests/compiler/test_narrow_values.py.
"""

from __future__ import annotations

from gpuflow.base import dtypes
from gpuflow.compiler.fusion.space import is_fusible
from gpuflow.core.jaxpr import Eqn, Jaxpr, Literal, Var

_HALVES = ("bfloat16", "float16")


def unrounded_values(jaxpr: Jaxpr) -> frozenset[Var]:
    """The values that kernels may hold with more precision than their dtype has.

    They are results of 16-bit float dtypes. Stores round in any case, so outputs may be among them.
    """
    # Equations are visited in reverse, so readers fill the sets before the producer is visited.
    rounded_with_sources: set[Var] = set()  # rounded, and so are all values that they depend on
    rounded: set[Var] = set()
    unrounded: set[Var] = set()
    for eqn in reversed(jaxpr.eqns):
        if not is_fusible(eqn):
            continue  # not in a kernel: its operands and results are in memory, rounded
        operands = [atom for atom in eqn.inputs if type(atom) is not Literal]
        if not _is_continuous(eqn) or not rounded_with_sources.isdisjoint(eqn.outputs):
            rounded_with_sources.update(operands)
            continue
        if _converts_floats(eqn):
            rounded.update(operands)
            continue
        unrounded.update(
            var for var in eqn.outputs if var not in rounded and var.aval.dtype.name in _HALVES
        )
    return frozenset(unrounded)


def unrounded_within(jaxpr: Jaxpr) -> frozenset[Var]:
    """``unrounded_values`` of a lane program, without its outputs and operands of calls."""
    rounded = {atom for atom in jaxpr.outvars if type(atom) is not Literal}
    for eqn in jaxpr.eqns:
        if not is_fusible(eqn):
            rounded.update(atom for atom in eqn.inputs if type(atom) is not Literal)
    return unrounded_values(jaxpr) - rounded


def all_rounded(jaxpr: Jaxpr) -> frozenset[Var]:
    """No values: with strict precision, kernels round every value."""
    del jaxpr
    return frozenset()


def _is_continuous(eqn: Eqn) -> bool:
    """Whether an op is continuous: results are floats, and differ little if operands do."""
    return all(_is_float(var) for var in eqn.outputs) and eqn.primitive.lower.is_continuous


def _converts_floats(eqn: Eqn) -> bool:
    """Whether operands and results are of several float dtypes."""
    floats = {atom.aval.dtype for atom in (*eqn.inputs, *eqn.outputs) if _is_float(atom)}
    return len(floats) > 1


def _is_float(atom: object) -> bool:
    return dtypes.is_floating(atom.aval.dtype)  # type: ignore[attr-defined]
