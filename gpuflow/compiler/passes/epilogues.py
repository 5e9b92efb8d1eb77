"""Epilogue fusion: replace a library call and readers of its result by one fused call.

The rule of a lowering class (``Library.fuse_epilogue``) matches patterns. A pattern is a small
program, simplified by the same passes as the program in which it is searched.

Tests: tests/targets/cuda/test_gpu_epilogues.py.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Sequence

from gpuflow.compiler.passes.program import (
    Definitions,
    Replacement,
    atom_key,
    cse,
    dce,
    inline,
    resolved,
    simplify_for_gpu,
)
from gpuflow.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering.epilogue_rules import FusedCall, Match


class EquationMatcher:
    """Pattern matcher on the equations of a program, for ``fuse_epilogue`` rules.

    The program must have been simplified with the rules for GPUs, or patterns will not match.
    """

    def __init__(self, jaxpr: Jaxpr) -> None:
        self._definitions = Definitions(jaxpr)
        for eqn in jaxpr.eqns:
            self._definitions.eqn_of.update(dict.fromkeys(eqn.outputs, eqn))

    def match(self, pattern: Jaxpr, inputs: Sequence[Var]) -> Match | None:
        """Match a pattern whose first inputs are ``inputs``; None if no equations compute it.

        Each equation of the pattern must read one of these inputs, or the result of an earlier
        equation: only readers of such a value are searched, and the first one that matches is used.
        Other patterns match nothing.
        """
        pattern = pattern.memo("simplified", lambda: _simplified(pattern))
        env: dict[Var, Atom] = dict(zip(pattern.invars, inputs))
        eqns: list[Eqn] = []
        for pattern_eqn in pattern.eqns:
            bound_inputs = [env[a] for a in pattern_eqn.inputs if type(a) is Var and a in env]
            bound = bound_inputs[0] if bound_inputs else None
            candidates = self._definitions.original_readers(bound) if type(bound) is Var else ()
            for eqn in candidates:
                operands = _operands(pattern_eqn, eqn, env)
                if operands is not None:
                    env.update(operands)
                    env.update(zip(pattern_eqn.outputs, eqn.outputs, strict=True))
                    eqns.append(eqn)
                    break
            else:
                return None
        outs = tuple([env[var] for var in pattern.outvars])
        return Match(outs, tuple([env[v] for v in pattern.invars[len(inputs) :]]), tuple(eqns))

    def definition(self, atom: Atom) -> Eqn | None:
        """The equation that computes ``atom``; None for inputs and literals."""
        return self._definitions(atom)

    def are_read_only_by(self, variables: Sequence[Var], eqns: Sequence[Eqn]) -> bool:
        """Whether only these equations read the variables, and none is an output."""
        ids = {id(eqn) for eqn in eqns}
        readers = [self._definitions.readers(var) for var in variables]
        return all(r is not None and all(id(eqn) in ids for eqn in r) for r in readers)

    def is_read_by_kernels(self, var: Var, excluded: Sequence[Eqn] = ()) -> bool:
        """Whether a generated kernel computes with ``var`` in an equation that is not excluded."""
        ids = {id(eqn) for eqn in excluded}
        return any(
            id(eqn) not in ids
            and eqn.primitive.lower.view is None
            and eqn.primitive.lower.is_fusible(eqn)
            for eqn in self._definitions.original_readers(var)
        )


def _simplified(pattern: Jaxpr) -> Jaxpr:
    return dce(cse(simplify_for_gpu(cse(inline(pattern)))))


def _operands(pattern_eqn: Eqn, eqn: Eqn, env: dict[Var, Atom]) -> dict[Var, Atom] | None:
    """Bindings of a pattern equation's unbound variables; None if ``eqn`` does not match it."""
    if eqn.primitive is not pattern_eqn.primitive or eqn.params != pattern_eqn.params:
        return None
    if len(eqn.inputs) != len(pattern_eqn.inputs):
        return None
    bindings: dict[Var, Atom] = {}
    bound = ChainMap(bindings, env)
    for variable, atom in zip(pattern_eqn.inputs, eqn.inputs, strict=True):
        expected = variable if type(variable) is Literal else bound.get(variable)
        if expected is None:
            bindings[variable] = atom
        elif atom_key(expected) != atom_key(atom):
            return None
    return bindings


def fuse_epilogues(jaxpr: Jaxpr, is_supported: Callable[[Eqn], bool]) -> Jaxpr:
    """Replace library calls and readers of their results by fused calls.

    Args:
        jaxpr: the program.
        is_supported: whether the target implements a fused call. A rule's calls are applied
            together: if one is not supported, none is.
    """
    matcher: EquationMatcher | None = None
    calls: dict[int, list[FusedCall]] = {}
    replaced: set[int] = set()  # ids of calls that fused calls replace
    outputs: set[Var] = set()  # outputs of the original program that fused calls compute
    for eqn in jaxpr.eqns:
        rule = eqn.primitive.lower.fuse_epilogue
        if rule is None or id(eqn) in replaced:
            continue
        matcher = matcher or EquationMatcher(jaxpr)
        fused_calls: Sequence[FusedCall] = rule(eqn, matcher, Replacement(eqn.source))
        if all(
            id(fused_call.replaces) not in replaced
            and outputs.isdisjoint(fused_call.outputs)
            and is_supported(fused_call.call)
            for fused_call in fused_calls
        ):
            for fused_call in fused_calls:
                calls.setdefault(id(fused_call.position), []).append(fused_call)
                replaced.add(id(fused_call.replaces))
                outputs.update(fused_call.outputs)
    return _with_calls(jaxpr, calls) if calls else jaxpr


def _with_calls(jaxpr: Jaxpr, calls: dict[int, list[FusedCall]]) -> Jaxpr:
    """The program with fused calls inserted, and without the equations that they replace.

    Args:
        jaxpr: the program.
        calls: the fused calls to insert before an equation, by the id of that equation.
    """
    env: dict[Var, Atom] = {}
    eqns: list[Eqn] = []

    def with_new_inputs(eqn: Eqn) -> Eqn:
        return eqn.replace(inputs=tuple([resolved(env, atom) for atom in eqn.inputs]))

    for eqn in jaxpr.eqns:
        for fused_call in calls.get(id(eqn), ()):
            eqns.append(with_new_inputs(fused_call.call))
            env.update(fused_call.outputs)
        eqns.append(with_new_inputs(eqn))
    outvars = tuple([resolved(env, atom) for atom in jaxpr.outvars])
    return dce(jaxpr.replace(eqns=tuple(eqns), outvars=outvars))
