"""Arrays whose parts are stored one by one, each by the kernel that computes it.

    a = sin x          a, stored                      u = unwritten
    b = cos y          b, stored                ->    v = update u at 0 with sin x
    c = concatenate a b: both read, stored again      c = update v at n with cos y

A kernel of all pieces needs them in memory: they would be written, read, and written again. This is
done if the whole is stored anyway, as a result or for a library call, and a piece is computed for
it alone, or there are more pieces than a kernel has loops for. Readers of the whole at their own
index keep it in their kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuflow.compiler.fusion.space import is_fusible
from gpuflow.compiler.passes.program import Replacement, uses
from gpuflow.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var

MOST_PARTS = 128  # each is a step
MOST_TOGETHER = 32  # in memory, that one kernel joins


def stored_in_parts(jaxpr: Jaxpr) -> Jaxpr:
    """The program with in-place updates of arrays whose chunks are better stored separately."""
    if not any(eqn.primitive.lower.in_parts is not None for eqn in jaxpr.eqns):
        return jaxpr
    judge, eqns = _Judge(jaxpr), list[Eqn]()
    for eqn in jaxpr.eqns:
        build = Replacement(eqn.source)
        wanted = eqn.primitive.lower.in_parts is not None and judge.is_worth(eqn)
        if not wanted or eqn.primitive.lower.in_parts(eqn, build) is None:
            eqns.append(eqn)
            continue
        eqns += [*build.eqns[:-1], build.eqns[-1].replace(outputs=eqn.outputs)]
    return jaxpr.replace(eqns=tuple(eqns))


class _Judge:
    """Says of which arrays the parts are better stored one by one."""

    def __init__(self, jaxpr: Jaxpr) -> None:
        self.readers: Mapping[Var, Sequence[int]] = uses(jaxpr)
        self.eqns = jaxpr.eqns
        self.outputs = set(jaxpr.outvars)
        self.producer = {var: eqn for eqn in jaxpr.eqns for var in eqn.outputs}

    def is_worth(self, eqn: Eqn) -> bool:
        """Whether an array is stored anyway, and parts are computed for it apart or are many."""
        if len(eqn.inputs) > MOST_PARTS or not self._is_stored(eqn.outputs[0]):
            return False
        computed = [atom for atom in eqn.inputs if self._is_computed_for_it(atom)]
        are_many = len(eqn.inputs) > MOST_TOGETHER
        return (bool(computed) or are_many) and self._share_nothing_costly(computed)

    def _is_stored(self, var: Var) -> bool:
        """Whether a result, or anything that is no kernel of this index, needs it in memory."""
        if var in self.outputs:
            return True
        for reader in (self.eqns[k] for k in self.readers.get(var, ())):
            rule = reader.primitive.lower
            if rule.view is not None:
                if self._is_stored(reader.outputs[0]):
                    return True
            elif not is_fusible(reader) or var in reader.inputs[: rule.operands_in_memory(reader)]:
                return True
        return False

    def _is_computed_for_it(self, atom: Atom) -> bool:
        """Whether a kernel computes a part, and nothing else reads that."""
        while type(atom) is not Literal:
            eqn = self.producer.get(atom)
            if eqn is None or not is_fusible(eqn) or atom in self.outputs:
                return False
            if len(self.readers[atom]) != 1:
                return False
            rule = eqn.primitive.lower
            if rule.view is None:
                return rule.is_elementwise or rule.is_indexed
            atom = eqn.inputs[0]
        return False

    def _share_nothing_costly(self, parts: Sequence[Atom]) -> bool:
        """Whether kernels of parts compute nothing that they would better compute together."""
        owners: dict[Eqn, int] = {}
        for number, part in enumerate(parts):
            pending, seen = [part], set[Eqn]()
            while pending:
                atom = pending.pop()
                eqn = None if type(atom) is Literal else self.producer.get(atom)
                if eqn is None or eqn in seen or not is_fusible(eqn):
                    continue
                seen.add(eqn)
                rule, owner = eqn.primitive.lower, owners.setdefault(eqn, number)
                if owner != number and rule.costly:
                    return False
                pending += eqn.inputs
        return True
