"""Programs as JSON, and back: jaxprs, and the params of their equations.

Ints, strings, bools and None represent themselves. Everything else is a list that begins with its
kind:

    ["float", hex]  ["tuple", ...]  ["dict", [key, value], ...]  ["type", dtype, shape, weak]
    ["array", k]    ["program", k]  ["record", "module:Class", fields ...]

A program is ``{"in": types, "eqns": [[op, inputs, output types, params], ...], "out": atoms}``: an
atom is the index of its variable, in the order of definition, or a literal. Classes and functions
are those of gpuflow alone: a name of anything else is refused when written and when read.

Tests: tests/ops/test_exported_ops.py, tests/test_export_files.py.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import ExportError, check
from gpuflow.base.tree import TreeDef
from gpuflow.compiler.passes.program import inline, is_call
from gpuflow.core.aval import NOT_MANUAL, ShapedArray, aval_of
from gpuflow.core.dtype_names import dtype_of, name_of
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, DropVar, Eqn, Jaxpr, Literal, Var
from gpuflow.core.primitive import Primitive, registry
from gpuflow.core.sharding import Mesh, Sharding
from gpuflow.export.schema import check_list, check_type, expect, is_index, is_size, is_text
from gpuflow.export.trees import OURS, looked_up, structure_from, structure_record
from gpuflow.runtime.array import Array, as_numpy, from_numpy

_PLAIN = (type(None), bool, int, str)
_MAX_INTEGER = 1 << 64
_MAX_ELEMENTS = 1 << 58  # so that their size in bytes cannot overflow, whatever the dtype


class Writer:
    """Writes programs; ``programs`` and ``arrays`` hold the targets of references by index."""

    def __init__(self) -> None:
        self.programs: list[Any] = []
        self.arrays: list[tuple[np.ndarray, ShapedArray, bool]] = []
        self._known: dict[int, int] = {}
        self._retained: list[Any] = []  # so that no id is given twice
        self._eqn: Eqn | None = None

    def program(self, closed: ClosedJaxpr) -> int:
        """The index of a program, which is written once."""
        number = self._known.get(id(closed))
        if number is None:
            self._retained.append(closed)
            record = self._jaxpr(closed)
            number = self._known[id(closed)] = len(self.programs)
            self.programs.append(record)
        return number

    def _jaxpr(self, closed: ClosedJaxpr) -> dict[str, Any]:
        jaxpr = inline(closed.jaxpr, is_call)
        check(
            not jaxpr.effects,
            lambda: (
                "[export] an exported program must have no effects; got "
                f"{', '.join(sorted(map(str, jaxpr.effects)))}{_where(_with_effects(jaxpr))}. "
                "Fix: take callbacks, prints and collectives out of the exported function."
            ),
            ExportError,
        )
        variables: dict[Var, int] = {}

        def define(var: Var) -> Any:
            variables[var] = len(variables)
            record = self._type(var.aval)
            return ["drop", record] if type(var) is DropVar else record

        def atom(one: Atom) -> Any:
            if type(one) is not Literal:
                return variables[one]
            return ["literal", self.value(one.value), self._type(one.aval)]

        record: dict[str, Any] = {
            "consts": [self.value(value) for value in closed.consts],
            "const": [define(var) for var in jaxpr.constvars],
            "in": [define(var) for var in jaxpr.invars],
            "eqns": [self._equation(eqn, atom, define) for eqn in jaxpr.eqns],
        }
        record["out"] = [atom(one) for one in jaxpr.outvars]
        return record

    def _equation(
        self, eqn: Eqn, atom: Callable[[Atom], Any], define: Callable[[Var], Any]
    ) -> list[Any]:
        _check_portable(eqn, eqn.primitive)
        outer, self._eqn = self._eqn, eqn
        inputs = [atom(one) for one in eqn.inputs]
        params = [[name, self.value(value)] for name, value in sorted(eqn.params.items())]
        self._eqn = outer
        return [eqn.primitive.name, inputs, [define(var) for var in eqn.outputs], params]

    def _type(self, aval: ShapedArray) -> list[Any]:
        check(
            aval.mat is NOT_MANUAL,
            lambda: _many_devices(f"a value along axes of shard_map{_where(self._eqn)}"),
            ExportError,
        )
        return ["type", name_of(aval.dtype), list(aval.shape), aval.weak_type]

    def value(self, value: Any) -> Any:
        """The record of a constant, a literal or a param."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is float:
            return ["float", value.hex()]
        if kind is complex:
            return ["complex", value.real.hex(), value.imag.hex()]
        if kind in (tuple, list):
            return [kind.__name__, *map(self.value, value)]
        if kind is dict:
            return ["dict", *([self.value(k), self.value(v)] for k, v in value.items())]
        if kind is frozenset:
            return ["set", *map(self.value, sorted(value, key=repr))]
        if kind is slice:
            return ["slice", *map(self.value, (value.start, value.stop, value.step))]
        return self._object(value)

    def _object(self, value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return ["program", self.program(value)]
        if isinstance(value, Jaxpr):
            return ["jaxpr", self.program(value.memo("closed", lambda: ClosedJaxpr(value)))]
        if isinstance(value, ShapedArray):
            return self._type(value)
        if isinstance(value, Primitive):
            _check_portable(self._eqn, value)
            return ["op", value.name]
        if isinstance(value, np.generic):
            return _number(value)
        if isinstance(value, Array | np.ndarray):
            return self._array(value)
        if isinstance(value, TreeDef):
            return ["tree", structure_record(value)]
        if isinstance(value, Sharding | Mesh):
            raise ExportError(_many_devices(f"{value}{_where(self._eqn)}"))
        if _is_dtype(value):
            return ["dtype", name_of(value)]
        if isinstance(value, enum.Enum):
            return ["enum", self._name(type(value)), value.name]
        if isinstance(value, tuple):
            return ["named", self._name(type(value)), *map(self.value, value)]
        if is_dataclass(value) and not isinstance(value, type):
            taken = [self.value(getattr(value, f.name)) for f in fields(value) if f.init]
            return ["record", self._name(type(value)), *taken]
        return ["name", self._name(value)]

    def _array(self, value: Any) -> Any:
        is_host, aval = isinstance(value, np.ndarray), aval_of(value)
        if not aval.shape and not dtypes.is_extended(aval.dtype):
            return ["scalar", _number(np.asarray(as_numpy(value, aval))), aval.weak_type, is_host]
        if id(value) not in self._known:
            self._retained.append(value)
            self._known[id(value)] = len(self.arrays)
            self.arrays.append((np.asarray(as_numpy(value, aval)), aval, is_host))
        return ["array", self._known[id(value)]]

    def _name(self, value: Any) -> str:
        """The import path of a class or function of gpuflow."""
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        ours = isinstance(module, str) and module.startswith(OURS) and isinstance(name, str)
        if ours and looked_up(f"{module}:{name}") is value:
            return f"{module}:{name}"
        what = f"the {type(value).__name__} {name or value!r}"
        raise ExportError(
            f"[export] an exported program must hold data alone; got {what}{_where(self._eqn)}, "
            "which a process without the source does not have. Fix: take it out of the exported "
            "function."
        )


def _is_dtype(value: Any) -> bool:
    try:
        return dtype_of(name_of(value)) == value and not isinstance(value, type)
    except (AttributeError, TypeError, KeyError):
        return False


def _number(value: np.generic | np.ndarray) -> list[Any]:
    return ["number", name_of(value.dtype), np.asarray(value).tobytes().hex()]


def number_of(dtype: str, text: str) -> Any:
    """The scalar of a dtype's name and its bytes."""
    if not text:  # float0 has none
        return np.zeros((), dtype_of(dtype))[()]
    return np.frombuffer(bytes.fromhex(text), dtype_of(dtype))[0]


def _with_effects(jaxpr: Jaxpr) -> Eqn | None:
    return next((eqn for eqn in jaxpr.eqns if eqn.effects), None)


def _where(eqn: Eqn | None) -> str:
    """The op of an equation, and its source line."""
    if eqn is None:
        return ""
    return f" in {eqn.primitive.name}" + (f" ({eqn.source})" if eqn.source else "")


def _many_devices(what: str) -> str:
    return (
        f"[export] an exported program must use one device; got {what}. Fix: export the function "
        "without shardings, meshes and shard_map, and shard its arguments when you call it."
    )


def _check_portable(eqn: Eqn | None, primitive: Primitive) -> None:
    """Raise ExportError for objects that other processes do not have."""
    check(
        not primitive.lower.is_host_call,
        lambda: (
            f"[export] an exported program must not call Python; got {_where(eqn)[4:]}. Fix: take "
            "callbacks out of the exported function."
        ),
        ExportError,
    )
    check(
        registry().get(primitive.name) is primitive,
        lambda: (
            "[export] ops of an exported program must be gpuflow's own; got one from elsewhere"
            f"{_where(eqn)}. Fix: write it in terms of gpuflow's ops."
        ),
        ExportError,
    )


class Reader:
    """Makes programs of records.

    Args:
        programs: the records, as ``Writer`` left them.
        arrays: the arrays that they refer to.

    Raises:
        Exception: if the records are not programs of this version.
    """

    def __init__(self, programs: Sequence[Any], arrays: Sequence[Any]) -> None:
        self._arrays, self._ops = arrays, registry()
        self._programs: list[ClosedJaxpr] = []
        check_list(programs, lambda one: type(one) is dict, "the programs")
        for record in programs:  # each refers to earlier ones only
            self._programs.append(self._built(record))

    def program(self, number: int) -> ClosedJaxpr:
        """A program by its index."""
        return self._programs[number]

    def _built(self, record: dict[str, Any]) -> ClosedJaxpr:
        variables: list[Var] = []

        def define(record: Any) -> Var:
            expect(type(record) is list and len(record) > 1, "a variable", record)
            is_dropped = record[0] == "drop"
            aval = self.value(record[1] if is_dropped else record)
            expect(isinstance(aval, ShapedArray), "a variable's type", record)
            var = DropVar(aval) if is_dropped else Var(aval)
            variables.append(var)
            return var

        def atom(record: Any) -> Atom:
            if type(record) is int:
                expect(is_index(record, len(variables)), "a variable", record)
                return variables[record]
            is_literal = type(record) is list and len(record) == 3 and record[0] == "literal"
            expect(is_literal, "an operand", record)
            aval = self.value(record[2])
            expect(isinstance(aval, ShapedArray), "a literal's type", record)
            return Literal(self.value(record[1]), aval)

        consts = tuple(self.value(one) for one in record["consts"])
        constvars = tuple(map(define, record["const"]))
        expected, found = [
            [(a.shape, a.dtype) for a in avals]
            for avals in (
                [var.aval for var in constvars],
                list(map(aval_of, consts)),
            )
        ]
        expect(expected == found, "constants", record["const"])
        inputs = tuple(map(define, record["in"]))
        eqns = []
        for op, operands, outs, params in record["eqns"]:
            if op not in self._ops:
                raise ValueError(f"no op is called {op!r} here")
            taken = tuple(map(atom, operands))
            attributes = {name: self.value(value) for name, value in params}
            eqns.append(Eqn(self._ops[op], taken, tuple(map(define, outs)), attributes))
        outvars = tuple(map(atom, record["out"]))
        return ClosedJaxpr(Jaxpr(constvars, inputs, outvars, tuple(eqns)), consts)

    def value(self, record: Any) -> Any:
        """The value of a record."""
        if type(record) in _PLAIN:
            expect(type(record) is not int or abs(record) < _MAX_INTEGER, "a number", record)
            return record
        expect(type(record) is list and bool(record) and is_text(record[0]), "a value", record)
        kind, *items = record
        make = getattr(self, f"_{kind}", None) if kind in _KINDS else None
        if make is None:
            raise ValueError(f"no kind of record is called {kind!r} here")
        return make(*items)

    def _float(self, text: str) -> float:
        return float.fromhex(text)

    def _complex(self, real: str, imag: str) -> complex:
        return complex(float.fromhex(real), float.fromhex(imag))

    def _tuple(self, *items: Any) -> tuple[Any, ...]:
        return tuple([self.value(item) for item in items])

    def _list(self, *items: Any) -> list[Any]:
        return [self.value(item) for item in items]

    def _dict(self, *pairs: Any) -> dict[Any, Any]:
        return {self.value(key): self.value(value) for key, value in pairs}

    def _set(self, *items: Any) -> frozenset[Any]:
        return frozenset(self._list(*items))

    def _slice(self, *items: Any) -> slice:
        return slice(*self._list(*items))

    def _program(self, number: int) -> ClosedJaxpr:
        expect(is_index(number, len(self._programs)), "a program", number)
        return self._programs[number]

    def _jaxpr(self, number: int) -> Jaxpr:
        return self._program(number).jaxpr

    def _type(self, *items: Any) -> ShapedArray:
        check_type(list(items))
        dtype, shape, weak = items
        check_list(shape, is_size, "a shape")
        expect(math.prod(size for size in shape if size) <= _MAX_ELEMENTS, "a shape", shape)
        return ShapedArray(tuple(shape), dtype_of(dtype), weak)

    def _number(self, dtype: str, text: str) -> Any:
        return number_of(dtype, text)

    def _array(self, number: int) -> Any:
        expect(is_index(number, len(self._arrays)), "an array", number)
        return self._arrays[number]

    def _scalar(self, number: list[Any], weak: bool, is_host: bool) -> Any:
        expect(type(weak) is bool and type(is_host) is bool, "a scalar", [weak, is_host])
        value = np.asarray(self.value(number))
        expect(value.shape == () and value.dtype != object, "a scalar", number)
        return value if is_host else from_numpy(value, ShapedArray((), value.dtype, weak))

    def _tree(self, record: Any) -> TreeDef:
        return structure_from(record)

    def _op(self, name: str) -> Primitive:
        return self._ops[name]

    def _dtype(self, name: str) -> Any:
        return dtype_of(name)

    def _enum(self, path: str, name: str) -> Any:
        cls = looked_up(path)
        if not (isinstance(cls, type) and issubclass(cls, enum.Enum)):
            raise ValueError(f"no enumeration is called {path!r} here")
        return cls[name]

    def _named(self, path: str, *items: Any) -> Any:
        cls = looked_up(path)
        if not (isinstance(cls, type) and issubclass(cls, tuple)):
            raise ValueError(f"no named tuple is called {path!r} here")
        return cls(*self._list(*items))

    def _record(self, path: str, *items: Any) -> Any:
        cls = looked_up(path)
        if not (isinstance(cls, type) and is_dataclass(cls)):
            raise ValueError(f"no record is called {path!r} here")
        names = [f.name for f in fields(cls) if f.init]
        return cls(**dict(zip(names, self._list(*items), strict=True)))

    def _name(self, path: str) -> Any:
        found = looked_up(path)
        if found is None:
            raise ValueError(f"nothing is called {path!r} here")
        return found


_KINDS = frozenset(
    {"float", "complex", "tuple", "list", "dict", "set", "slice", "program", "jaxpr", "type"}
    | {"number", "array", "scalar", "op", "tree", "dtype", "enum", "named", "record", "name"}
)
