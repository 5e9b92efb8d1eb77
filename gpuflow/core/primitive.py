"""The Primitive record: all rules of one op.

Tests: tests/ops/test_missing_rules.py, tests/transforms/test_transpose.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, fields
from typing import Any

from gpuflow.base.records import record
from gpuflow.core.halo import Halo
from gpuflow.core.lowering import Lowering
from gpuflow.core.trace import current_trace, thread_state


def no_effects(params: dict[str, Any]) -> frozenset[Any]:
    """The effects of most primitives: none."""
    del params
    return frozenset()


@record(eq=False)
class Derivatives:
    """The derivatives of an op; with ``multiple_results`` rules give and take sequences.

    Attributes:
        jvp: ``(primals, tangents, **params) -> (out, out_tangent)``; tangents may be ``Zero``.
        again: ``(out, operands, tangents) -> out_tangent``, jvp in terms of the output, cheaper to
            differentiate repeatedly, of an op with one output and without params; see
            transforms/taylor.py. Default: jvp.
        transpose: ``(cotangent, *operands, **params) -> cotangents``; operands to be transposed are
            ``UndefinedPrimal``; the cotangents of others are None. None: not linear.
        linearize: ``(nonzeros, *primals, **params) -> (outs, out_nonzeros, residuals, tangent_fn)``
            with ``tangent_fn(residuals, *nonzero_tangents)``; default: jvp and partial evaluation.
        partial_eval: ``(unknowns, *operands, **params) -> (known outs, out_unknowns, residuals,
            unknown_fn)`` with None for unknown operands and ``unknown_fn(residuals, *unknown
            operands) -> unknown outs``; default: with an unknown operand all outputs are unknown.
    """

    jvp: Callable[..., Any] | None = None
    again: Callable[..., Any] | None = None
    transpose: Callable[..., Any] | None = None
    linearize: Callable[..., Any] | None = None
    partial_eval: Callable[..., Any] | None = None


@record(eq=False)
class HeldPrograms:
    """How the programs in the params of an op are treated, if it has any.

    Attributes:
        close: ``(operands, params) -> (operands, params)`` for params with Python functions: their
            closed-over values become operands, before the op is recorded or batched.
        prune: ``(eqn, used) -> eqn`` without outputs that are not used; see
            compiler/passes/program.py.
        recompute: ``(eqn, split) -> (eqn, vars, eqn) | None`` for ops whose programs the policies
            of checkpoint apply to; see control/loops/partial_evaluation.py.
        may_communicate: whether the op holds rules of a user, which may use named axes although
            its program does not.
    """

    close: Callable[..., Any] | None = None
    prune: Callable[..., Any] | None = None
    recompute: Callable[..., Any] | None = None
    may_communicate: bool = False


@record(eq=False)
class Placement:
    """The devices of an op's outputs; by default those of its operands.

    Attributes:
        device: ``params -> Device | None`` of the outputs, for ops that move arrays.
        sharding: ``params -> Sharding`` that is requested for the output.
        varies: ``(varying, params) -> list of frozensets``, from the axes of shard_map along which
            each operand varies to those of each output; default: all of them. Ops that hold
            programs have it from these.
        sums: ``flags of operands -> bool``: whether the op, applied to terms of sums for the
            flagged operands and to whole values for the others, gives terms of the sum of its
            output. Default: layout ops of one operand do.
        chunk: ``(dim, params) -> apply | None`` of an op that reads its first operand at some
            indices along ``dim``: for a chunk of that operand, which has ``size`` elements in all,
            ``apply(bind, start, size, *operands) -> out`` gives the chunk's term of a sum, which is
            the output; ``bind`` applies the op.
        block: ``(starts, sizes, *operands, **params) -> out`` of an op that makes an array from
            indices: a block of it; starts are int32 values. None where the op cannot.
        halo: ``(operand avals, output aval, params) -> Halo | None``: the rows of operands that a
            block of the output needs; for dimensions that do not correspond to one of an operand.
            It is not asked about arrays of keys.
        communication: ``(operand avals, params) -> Communication | None`` of a collective; None if
            all devices of its axes share a memory.
    """

    device: Callable[[dict[str, Any]], Any] | None = None
    sharding: Callable[[dict[str, Any]], Any] | None = None
    varies: Callable[..., Sequence[frozenset[Any]]] | None = None
    sums: Callable[[Sequence[bool]], bool] | None = None
    chunk: Callable[[int, dict[str, Any]], Callable[..., Any] | None] | None = None
    block: Callable[..., Any] | None = None
    halo: Callable[..., Halo | None] | None = None
    communication: Callable[..., Any] | None = None


@record(eq=False)
class Checks:
    """How an op is checked by ``checkify``, ``debug_nans`` and ``debug_key_reuse``.

    Attributes:
        faults: ``(operands, params) -> list of Fault``: the possible faults of operands.
        passes_nan: whether nan in a result was in an operand, as for data movement.
        checked: ``(categories, operands, params) -> (outs, State | None)``, for ops that hold
            programs: how failures inside are returned; see transforms/checking.py.
        keys: ``Flow -> states of outputs | None``, the use of random keys; see core/key_use.py.
            Default: layout ops move them, others consume them.
    """

    faults: Callable[..., Any] | None = None
    passes_nan: bool = False
    checked: Callable[..., Any] | None = None
    keys: Callable[..., Any] | None = None


@record(eq=False)
class Sweep:
    """What the op sweep of the tests needs: operands, a tolerance and a reference function."""

    domain: Any = None
    tolerance: float | None = None
    reference: Callable[..., Any] | None = field(default=None, repr=False)


@record(eq=False)
class Primitive:
    """One op: its meaning, and the rules of each transformation; ``make_primitive`` makes one.

    With ``multiple_results`` every rule gives and takes sequences of outputs.

    Attributes:
        name: as printed in jaxprs.
        shape: ``(*avals, **params) -> aval``; checks operands and gives shape and dtype.
        impl: ``(xp, *arrays, **params) -> array`` with ``xp`` numpy or cupy; the eager path and the
            library lowering. It has JAX's semantics, not NumPy's.
        execute: ``(operands, params) -> outs`` on concrete Arrays, for primitives that hold
            programs; they have no impl.
        subjaxprs: ``params -> list of ClosedJaxpr`` in them; None: the op holds no programs.
        multiple_results: whether the op has a sequence of outputs.
        effects: ``params -> frozenset`` of the effects of an equation.
        batch: ``(axis, operands, dims, **params) -> (outs, out_dims)``; ``axis`` is an AxisData.
        lower: an instance of a class in core.lowering; by default a separate step, without rules.
        simplify: ``(eqn, definition, build) -> outputs``, or None; see compiler/passes/program.py.
        size_params: names of params that hold sizes only; the key of a symbolic plan has none.
        derivatives, programs, placement, checks, sweep: see their classes.
    """

    name: str
    shape: Callable[..., Any]
    impl: Callable[..., Any] | None = None
    execute: Callable[..., Any] | None = None
    subjaxprs: Callable[[dict[str, Any]], list[Any]] | None = None
    multiple_results: bool = False
    effects: Callable[[dict[str, Any]], frozenset[Any]] = no_effects
    batch: Callable[..., Any] | None = None
    lower: Any = Lowering()
    simplify: Callable[..., Any] | None = None
    size_params: frozenset[str] = frozenset()
    derivatives: Derivatives = Derivatives()
    programs: HeldPrograms = HeldPrograms()
    placement: Placement = Placement()
    checks: Checks = Checks()
    sweep: Sweep = Sweep()

    # For interpreters of jaxprs, as get_bind_params: no bind takes functions.
    call_primitive = False

    def bind(self, *operands: Any, **params: Any) -> Any:
        """Apply the op under the current trace."""
        return thread_state.trace.process(self, operands, params)

    def bind_with_trace(
        self, trace: Any, args: Sequence[Any], avals: Sequence[Any], params: dict[str, Any]
    ) -> Any:
        """Apply the op under a trace, for traces of others; ``avals`` are those of ``args``."""
        del avals
        with current_trace(trace):
            return trace.process(self, tuple(args), params)

    def get_bind_params(self, params: dict[str, Any]) -> dict[str, Any]:
        """Arguments of ``bind`` for the params of an equation, for interpreters of jaxprs."""
        return params

    def __repr__(self) -> str:
        return self.name

    def __deepcopy__(self, memo: dict[int, Any]) -> Primitive:
        """An op with the same rules, whose fields may be assigned: so libraries make theirs."""
        copied = object.__new__(_Copy if type(self) is Primitive else type(self))
        copied.__dict__.update(self.__dict__)
        return copied


class _Copy(Primitive):
    __setattr__ = object.__setattr__


_RECORDS = {
    "derivatives": Derivatives,
    "programs": HeldPrograms,
    "placement": Placement,
    "checks": Checks,
    "sweep": Sweep,
}
_RECORD_OF = {rule.name: name for name, kind in _RECORDS.items() for rule in fields(kind)}


def make_primitive(name: str, shape: Callable[..., Any], **rules: Any) -> Primitive:
    """Make a primitive.

    Args:
        name: as printed in jaxprs.
        shape: see ``Primitive``.
        **rules: fields of ``Primitive``, and of the records in it.
    """
    records: dict[str, dict[str, Any]] = {key: {} for key in _RECORDS}
    own = {rule: value for rule, value in rules.items() if rule not in _RECORD_OF}
    for rule in rules.keys() - own.keys():
        records[_RECORD_OF[rule]][rule] = rules[rule]
    others = {key: _RECORDS[key](**values) for key, values in records.items() if values}
    return Primitive(name, shape, **own, **others)


_registry: dict[str, Primitive] = {}


def register(op: Primitive) -> Primitive:
    """Enter ``op`` into the registry that the op sweep of the tests walks."""
    if op.name in _registry:
        raise ValueError(f"[{op.name}] a primitive of this name exists already.")
    _registry[op.name] = op
    return op


def registry() -> dict[str, Primitive]:
    """All registered primitives by name."""
    return dict(_registry)
