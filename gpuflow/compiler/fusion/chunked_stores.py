"""Concatenation as in-place stores: each kernel stores its chunk directly into the result.

    a = sin x          a, stored                      u = unwritten
    b = cos y          b, stored                ->    v = update u at 0 with sin x
    c = concatenate a b: both read, stored again      c = update v at n with cos y

A kernel that concatenates needs its chunks in memory: they are written, read, and written again.
Chunks are stored directly under two conditions. The whole must be stored, as a result or for a
library call; if not, its readers are fused with the concatenation instead. And a chunk is computed
only for it, or there are more chunks than one kernel concatenates.

Tests: tests/compiler/test_chunked_stores.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuflow.compiler.fusion.space import is_fusible
from gpuflow.compiler.passes.program import Replacement, reader_positions
from gpuflow.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var

MAX_CHUNKS = 128  # each chunk becomes a step of the plan
MAX_KERNEL_CHUNKS = 32  # chunks in memory that one kernel concatenates


def chunked_stores(jaxpr: Jaxpr) -> Jaxpr:
    """Replace concatenations by in-place updates of an uninitialized array where that pays.

    A pass before fusion, of the CPU only (``pipeline.CPU_PASSES``). It rewrites only ops that have
    an ``as_updates`` rule; None from that rule leaves the equation as it is.
    """
    if not any(eqn.primitive.lower.as_updates is not None for eqn in jaxpr.eqns):
        return jaxpr
    cost_model, eqns = _StoreCostModel(jaxpr), list[Eqn]()
    for eqn in jaxpr.eqns:
        build = Replacement(eqn.source)
        replaces = eqn.primitive.lower.as_updates is not None and cost_model.pays(eqn)
        if not replaces or eqn.primitive.lower.as_updates(eqn, build) is None:
            eqns.append(eqn)
            continue
        eqns += [*build.eqns[:-1], build.eqns[-1].replace(outputs=eqn.outputs)]
    return jaxpr.replace(eqns=tuple(eqns))


class _StoreCostModel:
    """Decides for which concatenations direct stores of chunks pay, from the structure alone."""

    def __init__(self, jaxpr: Jaxpr) -> None:
        self.readers: Mapping[Var, Sequence[int]] = reader_positions(jaxpr)
        self.eqns = jaxpr.eqns
        self.outputs = set(jaxpr.outvars)
        self.producer_of = {var: eqn for eqn in jaxpr.eqns for var in eqn.outputs}

    def pays(self, eqn: Eqn) -> bool:
        """Whether the whole must be stored, and chunks are computed only for it or are many."""
        if len(eqn.inputs) > MAX_CHUNKS or not self._is_stored(eqn.outputs[0]):
            return False
        computed = [atom for atom in eqn.inputs if self._is_computed_for_it(atom)]
        are_many = len(eqn.inputs) > MAX_KERNEL_CHUNKS
        return (bool(computed) or are_many) and self._no_costly_eqn_is_shared(computed)

    def _is_stored(self, var: Var) -> bool:
        """Whether a value must be in memory: as a result, or for a reader that is not fused."""
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
        """Whether a kernel computes a chunk that nothing but the concatenation reads."""
        while type(atom) is not Literal:
            eqn = self.producer_of.get(atom)
            if eqn is None or not is_fusible(eqn) or atom in self.outputs:
                return False
            if len(self.readers[atom]) != 1:
                return False
            rule = eqn.primitive.lower
            if rule.view is None:
                return rule.is_elementwise or rule.is_indexed
            atom = eqn.inputs[0]
        return False

    def _no_costly_eqn_is_shared(self, chunks: Sequence[Atom]) -> bool:
        """Whether no costly equation would be computed in the kernels of several chunks.

        Visits the producers of all chunks: linear in the equations before the concatenation.
        """
        owners: dict[Eqn, int] = {}
        for index, chunk in enumerate(chunks):
            pending, seen = [chunk], set[Eqn]()
            while pending:
                atom = pending.pop()
                eqn = None if type(atom) is Literal else self.producer_of.get(atom)
                if eqn is None or eqn in seen or not is_fusible(eqn):
                    continue
                seen.add(eqn)
                rule, owner = eqn.primitive.lower, owners.setdefault(eqn, index)
                if owner != index and rule.costly:
                    return False
                pending += eqn.inputs
        return True
