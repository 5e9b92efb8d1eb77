"""In-place updates guarded by a flag: a loop's body may run one iteration too many.

See docs/design/0031-loops-on-gpus.md. A speculative iteration must leave the carries unchanged.
Carries that alternate between two arrays are not touched; in-place updates are only applied if the
flag is set.
"""

from __future__ import annotations

from gpuflow.compiler.passes.program import Replacement
from gpuflow.compiler.passes.updates_in_place import Donations
from gpuflow.core.jaxpr import Eqn, Jaxpr, Var


def guarded_updates(
    jaxpr: Jaxpr, donations: Donations, flag: Var
) -> tuple[Jaxpr, dict[Var, Var | None]]:
    """The program with a flag that guards in-place updates, and the inputs that may be updated.

    Args:
        jaxpr: the program.
        donations: inputs whose memory was given away, each with the output that may take it.
        flag: a bool scalar among the inputs. If it does not hold, outputs mean nothing.

    Returns:
        The program, and those donations whose output is the input updated, and nothing else.
    """
    origin: dict[Var, Var] = {var: var for var in donations}
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        rule = eqn.primitive.lower
        operand = eqn.inputs[0] if eqn.inputs else None
        if not rule.is_update or type(operand) is not Var or operand not in origin:
            eqns.append(eqn)
            continue
        build = Replacement(eqn.source)
        rule.only_if(eqn, flag, build)
        eqns += [*build.eqns[:-1], build.eqns[-1].replace(outputs=eqn.outputs)]
        origin[eqn.outputs[0]] = origin[operand]
    updated: dict[Var, Var | None] = {
        var: out
        for var, out in donations.items()
        if out is not None and out is not var and origin.get(out) is var
    }
    return jaxpr.replace(eqns=tuple(eqns)), updated
