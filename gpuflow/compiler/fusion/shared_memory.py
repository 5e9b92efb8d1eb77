"""Buffer aliasing of branches: outputs that reuse the memory of one operand in all branches.

    lax.cond(p, lambda x: x.at[i].set(v), lambda x: x, x)

One branch updates its input, the other returns it unchanged. If both outputs have the input's
memory, then the first branch changes one element, and the second does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuflow.compiler.fusion.fuse import describe_program
from gpuflow.compiler.passes.updates_in_place import Donations, InnerAliases, updated_pairs
from gpuflow.core.jaxpr import Jaxpr, Var


def shared_memory(
    programs: Sequence[Jaxpr], inner_aliases: Sequence[InnerAliases], inputs: int
) -> list[Donations]:
    """The donations of each branch: inputs that become the same output in all of them.

    Args:
        programs: the programs of the branches.
        inner_aliases: for each program, the operands that its loops and branches modify in place.
        inputs: count of the inputs that all programs share, which come first.
    """
    branches = list(zip(programs, inner_aliases, strict=True))
    pairs = set.intersection(*[_candidates(*branch, inputs) for branch in branches])
    for program, aliases in branches:
        pairs = _in_memory(program, aliases, pairs) if pairs else pairs
    return [_donations(program, pairs) for program in programs]


def _candidates(program: Jaxpr, inner_aliases: InnerAliases, inputs: int) -> set[tuple[int, int]]:
    """(input, output) for outputs that are inputs, unchanged or after updates alone."""
    before = {
        eqn.outputs[out]: eqn.inputs[operand]
        for eqn in program.eqns
        for operand, out in updated_pairs(eqn, inner_aliases)
    }
    index_of = {var: k for k, var in enumerate(program.invars[:inputs])}
    output_of: dict[int, int] = {}
    for k, atom in enumerate(program.outvars):
        if program.outvars.count(atom) > 1:
            continue
        while type(atom) is Var and atom in before:
            atom = before[atom]
        if type(atom) is Var and atom in index_of:
            output_of.setdefault(index_of[atom], k)
    return set(output_of.items())


def _in_memory(
    program: Jaxpr, inner_aliases: InnerAliases, pairs: set[tuple[int, int]]
) -> set[tuple[int, int]]:
    """The pairs whose output is in the memory of the input, if these are donated."""
    described = describe_program(program, _donations(program, pairs), inner_aliases)
    outs = program.outvars
    return {(k, out) for k, out in pairs if described.storage(outs[out])[0] is program.invars[k]}


def _donations(program: Jaxpr, pairs: set[tuple[int, int]]) -> Donations:
    ordered = sorted(pairs)
    return {program.invars[k]: program.outvars[out] for k, out in ordered}
