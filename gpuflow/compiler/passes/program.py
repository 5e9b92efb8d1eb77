"""Jaxpr passes before fusion: inlining, simplification, CSE, DCE; and helpers for all passes.

A pass takes a Jaxpr without constants (``constvars``) and returns a new one; it never changes its
argument. ``compiler/pipeline.py`` has the order of passes. Passes hold no state between calls, so
threads may run them at the same time.

Tests: tests/compiler/test_passes.py, tests/ops/test_identities.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from gpuflow.base.dtypes import is_extended
from gpuflow.base.util import SourceLocation, params_key
from gpuflow.core.aval import ShapedArray
from gpuflow.core.effects import is_observable
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, DropVar, Eqn, Jaxpr, Literal, Var
from gpuflow.core.primitive import Primitive

# --- inlining ------------------------------------------------------------------------------


def is_inline(primitive: Primitive) -> bool:
    """Whether an equation of ``primitive`` can be replaced by its inner program."""
    return primitive.lower.jaxpr is not None


def is_call(primitive: Primitive) -> bool:
    """Whether ``primitive`` is a plain call: it defines no lane program besides its program."""
    return is_inline(primitive) and primitive.lower.lanes is None


def inline(jaxpr: Jaxpr, should_inline: Callable[[Primitive], bool] = is_inline) -> Jaxpr:
    """Inline calls: replace equations by their inner programs, recursively.

    Args:
        jaxpr: the program.
        should_inline: whether a primitive is inlined; by default all that can be are.
    """
    if not any(should_inline(eqn.primitive) for eqn in jaxpr.eqns):
        return jaxpr
    eqns: list[Eqn] = []
    env: dict[Var, Atom] = {}
    _inline_into(eqns, jaxpr, env, should_inline)
    outvars = tuple(resolved(env, atom) for atom in jaxpr.outvars)
    return jaxpr.replace(eqns=tuple(eqns), outvars=outvars)


def inlined_copy(jaxpr: Jaxpr, env: dict[Var, Atom]) -> tuple[list[Eqn], list[Atom]]:
    """A copy of a program for the inputs in ``env``: equations with fresh variables, outputs.

    Args:
        jaxpr: the program; calls in it are inlined.
        env: the atom of each of its inputs. Receives the atoms of its other variables.
    """
    eqns: list[Eqn] = []
    _inline_into(eqns, jaxpr, env, is_inline)
    return eqns, [resolved(env, atom) for atom in jaxpr.outvars]


def resolved(env: dict[Var, Atom], atom: Atom) -> Atom:
    """The replacement of an atom under a substitution ``env``; itself if it has none."""
    return atom if type(atom) is Literal else env.get(atom, atom)


def _inline_into(
    eqns: list[Eqn], jaxpr: Jaxpr, env: dict[Var, Atom], should_inline: Callable[[Primitive], bool]
) -> None:
    """Append the equations of ``jaxpr`` with fresh outputs to ``eqns``.

    ``env`` must have an atom for each input; it receives the atoms of all other variables.
    """
    for eqn in jaxpr.eqns:
        inputs = tuple(resolved(env, atom) for atom in eqn.inputs)
        if should_inline(eqn.primitive):
            inner = eqn.primitive.lower.program(eqn)
            results = _inline_call(eqns, inner, inputs, should_inline)
            env.update(zip(eqn.outputs, results, strict=True))
            continue
        outputs = []
        for var in eqn.outputs:
            fresh = type(var)(var.aval)
            outputs.append(fresh)
            env[var] = fresh
        eqns.append(eqn.replace(inputs=inputs, outputs=tuple(outputs)))


def _inline_call(
    eqns: list[Eqn],
    inner: ClosedJaxpr,
    inputs: Sequence[Atom],
    should_inline: Callable[[Primitive], bool],
) -> list[Atom]:
    env: dict[Var, Atom] = dict(zip(inner.jaxpr.invars, inputs, strict=True))
    for var, value in zip(inner.jaxpr.constvars, inner.consts, strict=True):
        env[var] = Literal(value, var.aval)
    _inline_into(eqns, inner.jaxpr, env, should_inline)
    return [resolved(env, atom) for atom in inner.jaxpr.outvars]


def hoist_array_literals(jaxpr: Jaxpr) -> tuple[Jaxpr, list[Any]]:
    """Turn array literals, which inlining leaves, into trailing inputs; also return their values.

    Afterwards all literals are scalars.
    """
    if not any(
        type(atom) is Literal and _is_array(atom)
        for atoms in (*(eqn.inputs for eqn in jaxpr.eqns), jaxpr.outvars)
        for atom in atoms
    ):
        return jaxpr, []
    values: list[Any] = []
    variables: dict[int, Var] = {}

    def convert(atom: Atom) -> Atom:
        if type(atom) is not Literal or not _is_array(atom):
            return atom
        if id(atom.value) not in variables:
            variables[id(atom.value)] = Var(atom.aval)
            values.append(atom.value)
        return variables[id(atom.value)]

    eqns = tuple(eqn.replace(inputs=tuple(map(convert, eqn.inputs))) for eqn in jaxpr.eqns)
    outvars = tuple(map(convert, jaxpr.outvars))
    invars = (*jaxpr.invars, *variables.values())
    names = jaxpr.argument_names + ("",) * len(values)
    return jaxpr.replace(eqns=eqns, outvars=outvars, invars=invars, argument_names=names), values


def _is_array(literal: Literal) -> bool:
    return literal.aval.ndim > 0 or hasattr(literal.value, "block_until_ready")


# --- simplification ------------------------------------------------------------------------


class Replacement:
    """Builder of the equations that replace one; the argument ``build`` of ``simplify`` rules."""

    def __init__(self, source: SourceLocation | None) -> None:
        self.eqns: list[Eqn] = []
        self._source = source

    def apply(self, primitive: Primitive, *inputs: Atom, **params: Any) -> Any:
        """Append an equation; returns its output variable, or a tuple of them."""
        out = primitive.shape(*[atom.aval for atom in inputs], **params)
        avals: Sequence[ShapedArray] = out if primitive.multiple_results else (out,)
        outputs = tuple(Var(aval) for aval in avals)
        effects = primitive.effects(params)
        self.eqns.append(Eqn(primitive, inputs, outputs, params, self._source, effects))
        return outputs if primitive.multiple_results else outputs[0]

    def literal(self, value: Any, aval: ShapedArray) -> Literal:
        """A scalar literal of the dtype of ``aval``."""
        scalar = ShapedArray((), aval.dtype)
        return Literal(np.asarray(value).astype(aval.dtype)[()], scalar)


class Definitions:
    """Use-def chains of a program: definitions and readers of values, for ``simplify`` rules.

    Equations that rules add are counted as readers (position -1), but cannot be looked up by it.

    Attributes:
        eqn_of: the defining equation of each variable so far. A pass adds each equation that it
            emits, in program order.
    """

    def __init__(self, jaxpr: Jaxpr) -> None:
        self.eqn_of: dict[Var, Eqn] = {}
        self._original_eqns = jaxpr.eqns
        self._reads = reader_positions(jaxpr)
        self._outputs = {atom for atom in jaxpr.outvars if type(atom) is not Literal}

    def __call__(self, atom: Atom) -> Eqn | None:
        """The equation that computes ``atom``; None for inputs and literals."""
        return None if type(atom) is Literal else self.eqn_of.get(atom)

    def is_read_once(self, atom: Atom) -> bool:
        """Whether one equation reads ``atom``, and it is not an output of the program."""
        if type(atom) is Literal:
            return False
        return len(self._reads.get(atom, ())) == 1 and atom not in self._outputs

    def is_read_only_by(self, primitive: Primitive, atom: Atom) -> bool:
        """Whether only equations of ``primitive`` read ``atom``, and it is not an output."""
        if type(atom) is Literal or atom in self._outputs:
            return False
        readers = self._reads.get(atom, ())
        return all(k >= 0 and self._original_eqns[k].primitive is primitive for k in readers)

    def readers(self, atom: Atom) -> list[Eqn] | None:
        """The equations that read ``atom``; None if it is an output, or rules added readers."""
        if type(atom) is Literal or atom in self._outputs:
            return None
        if -1 in self._reads.get(atom, ()):
            return None
        return self.original_readers(atom)

    def original_readers(self, var: Var) -> list[Eqn]:
        """The equations of the original program that read ``var``, without those of rules."""
        return [self._original_eqns[k] for k in self._reads.get(var, ()) if k >= 0]

    def is_read(self, atom: Var) -> bool:
        """Whether an equation reads ``atom``, or it is an output of the program."""
        return bool(self._reads.get(atom)) or atom in self._outputs

    def add(
        self, eqns: Sequence[Eqn], old_outputs: Sequence[Var], new_outputs: Sequence[Atom]
    ) -> None:
        """Count the reads of new equations, and the readers of the outputs that they replace.

        Args:
            eqns: the new equations.
            old_outputs: the outputs of the equation that they replace.
            new_outputs: the atoms that replace these, one for each.
        """
        for eqn in eqns:
            for atom in eqn.inputs:
                if type(atom) is not Literal:
                    self._reads.setdefault(atom, []).append(-1)
        for old, new in zip(old_outputs, new_outputs, strict=True):
            if type(new) is not Literal:
                self._reads.setdefault(new, []).extend(self._reads.get(old, ()))
                if old in self._outputs:
                    self._outputs.add(new)


def fold_constants(eqn: Eqn) -> Literal | None:
    """Constant folding: the scalar result of an equation of literals, or None.

    The ``impl`` of the op computes it. Size expressions remain arguments of kernels.
    """
    primitive, aval = eqn.primitive, eqn.outputs[0].aval if eqn.outputs else None
    if primitive.impl is None or primitive.multiple_results or aval is None or aval.shape:
        return None
    lowering = primitive.lower
    if not (lowering.is_elementwise or lowering.view is not None) or is_extended(aval.dtype):
        return None
    literals = [atom for atom in eqn.inputs if type(atom) is Literal]
    if not literals or len(literals) != len(eqn.inputs):
        return None
    if any(_is_array(literal) or is_extended(literal.aval.dtype) for literal in literals):
        return None
    operands = [np.asarray(literal.value, literal.aval.dtype) for literal in literals]
    with np.errstate(all="ignore"):
        value = np.asarray(primitive.impl(np, *operands, **eqn.params))
    return Literal(value.astype(aval.dtype)[()], aval)


def simplify_for_gpu(jaxpr: Jaxpr) -> Jaxpr:
    """``simplify`` with the rules of lowering classes for GPUs."""
    return simplify(jaxpr, ("on_gpu",))


def simplify_with_atomics(jaxpr: Jaxpr) -> Jaxpr:
    """``simplify_for_gpu`` with atomic sums."""
    return simplify(jaxpr, ("with_atomics", "on_gpu"))


def simplify(jaxpr: Jaxpr, rule_fields: Sequence[str] = ("on_cpu",)) -> Jaxpr:
    """Peephole simplification: fold constants, and apply rules of primitives, also to results.

    A rule is ``(eqn, definition, build) -> None | list of atoms``. ``definition`` is a
    ``Definitions``, ``build`` a ``Replacement``. The atoms replace the outputs of the equation.

    Args:
        jaxpr: the program.
        rule_fields: fields of lowering classes with rules for the platform. These precede the
            ``simplify`` rule of the primitive; the first rule that returns atoms is applied.
    """
    eqns: list[Eqn] = []
    env: dict[Var, Atom] = {}
    definition = Definitions(jaxpr)

    def visit(eqn: Eqn) -> None:
        if any(type(atom) is Var and atom in env for atom in eqn.inputs):
            eqn = eqn.replace(inputs=tuple(resolved(env, atom) for atom in eqn.inputs))
        literal = fold_constants(eqn)
        if literal is not None:
            env[eqn.outputs[0]] = literal
            return
        for rule in _rules_of(eqn.primitive, rule_fields):
            build = Replacement(eqn.source)
            results = rule(eqn, definition, build)
            if results is not None:
                definition.add(build.eqns, eqn.outputs, results)
                for new_eqn in build.eqns:
                    visit(new_eqn)
                env.update(zip(eqn.outputs, [resolved(env, r) for r in results], strict=True))
                return
        eqns.append(eqn)
        for var in eqn.outputs:
            definition.eqn_of[var] = eqn

    for eqn in jaxpr.eqns:
        visit(eqn)
    outvars = tuple(resolved(env, atom) for atom in jaxpr.outvars)
    return jaxpr.replace(eqns=tuple(eqns), outvars=outvars)


def _rules_of(primitive: Primitive, rule_fields: Sequence[str]) -> list[Callable[..., Any]]:
    """The simplification rules of a primitive on a platform, in the order in which to try them."""
    class_rules = [getattr(primitive.lower, field, None) for field in rule_fields]
    return [rule for rule in (*class_rules, primitive.simplify) if rule is not None]


# --- common subexpressions and dead code ---------------------------------------------------


def cse(jaxpr: Jaxpr) -> Jaxpr:
    """Common subexpression elimination; never merges equations with observable effects."""
    env: dict[Var, Atom] = {}
    available: dict[Hashable, tuple[Var, ...]] = {}
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        inputs = tuple(resolved(env, atom) for atom in eqn.inputs)
        if inputs != eqn.inputs:
            eqn = eqn.replace(inputs=inputs)
        key = None if is_observable(eqn.effects) else _expression_key(eqn)
        equal_outputs = available.get(key) if key is not None else None
        if equal_outputs is not None:
            env.update(zip(eqn.outputs, equal_outputs, strict=True))
            continue
        if key is not None:
            # A later equal expression may read an output that this one dropped.
            outputs = tuple(
                Var(var.aval) if isinstance(var, DropVar) else var for var in eqn.outputs
            )
            eqn = eqn if outputs == eqn.outputs else eqn.replace(outputs=outputs)
            available[key] = outputs
        eqns.append(eqn)
    outvars = tuple(resolved(env, atom) for atom in jaxpr.outvars)
    return jaxpr.replace(eqns=tuple(eqns), outvars=outvars)


def atom_key(atom: Atom) -> Hashable:
    """A hashable identity of an atom: the variable, or the bits and type of a literal.

    0.0 and -0.0 have different keys.
    """
    if type(atom) is Literal:
        return (np.asarray(atom.value).tobytes(), atom.aval.dtype, atom.aval.shape)
    return atom


def _expression_key(eqn: Eqn) -> Hashable | None:
    """The key of equal expressions; None if a parameter is not hashable, so nothing is equal."""
    key = (
        eqn.primitive,
        tuple(atom_key(atom) for atom in eqn.inputs),
        params_key(eqn.params),
    )
    try:
        hash(key)
    except TypeError:
        return None
    return key


def dce(jaxpr: Jaxpr) -> Jaxpr:
    """Dead code elimination: drop equations that nothing reads and without observable effects.

    The ``prune`` rules of loops and branches drop their unused results.
    """
    live = {atom for atom in jaxpr.outvars if type(atom) is not Literal}
    live_eqns: list[Eqn] = []
    for eqn in reversed(jaxpr.eqns):
        used = [var in live for var in eqn.outputs]
        if is_observable(eqn.effects) or any(used):
            if eqn.primitive.programs.prune is not None:
                eqn = eqn.primitive.programs.prune(eqn, used)
            live_eqns.append(eqn)
            live.update(atom for atom in eqn.inputs if type(atom) is not Literal)
    return jaxpr.replace(eqns=tuple(reversed(live_eqns)))


def reader_positions(jaxpr: Jaxpr) -> dict[Var, list[int]]:
    """For each variable the positions of the equations that read it, once for each operand."""
    result: dict[Var, list[int]] = {}
    for position, eqn in enumerate(jaxpr.eqns):
        for atom in eqn.inputs:
            if type(atom) is not Literal:
                result.setdefault(atom, []).append(position)
    return result


Pass = Callable[[Jaxpr], Jaxpr]
