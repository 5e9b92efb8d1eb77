"""Buffer aliasing of branches: outputs that reuse the memory of one operand in all branches.

    lax.cond(p, lambda x: x.at[i].set(v), lambda x: x, x)

One branch updates its input, the other returns it unchanged. If both outputs have the input's
memory, then the first branch changes one element, and the second does nothing.

Tests: tests/compiler/test_updates.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuflow.compiler.fusion.fuse import describe_program
from gpuflow.compiler.passes.updates_in_place import Donations, InnerAliases, updated_pairs
from gpuflow.core.jaxpr import Jaxpr, Var


def branch_donations(
    programs: Sequence[Jaxpr], inner_aliases: Sequence[InnerAliases], num_shared_inputs: int
) -> list[Donations]:
    """The donations of each branch: inputs that become the same output in all of them.

    Args:
        programs: the programs of the branches.
        inner_aliases: for each program, the operands that its loops and branches modify in place.
        num_shared_inputs: count of the inputs that all programs share, which come first.
    """
    branches = list(zip(programs, inner_aliases, strict=True))
    pairs = set.intersection(*[_candidate_pairs(*branch, num_shared_inputs) for branch in branches])
    for program, aliases in branches:
        pairs = _in_place_pairs(program, aliases, pairs) if pairs else pairs
    return [_donations(program, pairs) for program in programs]


def _candidate_pairs(
    program: Jaxpr, inner_aliases: InnerAliases, num_shared_inputs: int
) -> set[tuple[int, int]]:
    """Pairs of indices (input, output): outputs that are inputs, unchanged or after updates alone.

    Each input and each output is in at most one pair.
    """
    operand_of = {
        eqn.outputs[out]: eqn.inputs[operand]
        for eqn in program.eqns
        for operand, out in updated_pairs(eqn, inner_aliases)
    }
    index_of = {var: position for position, var in enumerate(program.invars[:num_shared_inputs])}
    output_of: dict[int, int] = {}
    for position, atom in enumerate(program.outvars):
        if program.outvars.count(atom) > 1:
            continue
        while type(atom) is Var and atom in operand_of:
            atom = operand_of[atom]
        if type(atom) is Var and atom in index_of:
            output_of.setdefault(index_of[atom], position)
    return set(output_of.items())


def _in_place_pairs(
    program: Jaxpr, inner_aliases: InnerAliases, pairs: set[tuple[int, int]]
) -> set[tuple[int, int]]:
    """The pairs whose output is in the memory of the input, if these are donated."""
    analyzed = describe_program(program, _donations(program, pairs), inner_aliases)
    outs = program.outvars
    return {(k, out) for k, out in pairs if analyzed.storage(outs[out])[0] is program.invars[k]}


def _donations(program: Jaxpr, pairs: set[tuple[int, int]]) -> Donations:
    ordered = sorted(pairs)
    return {program.invars[k]: program.outvars[out] for k, out in ordered}
