"""Programs run op by op, with Python loops and ifs for loops and branches: what they mean."""

import numpy as np

import gpuflow.numpy as jnp
from gpuflow.core.jaxpr import Literal
from gpuflow.core.lowering import Branch, Inline, Loop, ScanForm
from gpuflow.ops.zeros import zeros_of


class Interpreted:
    """What an Executable is for those who call one."""

    donated = ()

    def __init__(self, function):
        self.function = function

    def __call__(self, operands, counted=None):
        del counted
        return self.function(*operands)

    def run(self, arrays, operands, device):
        del arrays, device
        return self.function(*operands)


def interpret(closed, *operands):
    """The outputs of a ClosedJaxpr for concrete operands."""
    jaxpr = closed.jaxpr
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *operands), strict=True))

    def read(atom):
        return atom.operand if type(atom) is Literal else env[atom]

    for eqn in jaxpr.eqns:
        values = [read(atom) for atom in eqn.inputs]
        rule = eqn.primitive.lower
        if isinstance(rule, Branch):
            branches = rule.branches(eqn.params)
            outs = interpret(branches[int(values[0])], *values[1:])
        elif isinstance(rule, Loop):
            form = rule.form(eqn.params)
            run = _scan if isinstance(form, ScanForm) else _while
            outs = run(form, values)
        elif isinstance(rule, Inline):
            outs = interpret(rule.program(eqn), *values)
        else:
            outs = eqn.primitive.bind(*values, **eqn.params)
            outs = outs if eqn.primitive.multiple_results else [outs]
        env.update(zip(eqn.outputs, outs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _scan(form, values):
    split = form.num_consts + form.num_carry
    consts, carry, xs = values[: form.num_consts], values[form.num_consts : split], values[split:]
    rows = []
    order = range(form.length)
    for k in reversed(order) if form.reverse else order:
        outs = interpret(form.body, *consts, *carry, *[jnp.asarray(x)[k] for x in xs])
        carry = outs[: form.num_carry]
        rows.append(outs[form.num_carry :])
    if form.reverse:
        rows.reverse()
    if not rows:
        elements = form.body.out_avals[form.num_carry :]
        return [*carry, *[zeros_of(a.update(shape=(0, *a.shape))) for a in elements]]
    return [*carry, *[jnp.stack(column) for column in zip(*rows, strict=True)]]


def _while(form, values):
    first = form.num_condition_consts
    split = first + form.num_body_consts
    carry = values[split:]
    while np.asarray(interpret(form.condition, *values[:first], *carry)[0]):
        carry = interpret(form.body, *values[first:split], *carry)
    return carry
