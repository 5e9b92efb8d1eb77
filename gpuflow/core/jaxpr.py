"""Jaxprs: traced programs as frozen data, with a printer, a checker and an evaluator.

Tests: tests/core/test_jaxpr.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any, final

import numpy as np

from gpuflow.base.dtypes import canonicalize
from gpuflow.base.records import record
from gpuflow.base.util import SourceLocation, safe_zip
from gpuflow.core.aval import ShapedArray, aval_of, register_value_type
from gpuflow.core.primitive import Primitive
from gpuflow.core.source_info import DebugInfo, NameStack, SourceInfo
from gpuflow.core.trace import thread_state


class JaxprTypeError(TypeError):
    """A jaxpr that breaks its own rules: a bug in a transformation."""


class Var:
    """A variable of a jaxpr; identity is its name.

    It is defined once: as an input, a constvar, or an output of one equation.
    """

    __slots__ = ("aval",)

    def __init__(self, aval: ShapedArray) -> None:
        self.aval = aval

    def __repr__(self) -> str:
        return f"Var(id={id(self):#x}):{self.aval}"


class DropVar(Var):
    """An unused output; printed as ``_``."""

    __slots__ = ()


@final
class Literal:
    """A scalar written into a jaxpr.

    Attributes:
        value: a NumPy scalar.
        aval: its type; it may be weak.
    """

    __slots__ = ("aval", "value")

    def __init__(self, value: Any, aval: ShapedArray) -> None:
        self.value = value
        self.aval = aval

    @property
    def val(self) -> Any:
        """The value, under its name in JAX: a Python scalar if its type is weak."""
        operand = self.operand
        return self.value if operand is self else operand

    @property
    def hash(self) -> int:
        """A hash of the value: equal literals have equal ones."""
        return hash((self.value.item(), self.value.dtype))

    @property
    def operand(self) -> Any:
        """The value as an operand of bind: a Python scalar if it is of weak type or a bool.

        The compiler uses int64 indices with any settings: such a literal is itself the operand,
        as its value alone would become an int32.
        """
        if self.aval.weak_type:
            scalar = self.value.item()
            if aval_of(scalar) is self.aval:
                return scalar
        if type(self.value) is np.bool_:
            return bool(self.value)
        return self.value if aval_of(self.value).dtype == self.aval.dtype else self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.value, dtype or self.aval.dtype)

    def __repr__(self) -> str:
        return f"{self.value}:{self.aval}"


def _literal_aval(literal: Literal) -> ShapedArray:
    return literal.aval


register_value_type(Literal, _literal_aval)
Atom = Var | Literal


_NAMES_IN_JAX = {"inputs": "invars", "outputs": "outvars"}


@record(eq=False)
class Eqn:
    """One application of a primitive. Compares and hashes by identity.

    Attributes:
        primitive: the primitive.
        inputs: its operands.
        outputs: new variables, one for each result; unused ones may be a ``DropVar``.
        params: its parameters by name; they must not be changed, as equations share them.
        source: the line of the user's program that bound it, if known.
        effects: its effects; a subset of those of the jaxpr.
    """

    primitive: Primitive
    inputs: tuple[Atom, ...]
    outputs: tuple[Var, ...]
    params: dict[str, Any]
    source: SourceLocation | None = None
    effects: frozenset[Any] = frozenset()

    def replace(self, **changes: Any) -> Eqn:
        """A copy with some fields changed; they may have their names in JAX."""
        for name, theirs in _NAMES_IN_JAX.items():
            if theirs in changes:
                changes[name] = tuple(changes.pop(theirs))
        if "source_info" in changes:
            changes["source"] = changes.pop("source_info").traceback
        return Eqn(**{**self.__dict__, **changes})

    # JAX's names, for interpreters of jaxprs.

    @property
    def invars(self) -> list[Atom]:
        """The inputs."""
        return list(self.inputs)

    @property
    def outvars(self) -> list[Var]:
        """The outputs."""
        return list(self.outputs)

    @property
    def source_info(self) -> SourceInfo:
        """The line of source that made the equation."""
        return SourceInfo(self.source, NameStack())


@record(eq=False)
class Jaxpr:
    """A program of equations in SSA form. Compares and hashes by identity.

    ``check_jaxpr`` checks the invariants: variables are defined once and before their use, outputs
    of equations match the shape rules, and effects of equations are effects of the jaxpr.

    Attributes:
        constvars: variables whose values a ``ClosedJaxpr`` has.
        invars: the inputs.
        outvars: the outputs: variables or literals; one variable may occur several times.
        eqns: the equations, in an order in which they can run.
        effects: the effects of all equations, inner programs included.
        argument_names: names of the inputs for messages; empty if unknown.
    """

    constvars: tuple[Var, ...]
    invars: tuple[Var, ...]
    outvars: tuple[Atom, ...]
    eqns: tuple[Eqn, ...]
    effects: frozenset[Any] = frozenset()
    argument_names: tuple[str, ...] = ()
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def in_avals(self) -> list[ShapedArray]:
        return [var.aval for var in self.invars]

    @property
    def out_avals(self) -> list[ShapedArray]:
        return [var.aval for var in self.outvars]

    @property
    def debug_info(self) -> DebugInfo:
        """The known names of the arguments."""
        return DebugInfo("jit", "<unknown>", self.argument_names or None)

    def replace(self, **changes: Any) -> Jaxpr:
        """A copy with some fields changed, and with fresh caches.

        ``debug_info`` gives the names of arguments.
        """
        debug_info = changes.pop("debug_info", None)
        if debug_info is not None:
            changes["argument_names"] = tuple(debug_info.arg_names or ())
        for name in ("constvars", "invars", "outvars", "eqns"):
            if name in changes:
                changes[name] = tuple(changes[name])
        names = ("constvars", "invars", "outvars", "eqns", "effects", "argument_names")
        fields = {name: getattr(self, name) for name in names}
        return Jaxpr(**{**fields, **changes})

    def pretty_print(self) -> str:
        """The text, as ``str`` gives it."""
        return format_jaxpr(self)

    def memo(self, key: Any, make: Callable[[], Any]) -> Any:
        """A value derived from this jaxpr, computed once for each hashable ``key``.

        It lives as long as the jaxpr. It may be computed twice if two threads ask at once.
        """
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    def __str__(self) -> str:
        return format_jaxpr(self)


@record(eq=False)
class ClosedJaxpr:
    """A jaxpr with values for its constvars.

    A Jaxpr belongs to one ClosedJaxpr. Jaxprs inside of equations have no constants but concrete
    arrays, so that derived data can be cached.
    """

    jaxpr: Jaxpr
    consts: tuple[Any, ...] = ()

    @property
    def in_avals(self) -> list[ShapedArray]:
        return self.jaxpr.in_avals

    @property
    def out_avals(self) -> list[ShapedArray]:
        return self.jaxpr.out_avals

    @property
    def eqns(self) -> tuple[Eqn, ...]:
        return self.jaxpr.eqns

    @property
    def effects(self) -> frozenset[Any]:
        return self.jaxpr.effects

    @property
    def constvars(self) -> tuple[Var, ...]:
        """The variables of the constants."""
        return self.jaxpr.constvars

    @property
    def invars(self) -> tuple[Var, ...]:
        """The variables of the inputs."""
        return self.jaxpr.invars

    @property
    def outvars(self) -> tuple[Atom, ...]:
        """The outputs."""
        return self.jaxpr.outvars

    def replace(
        self, *, jaxpr: Jaxpr | None = None, consts: Sequence[Any] | None = None
    ) -> ClosedJaxpr:
        """A copy with another program or other constants."""
        return ClosedJaxpr(jaxpr or self.jaxpr, tuple(self.consts if consts is None else consts))

    def map_jaxpr(self, function: Callable[[Jaxpr], Jaxpr]) -> ClosedJaxpr:
        """The program that a function makes of this one, with the same constants."""
        return ClosedJaxpr(function(self.jaxpr), self.consts)

    def pretty_print(self) -> str:
        """The text, as ``str`` gives it."""
        return str(self)

    @property
    def literals(self) -> tuple[Any, ...]:
        """The values of the constants, under their older name in JAX."""
        return self.consts

    def __call__(self, *operands: Any) -> list[Any]:
        """Evaluate under the current trace."""
        return evaluate(self.jaxpr, self.consts, operands)

    def __str__(self) -> str:
        return format_jaxpr(self.jaxpr)

    __repr__ = __str__


def evaluate(jaxpr: Jaxpr, consts: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """Bind every equation of ``jaxpr`` under the current trace.

    Args:
        jaxpr: the program.
        consts: values of its constvars.
        operands: values of its inputs, of their shapes and dtypes; nothing checks that.
    """
    env: dict[Var, Any] = {}
    for var, value in safe_zip(jaxpr.constvars, consts):
        env[var] = value
    for var, value in safe_zip(jaxpr.invars, operands):
        env[var] = value

    def read(atom: Atom) -> Any:
        return atom.operand if type(atom) is Literal else env[atom]

    around = thread_state.source
    try:
        for eqn in jaxpr.eqns:
            thread_state.source = eqn.source or around
            outs = eqn.primitive.bind(*[read(atom) for atom in eqn.inputs], **eqn.params)
            if eqn.primitive.multiple_results:
                env.update(safe_zip(eqn.outputs, outs))
            else:
                env[eqn.outputs[0]] = outs
    finally:
        thread_state.source = around
    return [read(atom) for atom in jaxpr.outvars]


def one_op(
    primitive: Primitive, avals: Sequence[ShapedArray], params: dict[str, Any]
) -> ClosedJaxpr:
    """A program that is one equation."""
    inputs = tuple([Var(aval) for aval in avals])
    outs = primitive.shape(*avals, **params)
    outputs = tuple([Var(aval) for aval in (outs if primitive.multiple_results else (outs,))])
    effects = primitive.effects(params)
    eqn = Eqn(primitive, inputs, outputs, params, None, effects)
    return ClosedJaxpr(Jaxpr((), inputs, outputs, (eqn,), effects))


def subjaxprs(eqn: Eqn) -> list[ClosedJaxpr]:
    """The jaxprs that ``eqn`` holds."""
    rule = eqn.primitive.subjaxprs
    return rule(eqn.params) if rule else []


def all_eqns(jaxpr: Jaxpr) -> Iterator[Eqn]:
    """Every equation of ``jaxpr``, nested ones included."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in subjaxprs(eqn):
            yield from all_eqns(inner.jaxpr)


# --- checking ------------------------------------------------------------------------------


def check_jaxpr(jaxpr: Jaxpr) -> None:
    """Check scope, avals against shape rules, and effects.

    Raises:
        JaxprTypeError: a variable is used before its definition or defined twice, an output's aval
            differs from the shape rule, or an effect is missing.
    """
    defined: set[Var] = set()

    def define(var: Var) -> None:
        if var in defined:
            raise JaxprTypeError(f"[jaxpr] a variable must be defined once; got {var} twice.")
        defined.add(var)

    for var in (*jaxpr.constvars, *jaxpr.invars):
        define(var)
    for eqn in jaxpr.eqns:
        _check_reads(eqn.inputs, defined, eqn.primitive.name)
        _check_eqn(eqn)
        for inner in subjaxprs(eqn):
            check_jaxpr(inner.jaxpr)
        if not eqn.effects <= jaxpr.effects:
            raise JaxprTypeError(
                f"[{eqn.primitive.name}] effects of an equation must be effects of its jaxpr; "
                f"got {set(eqn.effects - jaxpr.effects)} besides."
            )
        for var in eqn.outputs:
            define(var)
    _check_reads(jaxpr.outvars, defined, "outputs")


def _check_reads(atoms: Sequence[Atom], defined: set[Var], where: str) -> None:
    for atom in atoms:
        if isinstance(atom, Literal):
            value = aval_of(atom.value)
            if value.shape != atom.aval.shape or value.dtype != canonicalize(atom.aval.dtype):
                raise JaxprTypeError(f"[{where}] a literal must fit its aval; got {atom}.")
        elif atom not in defined:
            raise JaxprTypeError(f"[{where}] a variable must be defined before use; got {atom}.")


def _check_eqn(eqn: Eqn) -> None:
    try:
        outs = eqn.primitive.shape(*[atom.aval for atom in eqn.inputs], **eqn.params)
    except (TypeError, ValueError) as error:
        raise JaxprTypeError(
            f"[{eqn.primitive.name}] operands must pass the shape rule; got "
            f"{[str(atom.aval) for atom in eqn.inputs]}. ({error})"
        ) from error
    expected = list(outs) if eqn.primitive.multiple_results else [outs]
    got = [var.aval for var in eqn.outputs]
    expected_types = [(aval.shape, aval.dtype) for aval in expected]
    if expected_types != [(aval.shape, aval.dtype) for aval in got]:
        raise JaxprTypeError(
            f"[{eqn.primitive.name}] output avals must match the shape rule "
            f"{[str(aval) for aval in expected]}; got {[str(aval) for aval in got]}."
        )


# --- printing ------------------------------------------------------------------------------


class _Names:
    """Letters in order of first appearance: a ... z, ba, bb, ..."""

    def __init__(self) -> None:
        self.names: dict[Var, str] = {}

    def __call__(self, var: Var) -> str:
        if isinstance(var, DropVar):
            return "_"
        if var not in self.names:
            self.names[var] = _letters(len(self.names))
        return self.names[var]


def _letters(index: int) -> str:
    name = ""
    while True:
        index, digit = divmod(index, 26)
        name = chr(ord("a") + digit) + name
        if index == 0:
            return name


_WIDTH = 80


def format_jaxpr(jaxpr: Jaxpr, source_info: bool = False) -> str:
    """The familiar text form: ``{ lambda ; a:f32[3]. let b:f32[3] = sin a in (b,) }``."""
    return "\n".join(_jaxpr_rows(jaxpr, _Names(), source_info))


def format_eqns(jaxpr: Jaxpr, source_info: bool = True) -> tuple[list[str], Callable[[Var], str]]:
    """The equations of ``format_jaxpr`` with their source lines, and the names of variables."""
    names = _Names()
    for var in (*jaxpr.constvars, *jaxpr.invars):
        names(var)
    return ["\n".join(_eqn_rows(eqn, names, source_info)) for eqn in jaxpr.eqns], names


def _typed(var: Var, names: _Names) -> str:
    return f"{names(var)}:{var.aval}"


def _atom(atom: Atom, names: _Names) -> str:
    return f"{_scalar_text(atom.value)}:{atom.aval}" if isinstance(atom, Literal) else names(atom)


def _scalar_text(value: Any) -> str:
    return str(value.item() if hasattr(value, "item") else value)


def _jaxpr_rows(jaxpr: Jaxpr, names: _Names, source_info: bool) -> list[str]:
    consts = " ".join(_typed(var, names) for var in jaxpr.constvars)
    inputs = " ".join(_typed(var, names) for var in jaxpr.invars)
    head = f"{{ lambda {consts}; {inputs}. let" if consts else f"{{ lambda ; {inputs}. let"
    body = [_eqn_rows(eqn, names, source_info) for eqn in jaxpr.eqns]
    outs = ", ".join(_atom(atom, names) for atom in jaxpr.outvars)
    tail = f"in ({outs}{',' if len(jaxpr.outvars) == 1 else ''}) }}"
    if all(len(rows) == 1 for rows in body):
        single = " ".join([head, " ".join(rows[0] for rows in body), tail])
        if len(single) <= _WIDTH and len(body) <= 1:
            return [single]
    rows = [head]
    for eqn_rows in body:
        rows.extend("    " + row for row in eqn_rows)
    return [*rows, "  " + tail]


def _eqn_rows(eqn: Eqn, names: _Names, source_info: bool) -> list[str]:
    operands = " ".join(_atom(atom, names) for atom in eqn.inputs)
    outs = " ".join(_typed(var, names) for var in eqn.outputs)
    params = _param_rows(eqn, names, source_info)
    lead = f"{outs} = {eqn.primitive.name}"
    note = f"  # {eqn.source.short}" if source_info and eqn.source else ""
    flat = all(len(rows) == 1 for rows in params)
    if flat:
        inner = " ".join(rows[0] for rows in params)
        single = f"{lead}[{inner}]" if inner else lead
        # Operands do not count: only the brackets can be broken.
        if len(single) <= _WIDTH - 4 or not params:
            return [f"{single} {operands}{note}"]
    rows = [lead + "["]
    for param in params:
        rows.extend("  " + row for row in param)
    return [*rows, f"] {operands}{note}"]


def _shown_params(eqn: Eqn) -> dict[str, Any]:
    """The params without a shape that the output's type shows already."""
    if not (eqn.inputs and eqn.outputs):
        return eqn.params
    if eqn.params.get("shape") != eqn.outputs[0].aval.shape:
        return eqn.params
    return {key: value for key, value in eqn.params.items() if key != "shape" and value != ()}


def _param_rows(eqn: Eqn, names: _Names, source_info: bool) -> list[list[str]]:
    result = []
    params = _shown_params(eqn)
    for key in sorted(params):
        value = params[key]
        if value is None and key not in ("sharding", "strides", "out_sharding"):
            continue
        if isinstance(value, ClosedJaxpr):
            value = value.jaxpr
        if isinstance(value, Jaxpr):
            inner = _jaxpr_rows(value, names, source_info)
            result.append([f"{key}={inner[0]}", *inner[1:]])
        else:
            result.append([f"{key}={_param_text(value)}"])
    return result


def _param_text(value: Any) -> str:
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    return str(value)
