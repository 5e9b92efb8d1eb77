"""Staging: running a Python function on tracers that record every bind as an equation.

Tests: tests/core/test_staging.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.config import config
from gpuflow.base.util import SourceLocation, safe_zip
from gpuflow.core.aval import ShapedArray, aval_of, check_fits
from gpuflow.core.jaxpr import ClosedJaxpr, DropVar, Eqn, Jaxpr, Literal, Var, check_jaxpr
from gpuflow.core.trace import (
    Trace,
    Tracer,
    current_trace,
    made_at,
    raise_leaked_tracer,
    source_location,
    thread_state,
    with_trace,
)


class StagedTracer(Tracer):
    """A variable of the jaxpr that is being recorded."""

    __slots__ = ("_source", "atom")

    def __init__(self, trace: StagingTrace, atom: Var, source: SourceLocation | None) -> None:
        self._trace = trace
        self.atom = atom
        self.aval = atom.aval
        self._source = source

    def describe(self) -> str:
        name = self._trace.argument_names.get(self.atom)
        if name:
            return f"the argument {name} of {self._trace.function_name}"
        location = f"made at {self._source}" if self._source else ""
        names = self._trace.arguments_behind(self.atom)
        if not names:
            return location
        plural = "s" if len(names) > 1 else ""
        function = self._trace.function_name
        return f"{location} from the argument{plural} {', '.join(names)} of {function}".strip()


class StagingTrace(Trace):
    """Records equations. Values of other traces become constants of the jaxpr."""

    __slots__ = (
        "argument_names",
        "const_values",
        "consts",
        "effects",
        "eqns",
        "function_name",
        "is_manual",
        "ref_cells",
    )

    def __init__(self, parent: Trace, function_name: str = "the function") -> None:
        super().__init__(parent)
        self.eqns: list[Eqn] = []
        self.effects: set[Any] = set()
        self.consts: dict[int, Var] = {}  # id of a closed-over value -> its constvar
        self.const_values: list[Any] = []  # keeps the ids alive
        self.argument_names: dict[Var, str] = {}
        self.function_name = function_name
        self.is_manual = bool(config.varying_axes)  # types have the axes along which values vary
        self.ref_cells: dict[Any, Any] | None = None  # core/refs.py; None: refs are refused

    def new_argument(self, aval: ShapedArray, name: str = "") -> StagedTracer:
        """A fresh input variable."""
        var = Var(aval)
        if name:
            self.argument_names[var] = name
        return StagedTracer(self, var, None)

    def arguments_behind(self, atom: Var) -> list[str]:
        """Names of the arguments that ``atom`` depends on, in order; for error messages."""
        reached = {atom}
        for eqn in reversed(self.eqns):
            if not reached.isdisjoint(eqn.outputs):
                reached.update(var for var in eqn.inputs if type(var) is Var)
        return [name for var, name in self.argument_names.items() if var in reached]

    def atom_of(self, value: Any) -> Var | Literal:
        """The variable or literal of ``value``; captured arrays become consts."""
        if isinstance(value, StagedTracer) and value._trace is self:
            return value.atom
        if type(value) in _LITERAL_TYPES:
            aval = aval_of(value)
            if type(value) is int:
                check_fits(value, aval.dtype)
            with np.errstate(all="ignore"):  # a float64 may be infinite in float32
                return Literal(np.asarray(value).astype(aval.dtype)[()], aval)
        return value if type(value) is Literal else self._const(value)

    def _const(self, value: Any) -> Var | Literal:
        if isinstance(value, Tracer) and value._trace.finished:
            raise_leaked_tracer(value, "staging")
        var = self.consts.get(id(value))
        if var is None:
            var = self.consts[id(value)] = Var(aval_of(value))
            self.const_values.append(value)
        return var

    def process(self, primitive: Any, operands: tuple[Any, ...], params: dict[str, Any]) -> Any:
        if self.finished:
            self._raise_finished(operands, primitive.name)
        if primitive.programs.close is not None:
            operands, params = primitive.programs.close(operands, params)
        return self.record(primitive, operands, params)

    def record(self, primitive: Any, operands: Sequence[Any], params: dict[str, Any]) -> Any:
        """Append an equation; returns tracers of its outputs."""
        atoms = tuple([self.atom_of(value) for value in operands])
        out = primitive.shape(*[atom.aval for atom in atoms], **params)
        effects = primitive.effects(params)
        source = source_location()
        avals = out if primitive.multiple_results else (out,)
        if self.is_manual and primitive.subjaxprs is None:
            avals = _varying(primitive, atoms, params, avals)
        outputs = tuple([Var(aval) for aval in avals])
        self.eqns.append(Eqn(primitive, atoms, outputs, params, source, effects))
        if effects:
            self.effects |= effects
        if primitive.multiple_results:
            return [StagedTracer(self, var, source) for var in outputs]
        return StagedTracer(self, outputs[0], source)

    def _raise_finished(self, operands: Sequence[Any], name: str) -> None:
        for value in operands:
            if self.owns(value):
                raise_leaked_tracer(value, name)

    def finish(
        self, arguments: Sequence[StagedTracer], outs: Sequence[Any]
    ) -> tuple[Jaxpr, list[Any]]:
        """The recorded jaxpr and the values of its constvars."""
        outvars = tuple(self.atom_of(value) for value in outs)
        self.finished = True
        invars = tuple(argument.atom for argument in arguments)
        names = tuple(self.argument_names.get(var, "") for var in invars)
        jaxpr = Jaxpr(
            tuple(self.consts.values()),
            invars,
            outvars,
            _mark_dropped(self.eqns, outvars),
            frozenset(self.effects),
            names,
        )
        if config.environment.check:
            check_jaxpr(jaxpr)
        return jaxpr, self.const_values


def _varying(
    primitive: Any,
    atoms: Sequence[Var | Literal],
    params: dict[str, Any],
    avals: Sequence[ShapedArray],
) -> list[ShapedArray]:
    """The avals of outputs, with the axes of shard_map along which these vary."""
    varying = [atom.aval.mat.varying for atom in atoms]
    if primitive.placement.varies is not None:
        along = primitive.placement.varies(varying, params)
    else:
        along = [frozenset().union(*varying)] * len(avals)
    return [aval.varying(names) for aval, names in safe_zip(avals, along)]


_LITERAL_TYPES = frozenset(
    {bool, int, float, complex, np.bool_, dtypes.bfloat16.type}
    | {np.dtype(code).type for code in "bhilqBHILQefdFD"}
)


def _mark_dropped(eqns: list[Eqn], outvars: Sequence[Any]) -> tuple[Eqn, ...]:
    used = {atom for eqn in eqns for atom in eqn.inputs if type(atom) is Var}
    used.update(atom for atom in outvars if type(atom) is Var)
    result = []
    for eqn in eqns:
        if all(var in used for var in eqn.outputs):
            result.append(eqn)
        else:
            outs = tuple(var if var in used else DropVar(var.aval) for var in eqn.outputs)
            result.append(eqn.replace(outputs=outs))
    return tuple(result)


def trace_to_jaxpr(
    function: Callable[..., Sequence[Any]],
    avals: Sequence[ShapedArray],
    names: Sequence[str] = (),
    function_name: str = "the function",
) -> tuple[Jaxpr, list[Any]]:
    """Record ``function(*tracers)``, which returns a flat sequence.

    Returns:
        The jaxpr, and the values of its constvars (closed-over arrays and tracers).
    """
    return with_trace(
        lambda: StagingTrace(thread_state.trace, function_name),
        lambda trace: _record(trace, function, avals, names or [""] * len(avals)),
    )


def _record(
    trace: StagingTrace,
    function: Callable[..., Sequence[Any]],
    avals: Sequence[ShapedArray],
    names: Sequence[str],
) -> tuple[Jaxpr, list[Any]]:
    arguments = [trace.new_argument(aval, name) for aval, name in safe_zip(avals, names)]
    try:
        with current_trace(trace), made_at(None):
            outs = function(*arguments)
            return trace.finish(arguments, outs)
    finally:
        trace.finished = True


def trace_closed(
    function: Callable[..., Sequence[Any]], avals: Sequence[ShapedArray]
) -> ClosedJaxpr:
    """``trace_to_jaxpr`` as a ClosedJaxpr."""
    jaxpr, consts = trace_to_jaxpr(function, avals)
    return ClosedJaxpr(jaxpr, tuple(consts))


def hoist_consts(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr with its constvars as leading inputs."""
    return jaxpr.replace(
        constvars=(),
        invars=(*jaxpr.constvars, *jaxpr.invars),
        argument_names=("",) * len(jaxpr.constvars) + jaxpr.argument_names,
    )
