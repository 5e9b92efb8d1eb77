"""Dead code elimination through loops and branches: their ``prune`` rules.

A rule takes an equation and a flag for each output. It removes unused outputs, the equations that
compute them, and operands that are no longer read.

Tests: tests/control/test_pruning.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

from gpuflow.base.util import safe_zip
from gpuflow.compiler.passes.program import dce
from gpuflow.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Literal, Var

Flags = Sequence[bool]


def prune_scan(eqn: Eqn, used: Flags) -> Eqn:
    """Keep the carries and ys of a scan that are used, or that used ones depend on."""
    params, body = eqn.params, eqn.params["jaxpr"].jaxpr
    num_consts, num_carry = params["num_consts"], params["num_carry"]
    split = num_consts + num_carry
    ys = list(used[num_carry:])
    program, carry = _settled(body, list(used[:num_carry]), ys, num_consts)
    read = _read(program)
    flags = [
        *[var in read for var in body.invars[:num_consts]],
        *carry,
        *[var in read for var in body.invars[split:]],
    ]
    changes = {
        "jaxpr": _closed(eqn.params["jaxpr"], program, flags),
        "num_consts": sum(flags[:num_consts]),
        "num_carry": sum(carry),
    }
    return _reduced(eqn, flags, [*carry, *ys], changes)


def prune_while(eqn: Eqn, used: Flags) -> Eqn:
    """Keep the carries of a while loop that are used, or that these or the condition depend on."""
    params, body, test = eqn.params, eqn.params["body"].jaxpr, eqn.params["condition"].jaxpr
    first, second = params["num_condition_consts"], params["num_body_consts"]
    test_read = _read(test)
    tested = [var in test_read for var in test.invars[first:]]
    required = [a or b for a, b in safe_zip(used, tested)]
    program, carry = _settled(body, required, [], second)
    read = _read(program)
    consts = [var in read for var in body.invars[:second]]
    all_tested = [*[True] * first, *carry]
    changes = {
        "condition": _closed(params["condition"], test, all_tested),
        "body": _closed(params["body"], program, [*consts, *carry]),
        "num_body_consts": sum(consts),
    }
    return _reduced(eqn, [*[True] * first, *consts, *carry], carry, changes)


def prune_cond(eqn: Eqn, used: Flags) -> Eqn:
    """Keep the results of a cond that are used, and the operands that any branch reads."""
    branches = eqn.params["branches"]
    programs = [_with_outputs(branch.jaxpr, used) for branch in branches]
    reads = [_read(program) for program in programs]
    flags = [
        any(branch.jaxpr.invars[k] in read for branch, read in safe_zip(branches, reads))
        for k in range(len(eqn.inputs) - 1)
    ]
    closed = tuple(
        _closed(branch, program, flags) for branch, program in safe_zip(branches, programs)
    )
    return _reduced(eqn, [True, *flags], used, {"branches": closed})


def _settled(
    body: Jaxpr, carry: list[bool], ys: list[bool], num_consts: int
) -> tuple[Jaxpr, list[bool]]:
    """The body without dead equations, and a flag for each carry: used, or read by the body.

    A fixed point: a carry that the body reads must be computed in each iteration.
    """
    while True:
        program = _with_outputs(body, [*carry, *ys])
        read = _read(program)
        inputs = body.invars[num_consts : num_consts + len(carry)]
        required = [flag or var in read for flag, var in safe_zip(carry, inputs)]
        if required == carry:
            return program, carry
        carry = required


def _with_outputs(jaxpr: Jaxpr, used: Flags) -> Jaxpr:
    return dce(jaxpr.replace(outvars=tuple(compress(jaxpr.outvars, used))))


def _read(jaxpr: Jaxpr) -> set[Var]:
    atoms = [*jaxpr.outvars, *[atom for eqn in jaxpr.eqns for atom in eqn.inputs]]
    return {atom for atom in atoms if type(atom) is not Literal}


def _closed(before: ClosedJaxpr, program: Jaxpr, flags: Flags) -> ClosedJaxpr:
    invars = tuple(compress(program.invars, flags))
    return ClosedJaxpr(program.replace(invars=invars, argument_names=()), before.consts)


def _reduced(eqn: Eqn, inputs: Flags, outputs: Flags, changes: dict[str, Any]) -> Eqn:
    if all(inputs) and all(outputs):
        return eqn
    return eqn.replace(
        inputs=tuple(compress(eqn.inputs, inputs)),
        outputs=tuple(compress(eqn.outputs, outputs)),
        params={**eqn.params, **changes},
    )
