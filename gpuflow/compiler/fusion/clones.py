"""Duplicate cheap producers for each reader, so that fusion never has to store their values.

Tests: tests/compiler/test_passes.py.
"""

from __future__ import annotations

from gpuflow.compiler.fusion.space import is_fusible
from gpuflow.compiler.passes.program import reader_positions
from gpuflow.core.jaxpr import Eqn, Jaxpr, Literal, Var

MAX_CLONES = 16  # readers of a value that get one copy each
CLONE_SPAN = 64  # with more readers, those within so many equations share a copy


def clone_cheap(jaxpr: Jaxpr) -> Jaxpr:
    """Give each reader its own copy of values that are cheaper to compute than to store.

    These are layout ops, equations without array operands (iota, filled arrays) and cheap
    elementwise ops on values in memory. If a value has more than MAX_CLONES readers, nearby ones
    share a copy, because they are probably in one kernel, which many copies would fill.

    Originals without readers remain; ``dce`` must run afterwards.
    """
    return _Cloner(jaxpr).program()


class _Cloner:
    """Rewrites a program with copies of cheap equations for their readers.

    Attributes:
        readers: positions of the equations that read each variable, in the original program.
        cheap_producers: for each value that is copied for its readers, its original equation.
        last_clone: for each value with more than MAX_CLONES readers, its last copy and the count
            of new equations at that time.
        eqns: the new equations so far.
    """

    def __init__(self, jaxpr: Jaxpr) -> None:
        self.jaxpr, self.readers = jaxpr, reader_positions(jaxpr)
        self.cheap_producers: dict[Var, Eqn] = {}
        self.last_clone: dict[Var, tuple[Var, int]] = {}  # the last copy and its position
        self.eqns: list[Eqn] = []

    def program(self) -> Jaxpr:
        """The program in which readers read their copies; dead originals remain for ``dce``."""
        jaxpr, outputs, in_memory = self.jaxpr, set(self.jaxpr.outvars), {*self.jaxpr.invars}
        for eqn in jaxpr.eqns:
            eqn = self.with_clones(eqn)
            self.eqns.append(eqn)
            if not is_fusible(eqn):
                in_memory.update(eqn.outputs)
                continue
            if len(eqn.outputs) != 1:
                continue
            out = eqn.outputs[0]
            is_shared = len(self.readers.get(out, ())) > 1 and out not in outputs
            if is_shared and _is_clonable(eqn, in_memory):
                self.cheap_producers[out] = eqn
        return jaxpr.replace(eqns=tuple(self.eqns))

    def with_clones(self, eqn: Eqn) -> Eqn:
        """The equation, reading copies of cheap values."""
        if not any(type(atom) is Var and atom in self.cheap_producers for atom in eqn.inputs):
            return eqn
        inputs = [
            self.clone(atom) if type(atom) is not Literal and atom in self.cheap_producers else atom
            for atom in eqn.inputs
        ]
        return eqn.replace(inputs=tuple(inputs))

    def clone(self, var: Var) -> Var:
        """A copy of a cheap value for the next equation."""
        copy_var, position = self.last_clone.get(var, (var, -CLONE_SPAN))
        if len(self.eqns) - position < CLONE_SPAN:
            return copy_var
        eqn, copy_var = self.cheap_producers[var], Var(var.aval)
        self.eqns.append(self.with_clones(eqn).replace(outputs=(copy_var,)))
        if len(self.readers[var]) > MAX_CLONES:
            self.last_clone[var] = copy_var, len(self.eqns)
        return copy_var


def _is_clonable(eqn: Eqn, in_memory: set[Var]) -> bool:
    rule = eqn.primitive.lower
    if rule.view is not None:
        return True
    return rule.cheap and all(type(a) is Literal or a in in_memory for a in eqn.inputs)
