"""Predicated in-place updates, for loop bodies that run speculatively.

A speculative iteration must leave the carries unchanged. Double-buffered carries are safe, because
the iteration writes the other array. In-place updates are predicated on a flag instead. See
docs/design/0031-loops-on-gpus.md.

Tests: tests/targets/cuda/test_gpu_loops.py.
"""

from __future__ import annotations

from gpuflow.compiler.passes.program import Replacement
from gpuflow.compiler.passes.updates_in_place import Donations
from gpuflow.core.jaxpr import Eqn, Jaxpr, Var


def predicate_updates(
    jaxpr: Jaxpr, donations: Donations, flag: Var
) -> tuple[Jaxpr, dict[Var, Var | None]]:
    """Predicate the in-place updates of donated inputs on a flag.

    Args:
        jaxpr: the program.
        donations: donated inputs, each with the output that may reuse its memory.
        flag: a bool scalar among the inputs. If it is False, the updates leave the donated inputs
            unchanged, and the outputs are undefined.

    Returns:
        The program, and the donations that remain: those whose output is the input after updates
        alone. Any other output would overwrite the input whatever the flag is.
    """
    origin: dict[Var, Var] = {var: var for var in donations}  # the input that a value updates
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        lowering = eqn.primitive.lower
        operand = eqn.inputs[0] if eqn.inputs else None
        if not lowering.is_update or type(operand) is not Var or operand not in origin:
            eqns.append(eqn)
            continue
        build = Replacement(eqn.source)
        lowering.only_if(eqn, flag, build)
        eqns += [*build.eqns[:-1], build.eqns[-1].replace(outputs=eqn.outputs)]
        origin[eqn.outputs[0]] = origin[operand]
    updated: dict[Var, Var | None] = {
        var: out
        for var, out in donations.items()
        if out is not None and out is not var and origin.get(out) is var
    }
    return jaxpr.replace(eqns=tuple(eqns)), updated
