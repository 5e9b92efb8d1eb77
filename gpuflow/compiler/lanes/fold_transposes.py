"""Store per-lane results directly in the layout of the transposed output.

    a = lane_loop(..)      iterations x lanes, stored by the block     a' = lane_loop(..)
    b = transpose(a)       lanes x iterations, a result: a copy        a' in the order of b

A lane program gets the strides of its outputs as arguments, so it can store in any order. Only
outputs of the program are changed. Other kernels can read any order, and their results are often
transposed back.

Tests: tests/compiler/test_lane_tiles.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gpuflow.compiler.lanes.program import LaneProgram, Source, make_lane_program
from gpuflow.core.jaxpr import Eqn, Jaxpr, Var
from gpuflow.core.views import contiguous


def fold_transposes(jaxpr: Jaxpr) -> Jaxpr:
    """Drop transposes that are outputs and the only readers of an output of a lane program."""
    if not any(eqn.primitive.lower.is_lane_program for eqn in jaxpr.eqns):
        return jaxpr
    reader_counts = Counter(atom for eqn in jaxpr.eqns for atom in eqn.inputs if type(atom) is Var)
    results = {atom for atom in jaxpr.outvars if type(atom) is Var}
    reader_counts.update(results)
    transposes: dict[Var, tuple[Eqn, tuple[int, ...]]] = {}
    for eqn in jaxpr.eqns:
        permutation = _permutation(eqn)
        if (
            permutation is not None
            and reader_counts[eqn.inputs[0]] == 1
            and eqn.outputs[0] in results
        ):
            transposes[eqn.inputs[0]] = eqn, permutation
    folded: set[Eqn] = set()
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.lower.is_lane_program:
            eqn = _with_transposed_outputs(eqn, transposes, folded)
        if eqn not in folded:
            eqns.append(eqn)
    return jaxpr.replace(eqns=tuple(eqns)) if folded else jaxpr


def _permutation(eqn: Eqn) -> tuple[int, ...] | None:
    """The permutation of a transpose: the operand's dimension of each output's; else None."""
    rule = eqn.primitive.lower
    if rule.view is None or type(eqn.inputs[0]) is not Var:
        return None
    operand, out = eqn.inputs[0].aval, eqn.outputs[0].aval
    operand_view = contiguous(operand.shape)
    view = rule.view(operand_view, out, **eqn.params)
    if view is None or view.offset or True in view.broadcast:
        return None
    unmatched = list(zip(operand_view.shape, operand_view.strides, strict=True))
    operand_dims = list(range(len(unmatched)))
    permutation: list[int] = []
    for size_and_stride in zip(view.shape, view.strides, strict=True):
        if size_and_stride not in unmatched:
            return None
        position = unmatched.index(size_and_stride)
        del unmatched[position]
        permutation.append(operand_dims.pop(position))
    return None if unmatched else tuple(permutation)


def _with_transposed_outputs(
    eqn: Eqn, transposes: dict[Var, tuple[Eqn, tuple[int, ...]]], folded: set[Eqn]
) -> Eqn:
    """The equation of a lane program that stores outputs in the order of their transposes."""
    program, outputs = eqn.params["program"], list(eqn.outputs)
    for k, var in enumerate(eqn.outputs):
        if program.writes[k] is None or var not in transposes:
            continue
        reader, permutation = transposes[var]
        program, outputs[k] = _with_permuted_output(program, k, permutation), reader.outputs[0]
        folded.add(reader)
    outs = tuple([var.aval for var in outputs])
    params = {**eqn.params, "program": program, "outs": outs}
    return eqn.replace(outputs=tuple(outputs), params=params)


def _with_permuted_output(
    program: LaneProgram, output: int, permutation: Sequence[int]
) -> LaneProgram:
    """The program with the dimensions of an output permuted.

    Args:
        program: the program.
        output: index of an output that the block stores.
        permutation: for each dimension of the transposed output that of the old one.
    """

    def source_of(source: Source) -> Source:
        if source[:2] != ("out stride", output):
            return source
        return (*source[:2], permutation.index(source[2]))

    kinds = program.writes[output]
    assert kinds is not None
    writes = list(program.writes)
    writes[output] = tuple([kinds[d] for d in permutation])
    sources = tuple(map(source_of, program.sources))
    return make_lane_program(program.block, sources, program.reads, tuple(writes))
