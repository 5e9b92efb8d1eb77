"""Merge small collectives into one call (bucketing): latency dominates their cost.

A gradient has a sum over devices for each parameter. Sums of small parameters are delayed and
merged as long as nothing reads their results. The merged groups depend on the program alone, so all
devices make the same calls.

Tests: tests/parallel/test_join_calls.py.
"""

from __future__ import annotations

from collections.abc import Hashable

from gpuflow.compiler.passes.program import Replacement
from gpuflow.core.jaxpr import Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering import AsyncCall


def merge_collectives(jaxpr: Jaxpr) -> Jaxpr:
    """Merge small calls with equal primitive, params and dtype, at the position of the last one."""
    groups = [group for group in _groups(jaxpr) if len(group) > 1]
    if not groups:
        return jaxpr
    group_by_last = {group[-1]: group for group in groups}
    members = {eqn for group in groups for eqn in group}
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        if eqn in group_by_last:
            eqns += _merged_call(group_by_last[eqn])
        elif eqn not in members:
            eqns.append(eqn)
    return jaxpr.replace(eqns=tuple(eqns))


def _groups(jaxpr: Jaxpr) -> list[list[Eqn]]:
    """Calls that may be merged, in program order: no equation between them reads their results."""
    groups: list[list[Eqn]] = []
    open_groups: dict[Hashable, list[Eqn]] = {}
    group_key_of: dict[Var, Hashable] = {}  # results of open groups, with the key of their group
    for eqn in jaxpr.eqns:
        for atom in eqn.inputs:
            if type(atom) is not Literal and atom in group_key_of:
                open_groups.pop(group_key_of.pop(atom), None)
        collective = _small_collective(eqn)
        if collective is None:
            continue
        key = (eqn.primitive, tuple(eqn.params.items()), eqn.inputs[0].aval.dtype)
        if key not in open_groups:
            groups.append([])
            open_groups[key] = groups[-1]
            # Results of an earlier group with this key no longer close a group.
            group_key_of = {var: other for var, other in group_key_of.items() if other != key}
        open_groups[key].append(eqn)
        group_key_of.update((var, key) for var in eqn.outputs)
    return groups


def _small_collective(eqn: Eqn) -> AsyncCall | None:
    """The rule of a collective whose operand is small enough to be merged; else None."""
    lowering = eqn.primitive.lower
    collective = lowering.async_call if lowering.is_library else None
    if collective is None or len(eqn.inputs) != 1 or type(eqn.inputs[0]) is Literal:
        return None
    return collective if 0 < eqn.inputs[0].aval.nbytes <= collective.small else None


def _merged_call(group: list[Eqn]) -> list[Eqn]:
    """The equations of the call that replaces a group, with the outputs of the group.

    All calls of the group have equal primitive, params and dtype.
    """
    collective = _small_collective(group[0])
    assert collective is not None
    build = Replacement(group[-1].source)
    results = collective.merged(build, [eqn.inputs[0] for eqn in group], group[0].params)
    outputs_of = {result: eqn.outputs for result, eqn in zip(results, group, strict=True)}
    return [
        eqn.replace(outputs=outputs_of[eqn.outputs[0]]) if eqn.outputs[0] in outputs_of else eqn
        for eqn in build.eqns
    ]
