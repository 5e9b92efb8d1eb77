"""Store per-lane results directly in the layout of the transposed output.

    a = lane_loop(..)      iterations x lanes, stored by the block     a' = lane_loop(..)
    b = transpose(a)       lanes x iterations, a result: a copy        a' in the order of b

A lane program gets the strides of its outputs as arguments, so it can store in any order. Only
outputs of the program are changed. Other kernels can read any order, and their results are often
transposed back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gpuflow.compiler.lanes.program import LaneProgram, Source
from gpuflow.core.jaxpr import Eqn, Jaxpr, Var
from gpuflow.core.views import contiguous


def fold_transposes(jaxpr: Jaxpr) -> Jaxpr:
    """Drop transposes that are outputs and the only readers of an output of a lane program."""
    if not any(eqn.primitive.lower.is_lane_program for eqn in jaxpr.eqns):
        return jaxpr
    readers = Counter(atom for eqn in jaxpr.eqns for atom in eqn.inputs if type(atom) is Var)
    results = {atom for atom in jaxpr.outvars if type(atom) is Var}
    readers.update(results)
    permuting: dict[Var, tuple[Eqn, tuple[int, ...]]] = {}
    for eqn in jaxpr.eqns:
        order = _permutation(eqn)
        if order is not None and readers[eqn.inputs[0]] == 1 and eqn.outputs[0] in results:
            permuting[eqn.inputs[0]] = eqn, order
    dropped: set[Eqn] = set()
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.lower.is_lane_program:
            eqn = _stored(eqn, permuting, dropped)
        if eqn not in dropped:
            eqns.append(eqn)
    return jaxpr.replace(eqns=tuple(eqns)) if dropped else jaxpr


def _permutation(eqn: Eqn) -> tuple[int, ...] | None:
    """The permutation of a transpose: the operand's dimension of each output's; else None."""
    rule = eqn.primitive.lower
    if rule.view is None or type(eqn.inputs[0]) is not Var:
        return None
    operand, out = eqn.inputs[0].aval, eqn.outputs[0].aval
    whole = contiguous(operand.shape)
    view = rule.view(whole, out, **eqn.params)
    if view is None or view.offset or True in view.broadcast:
        return None
    remaining = list(zip(whole.shape, whole.strides, strict=True))
    dims = list(range(len(remaining)))
    order: list[int] = []
    for dim in zip(view.shape, view.strides, strict=True):
        if dim not in remaining:
            return None
        position = remaining.index(dim)
        del remaining[position]
        order.append(dims.pop(position))
    return None if remaining else tuple(order)


def _stored(eqn: Eqn, permuting: dict[Var, tuple[Eqn, tuple[int, ...]]], dropped: set[Eqn]) -> Eqn:
    """The equation of a lane program that stores outputs in the order of their transposes."""
    program, outputs = eqn.params["program"], list(eqn.outputs)
    for k, var in enumerate(eqn.outputs):
        if program.writes[k] is None or var not in permuting:
            continue
        reader, order = permuting[var]
        program, outputs[k] = _permuted(program, k, order), reader.outputs[0]
        dropped.add(reader)
    outs = tuple([var.aval for var in outputs])
    params = {**eqn.params, "program": program, "outs": outs}
    return eqn.replace(outputs=tuple(outputs), params=params)


def _permuted(program: LaneProgram, output: int, order: Sequence[int]) -> LaneProgram:
    """The program with the dimensions of an output permuted; ``order`` has the old dimensions."""

    def source_of(source: Source) -> Source:
        if source[:2] != ("out stride", output):
            return source
        return (*source[:2], order.index(source[2]))

    kinds = program.writes[output]
    assert kinds is not None
    writes = list(program.writes)
    writes[output] = tuple([kinds[d] for d in order])
    sources = tuple(map(source_of, program.sources))
    text = repr((program.block, sources, program.reads, tuple(writes)))
    return replace(program, sources=sources, writes=tuple(writes), text=text)
