"""``remat_p``, the primitive of checkpoint (rematerialization), and its rules.

The equation holds a program without constants. Linearization stores only its operands and the
values that the policy saves. The linear map is another ``remat_p`` equation, which first recomputes
the other residuals. Transposition turns it into a program of residuals and cotangents, so the
recomputation happens in the backward pass. An optimization barrier over all inputs keeps the
compiler from merging it with the first computation (CSE). The barrier also delays it until the
cotangents are available. The residuals therefore take no memory in between.

Tests: tests/control/test_remat.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.compiler.passes.program import dce, inline
from gpuflow.control import program_rules
from gpuflow.control.jit import jit_p
from gpuflow.control.loops.partial_evaluation import Recomputation, used_outputs
from gpuflow.control.programs import close, execute_alone, with_inputs
from gpuflow.core.aval import ShapedArray
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from gpuflow.core.key_use import Flow, States, follow_programs
from gpuflow.core.lowering import Inline
from gpuflow.core.primitive import Primitive, make_primitive, register
from gpuflow.core.rules import AxisData, Uniform
from gpuflow.ops.effects.barrier import optimization_barrier_p
from gpuflow.transforms.checking import Categories, State, checked_jaxpr, split_state
from gpuflow.transforms.linearize import linearize_jaxpr
from gpuflow.transforms.partial_eval import partial_jaxpr


def bind_remat(
    jaxpr: ClosedJaxpr,
    operands: Sequence[Any],
    *,
    policy: Any,
    prevent_cse: bool,
    differentiated: bool = False,
) -> list[Any]:
    """Bind a program; its constants become leading operands.

    Args:
        jaxpr: the program.
        operands: its arguments.
        policy: the policy that selects residuals to store; None stores none.
        prevent_cse: whether a barrier separates the recomputation from the first computation.
        differentiated: whether the program is a recomputation.
    """
    jaxpr, closed = close(jaxpr)
    return remat_p.bind(
        *closed,
        *operands,
        jaxpr=jaxpr,
        policy=policy,
        prevent_cse=prevent_cse,
        differentiated=differentiated,
    )


def _binding(params: Mapping[str, Any]) -> program_rules.Bind:
    return lambda program, operands: bind_remat(program, operands, **params)


def _shape(*avals: ShapedArray, jaxpr: ClosedJaxpr, **params: Any) -> list[ShapedArray]:
    del params
    return program_rules.result_types("checkpoint", avals, jaxpr)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, **params: Any
) -> tuple[list[Any], list[Any]]:
    return program_rules.jvp(_binding(params), jaxpr, primals, tangents)


def _batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    jaxpr: ClosedJaxpr,
    **params: Any,
) -> tuple[list[Any], list[int | Uniform | None]]:
    return program_rules.batch(_binding(params), jaxpr, axis, operands, dims)


def _checked(
    categories: Categories, operands: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], State | None]:
    jaxpr = params["jaxpr"]
    program, sites = checked_jaxpr(jaxpr, categories)
    others = {name: value for name, value in params.items() if name != "jaxpr"}
    return split_state(bind_remat(program, operands, **others), len(jaxpr.out_avals), sites)


# --- linearization -------------------------------------------------------------------------


@record
class Split:
    """A program split into evaluation and a linear map that recomputes residuals.

    Attributes:
        known: the evaluation ``(*closed, *operands) -> (*outs, *saved)``.
        closed: values of the constants of ``known``.
        linear: ``(*saved, *operands read again, *nonzero tangents) -> nonzero out tangents``.
        operands: indices of the operands read again, among the inputs of ``known``.
        out_nonzeros: for each output whether it has a tangent.
    """

    known: ClosedJaxpr
    closed: list[Any]
    linear: ClosedJaxpr
    operands: tuple[int, ...]
    out_nonzeros: tuple[bool, ...]


def _linearize(
    nonzeros: tuple[bool, ...],
    *primals: Any,
    jaxpr: ClosedJaxpr,
    policy: Any,
    prevent_cse: bool,
    differentiated: bool,
) -> tuple[Any, ...]:
    split = split_program(jaxpr, nonzeros, policy)
    operands = [*split.closed, *primals]
    params: dict[str, Any] = {"policy": policy, "prevent_cse": prevent_cse}
    results = bind_remat(split.known, operands, differentiated=differentiated, **params)
    count = len(jaxpr.out_avals)
    residuals = [*results[count:], *[operands[k] for k in split.operands]]

    def tangent_function(values: Sequence[Any], *tangents: Any) -> list[Any]:
        return bind_remat(split.linear, [*values, *tangents], differentiated=True, **params)

    return results[:count], split.out_nonzeros, residuals, tangent_function


def split_program(jaxpr: ClosedJaxpr, nonzeros: tuple[bool, ...], policy: Any) -> Split:
    """Split a program for tangents of some inputs, under a policy."""
    key = ("remat", nonzeros, policy)
    return jaxpr.jaxpr.memo(key, lambda: _make_split(jaxpr, nonzeros, policy))


def _is_transparent(primitive: Primitive) -> bool:
    """Whether policies apply inside the equation: to jit and checkpoint, not to custom rules."""
    return primitive is jit_p or primitive is remat_p


def _make_split(jaxpr: ClosedJaxpr, nonzeros: tuple[bool, ...], policy: Any) -> Split:
    if policy is not None:
        jaxpr = _under_policy(jaxpr, policy)
    evaluation, linear, out_nonzeros, count = linearize_jaxpr(jaxpr, nonzeros)
    evaluation, closed = close(evaluation)
    scheme = _recomputation(evaluation.jaxpr, policy)
    program = scheme.program
    split = len(program.outvars) - count
    inputs = [*scheme.stored, *program.invars]
    tangents = _composed(inputs, scheme.again, program.outvars[split:], linear)
    tangents = ClosedJaxpr(dce(tangents.jaxpr))
    # Of the values that the policy saves, only those that the linear map reads are stored.
    read = _read_by(tangents.jaxpr)
    stored = [var for var in scheme.stored if var in read]
    operands = tuple(k for k, var in enumerate(program.invars) if var in read)
    tails = tangents.jaxpr.invars[len(inputs) :]
    tangents = with_inputs(tangents, [*stored, *[program.invars[k] for k in operands], *tails])
    outs = [*program.outvars[:split], *stored]
    known = dce(program.replace(eqns=scheme.first, outvars=tuple(outs), argument_names=()))
    return Split(ClosedJaxpr(known), closed, tangents, operands, out_nonzeros)


def _read_by(jaxpr: Jaxpr) -> set[Atom]:
    atoms = [*jaxpr.outvars, *[atom for eqn in jaxpr.eqns for atom in eqn.inputs]]
    return {atom for atom in atoms if type(atom) is not Literal}


def _recomputation(jaxpr: Jaxpr, policy: Any) -> Recomputation:
    """Split the values of a program into values that the policy saves, and recomputed values."""
    program = inline(jaxpr, _is_transparent)
    if policy is None:
        return Recomputation(program, program.eqns, (), program.eqns)
    computed_eqns: list[Eqn] = []
    stored: list[Var] = []
    recomputed_eqns: list[Eqn] = []
    for eqn in program.eqns:
        if _may_save(policy, eqn):
            computed_eqns.append(eqn)
            stored += used_outputs(eqn)
            continue
        rule = eqn.primitive.programs.recompute
        split_eqn = None if rule is None else rule(eqn, lambda inner: _recomputation(inner, policy))
        computed, saved, recomputed = (eqn, [], eqn) if split_eqn is None else split_eqn
        computed_eqns.append(computed)
        stored += saved
        recomputed_eqns.append(recomputed)
    return Recomputation(program, tuple(computed_eqns), tuple(stored), tuple(recomputed_eqns))


@record
class Either:
    """The policy of a checkpointed function inside another one: the union of both.

    A record, so that equal pairs of policies are equal keys of caches. ``inner`` may be None, the
    policy that stores nothing.
    """

    inner: Any
    outer: Any

    def __call__(self, primitive: Primitive, *avals: Any, **params: Any) -> bool:
        inner = self.inner is not None and bool(self.inner(primitive, *avals, **params))
        return inner or bool(self.outer(primitive, *avals, **params))


def _under_policy(jaxpr: ClosedJaxpr, policy: Any) -> ClosedJaxpr:
    """Add ``policy`` to the policies of all checkpointed functions in a program, at any depth."""
    inner = jaxpr.jaxpr
    changed = inner.memo(("under policy", policy), lambda: _changed_policy(inner, policy))
    return jaxpr if changed is inner else ClosedJaxpr(changed, jaxpr.consts)


def _changed_policy(jaxpr: Jaxpr, policy: Any) -> Jaxpr:
    eqns = []
    for eqn in jaxpr.eqns:
        params = {name: _with_policy(value, policy) for name, value in eqn.params.items()}
        if eqn.primitive is remat_p:
            params["policy"] = Either(params["policy"], policy)
        same = all(params[name] is value for name, value in eqn.params.items())
        eqns.append(eqn if same else eqn.replace(params=params))
    return jaxpr if eqns == list(jaxpr.eqns) else jaxpr.replace(eqns=tuple(eqns))


def _with_policy(value: Any, policy: Any) -> Any:
    """A parameter of an equation, with the policy applied to programs in it."""
    if isinstance(value, ClosedJaxpr):
        return _under_policy(value, policy)
    if isinstance(value, tuple) and any(isinstance(item, ClosedJaxpr) for item in value):
        changed = tuple(_with_policy(item, policy) for item in value)
        return value if all(a is b for a, b in safe_zip(changed, value)) else changed
    return value


def _composed(
    inputs: Sequence[Var], eqns: Sequence[Eqn], residuals: Sequence[Atom], tail: Jaxpr
) -> ClosedJaxpr:
    """``(*inputs, *others) -> tail(*residuals, *others)``; ``eqns`` compute the residuals."""
    count = len(residuals)
    env: dict[Atom, Atom] = dict(safe_zip(tail.invars[:count], residuals))
    full = list(eqns)
    for eqn in tail.eqns:
        full.append(eqn.replace(inputs=tuple(_read(env, atom) for atom in eqn.inputs)))
    return ClosedJaxpr(
        Jaxpr(
            (),
            (*inputs, *tail.invars[count:]),
            tuple(_read(env, atom) for atom in tail.outvars),
            tuple(full),
            frozenset().union(*[eqn.effects for eqn in full]),
        )
    )


def _read(env: dict[Atom, Atom], atom: Atom) -> Atom:
    return atom if type(atom) is Literal else env.get(atom, atom)


def _may_save(policy: Any, eqn: Eqn) -> bool:
    avals = [atom.aval for atom in eqn.inputs]
    return policy is not None and bool(policy(eqn.primitive, *avals, **eqn.params))


def _partial_eval(
    unknowns: tuple[bool, ...],
    *operands: Any,
    jaxpr: ClosedJaxpr,
    differentiated: bool,
    **params: Any,
) -> tuple[Any, ...]:
    """The partial_eval rule: the program of unknown values recomputes known ones."""
    known, closed, unknown, out_unknowns = _partial_programs(jaxpr, unknowns)
    known_values = [*closed, *[x for x, flag in safe_zip(operands, unknowns) if not flag]]

    def unknown_function(values: Sequence[Any], *unknown_operands: Any) -> list[Any]:
        return bind_remat(unknown, [*values, *unknown_operands], differentiated=True, **params)

    outs = bind_remat(known, known_values, differentiated=differentiated, **params)
    return outs, out_unknowns, known_values, unknown_function


class _PartialPrograms(NamedTuple):
    """A checkpointed program, split into known values and unknown ones that recompute them.

    Attributes:
        known: ``(*closed, *known inputs) -> known outs``.
        closed: values of the constants of both programs.
        unknown: ``(*closed, *known inputs, *unknown inputs) -> unknown outs``.
        out_unknowns: for each output whether it is unknown.
    """

    known: ClosedJaxpr
    closed: list[Any]
    unknown: ClosedJaxpr
    out_unknowns: tuple[bool, ...]


def _partial_programs(jaxpr: ClosedJaxpr, unknowns: tuple[bool, ...]) -> _PartialPrograms:
    def make() -> _PartialPrograms:
        known, unknown, flags, _ = partial_jaxpr(jaxpr, unknowns)
        known, closed = close(known)
        inner = known.jaxpr
        split = len(flags) - sum(flags)
        first = dce(with_inputs(known, inner.invars, inner.outvars[:split]).jaxpr)
        again = _composed(inner.invars, inner.eqns, inner.outvars[split:], unknown)
        recomputed = ClosedJaxpr(dce(again.jaxpr))
        return _PartialPrograms(ClosedJaxpr(first), closed, recomputed, flags)

    programs: _PartialPrograms = jaxpr.jaxpr.memo(("remat parts", unknowns), make)
    return programs


# --- transposition and lowering ------------------------------------------------------------


def _transpose(
    cotangents: Sequence[Any], *operands: Any, jaxpr: ClosedJaxpr, **params: Any
) -> list[Any]:
    return program_rules.transpose(_binding(params), jaxpr, cotangents, operands)


def _lowered(params: dict[str, Any]) -> ClosedJaxpr:
    """The program to inline; a recomputation starts with a barrier over its operands."""
    jaxpr: ClosedJaxpr = params["jaxpr"]
    if not (params["differentiated"] and params["prevent_cse"]):
        return jaxpr
    return jaxpr.jaxpr.memo("behind a barrier", lambda: _after_barrier(jaxpr.jaxpr))


def _after_barrier(jaxpr: Jaxpr) -> ClosedJaxpr:
    program = dce(jaxpr)
    read = {atom for eqn in program.eqns for atom in eqn.inputs if type(atom) is not Literal}
    read_inputs = [var for var in program.invars if var in read]
    if not read_inputs:
        return ClosedJaxpr(program)
    fresh = {var: Var(var.aval) for var in read_inputs}
    barrier = Eqn(optimization_barrier_p, tuple(fresh.values()), tuple(read_inputs), {})
    return ClosedJaxpr(
        program.replace(
            invars=tuple(fresh.get(var, var) for var in program.invars),
            eqns=(barrier, *program.eqns),
            argument_names=(),
        )
    )


def _keys(flow: Flow) -> States | None:
    """Key-reuse rule: recomputation for a derivative does not count as a second use of a key."""
    return None if flow.params["differentiated"] else follow_programs(flow)


remat_p = register(
    make_primitive(
        "remat",
        shape=_shape,
        execute=execute_alone(lambda: remat_p),
        jvp=_jvp,
        linearize=_linearize,
        partial_eval=_partial_eval,
        transpose=_transpose,
        batch=_batch,
        lower=Inline(lambda _, params: _lowered(params)),
        multiple_results=True,
        effects=lambda params: params["jaxpr"].effects,
        subjaxprs=lambda params: [params["jaxpr"]],
        keys=_keys,
        checked=_checked,
    )
)
