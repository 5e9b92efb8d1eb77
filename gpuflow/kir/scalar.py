"""The closed table of machine functions that ``nodes.Apply`` may name.

A scalar function works on scalars. Its definition is ``ScalarFunction.__call__``, in NumPy. Each
function has a result rule, which also defines the accepted dtypes:

    same          arguments of one dtype of ``kinds``, result of that dtype
    comparison    arguments of one dtype of ``kinds``, result bool
    others        a fixed signature, written in the table

A new function also needs code in the printers of both targets.

Tests: tests/kir/test_kir_scalar.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuflow.base.records import record
from gpuflow.kir import reference

COMPUTE_DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
)

# Storage types that compute in float32.
FLOAT8_DTYPES = (
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3b11fnuz",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e3m4",
    "float8_e4m3",
)
NARROW_DTYPES = ("float16", "bfloat16", *FLOAT8_DTYPES)

# Storage types of two components, with the dtype of each.
COMPONENT_DTYPES = {"complex64": "float32", "complex128": "float64"}


# Functions whose result a narrow dtype holds exactly if it holds their arguments, so that it needs
# no rounding.
EXACT_ON_NARROW = frozenset(
    (
        "abs",
        "ceil",
        "copysign",
        "floor",
        "max",
        "min",
        "neg",
        "rem",
        "round",
        "round_away",
        "sign",
        "trunc",
    )
)


def compute_dtype(storage: str) -> str:
    """The compute dtype of values loaded from ``storage``.

    Args:
        storage: name of a storage dtype.

    Returns:
        "float32" for the narrow floats, that of a component for complex numbers, else ``storage``.

    Raises:
        ValueError: there is no such storage dtype.
    """
    if storage in NARROW_DTYPES:
        return "float32"
    if storage in COMPONENT_DTYPES:
        return COMPONENT_DTYPES[storage]
    if storage in COMPUTE_DTYPES:
        return storage
    raise ValueError(
        f"[kir] an operand must have a storage dtype; got {storage!r}. "
        f"Fix: one of {', '.join(COMPUTE_DTYPES + NARROW_DTYPES + tuple(COMPONENT_DTYPES))}."
    )


def storage_bytes(storage: str) -> int:
    """The bytes of one stored element; bool is stored as one byte. Raises as compute_dtype."""
    compute_dtype(storage)
    if storage in NARROW_DTYPES:
        return 1 if storage in FLOAT8_DTYPES else 2
    return np.dtype(storage).itemsize


def dtype_kind(dtype: str) -> str:
    """The kind of a compute dtype: "bool", "int", "uint" or "float"."""
    return dtype.rstrip("0123456789")


ResultRule = Callable[[tuple[str, ...]], "tuple[str, ...] | None"]


@record
class ScalarFunction:
    """One row of the table.

    Attributes:
        name: its name in ``Apply.fn``.
        arity: number of arguments.
        kinds: kinds of argument dtypes that it accepts (see ``dtype_kind``).
        result_rule: argument dtypes to result dtypes, or None where it does not apply. It is called
            only with ``arity`` dtypes of ``kinds``.
        definition: the result arrays from argument arrays, in NumPy.
    """

    name: str
    arity: int
    kinds: frozenset[str]
    result_rule: ResultRule
    definition: Callable[..., object]

    def results(self, dtypes: tuple[str, ...]) -> tuple[str, ...]:
        """The result dtypes for argument dtypes; TypeError where the function does not apply."""
        dtypes = tuple(dtypes)
        are_accepted = all(d in COMPUTE_DTYPES and dtype_kind(d) in self.kinds for d in dtypes)
        result_dtypes = (
            self.result_rule(dtypes) if are_accepted and len(dtypes) == self.arity else None
        )
        if result_dtypes is None:
            raise TypeError(
                f"[{self.name}] must have {self.arity} arguments of one suitable dtype of kinds "
                f"{sorted(self.kinds)}; got ({', '.join(dtypes)}). Fix: cast the arguments."
            )
        return result_dtypes

    def __call__(self, *args: np.ndarray) -> tuple[np.ndarray, ...]:
        """Evaluate the definition on arrays (after broadcasting); always a tuple of results."""
        arrays = [np.asarray(arg) for arg in args]
        dtypes = self.results(tuple(array.dtype.name for array in arrays))
        with np.errstate(all="ignore"):
            results = self.definition(*arrays)
        outputs = results if isinstance(results, tuple) else (results,)
        pairs = zip(outputs, dtypes, strict=True)
        return tuple(np.asarray(output).astype(dtype, copy=False) for output, dtype in pairs)


def _same(dtypes: tuple[str, ...]) -> tuple[str, ...] | None:
    return dtypes[:1] if len(set(dtypes)) == 1 else None


def _comparison(dtypes: tuple[str, ...]) -> tuple[str, ...] | None:
    return ("bool",) if len(set(dtypes)) == 1 else None


def _fixed_signature(arguments: tuple[str, ...], results: tuple[str, ...]) -> ResultRule:
    return lambda dtypes: results if dtypes == arguments else None


def _bitcast_to(target: str) -> ResultRule:
    width = np.dtype(target).itemsize
    return lambda dtypes: (target,) if np.dtype(dtypes[0]).itemsize == width else None


FLOAT = frozenset({"float"})
INTEGER = frozenset({"int", "uint"})
NUMBER = FLOAT | INTEGER
BITS = INTEGER | {"bool"}
ANY = NUMBER | {"bool"}


def _family(rule: ResultRule, kinds: frozenset[str], arity: int, **definitions: Callable) -> dict:
    """Rows that share rule, kinds and arity. A trailing underscore avoids Python's keywords."""
    names = {name.rstrip("_"): definition for name, definition in definitions.items()}
    return {name: ScalarFunction(name, arity, kinds, rule, d) for name, d in names.items()}


_ARITHMETIC = {
    **_family(_same, NUMBER, 1, neg=np.negative, abs=np.abs, sign=reference.sign),
    **_family(_same, NUMBER, 2, add=np.add, sub=np.subtract, mul=np.multiply),
    **_family(_same, NUMBER, 2, max=reference.maximum, min=reference.minimum),
    **_family(_same, NUMBER, 2, div=reference.divide, rem=reference.remainder),
    **_family(_same, FLOAT, 1, floor=np.floor, ceil=np.ceil, trunc=np.trunc, round=np.rint),
    **_family(_same, FLOAT, 1, round_away=reference.round_away),
    **_family(_same, FLOAT, 2, nextafter=np.nextafter, copysign=np.copysign),
    **_family(_same, FLOAT, 3, fma=reference.fma),
}

TRANSCENDENTAL = {
    **_family(_same, FLOAT, 1, sqrt=np.sqrt, rsqrt=reference.rsqrt, cbrt=np.cbrt),
    **_family(_same, FLOAT, 1, exp=np.exp, exp2=np.exp2, expm1=np.expm1),
    **_family(_same, FLOAT, 1, log=np.log, log1p=np.log1p, log2=np.log2),
    **_family(_same, FLOAT, 1, sin=np.sin, cos=np.cos, tan=np.tan),
    **_family(_same, FLOAT, 1, asin=np.arcsin, acos=np.arccos, atan=np.arctan),
    **_family(_same, FLOAT, 1, sinh=np.sinh, cosh=np.cosh, tanh=np.tanh),
    **_family(_same, FLOAT, 1, asinh=np.arcsinh, acosh=np.arccosh, atanh=np.arctanh),
    **_family(_same, FLOAT, 2, atan2=np.arctan2, pow=np.power, hypot=np.hypot),
    **_family(_same, FLOAT, 1, erf=reference.scipy_special("erf")),
    **_family(_same, FLOAT, 1, erfc=reference.scipy_special("erfc")),
    **_family(_same, FLOAT, 1, erf_inv=reference.erf_inv),
    **_family(_same, FLOAT, 1, lgamma=reference.lgamma, digamma=reference.digamma),
    **_family(_same, FLOAT, 1, logistic=reference.logistic),
}

# Functions that take several instructions, and those that divide: costs for schedules.
EXPENSIVE = frozenset({*TRANSCENDENTAL, "div", "rem"})

# Functions whose result differs little if the arguments do.
CONTINUOUS = frozenset(
    {*TRANSCENDENTAL, "neg", "abs", "add", "sub", "mul", "div", "max", "min", "fma"}
)

_LOGICAL = {
    **_family(_comparison, ANY, 2, eq=np.equal, ne=np.not_equal, lt=np.less),
    **_family(_comparison, ANY, 2, le=np.less_equal, gt=np.greater, ge=np.greater_equal),
    **_family(_comparison, FLOAT, 1, is_finite=np.isfinite),
    **_family(_same, BITS, 2, and_=np.bitwise_and, or_=np.bitwise_or, xor=np.bitwise_xor),
    **_family(_same, BITS, 1, not_=np.invert),
    **_family(_same, INTEGER, 2, shift_left=reference.shift_left),
    **_family(_same, INTEGER, 2, shift_right_logical=reference.shift_right_logical),
    **_family(_same, INTEGER, 2, shift_right_arithmetic=reference.shift_right_arithmetic),
    **_family(_same, INTEGER, 1, population_count=reference.population_count, clz=reference.clz),
}


def _round_function(storage: str) -> ScalarFunction:
    rule = _fixed_signature(("float32",), ("float32",))
    return ScalarFunction(f"round_{storage}", 1, FLOAT, rule, reference.rounding(storage))


def _bitcast_function(target: str) -> ScalarFunction:
    rule = _bitcast_to(target)
    return ScalarFunction(f"bitcast_{target}", 1, NUMBER, rule, reference.bitcast(target))


_CONVERSIONS = {
    function.name: function
    for function in (
        *(_round_function(storage) for storage in NARROW_DTYPES),
        *(_bitcast_function(target) for target in COMPUTE_DTYPES if target != "bool"),
    )
}

_RANDOM = _family(
    _fixed_signature(("uint32",) * 4, ("uint32",) * 2),
    frozenset({"uint"}),
    4,
    threefry2x32=reference.threefry2x32,
)

FUNCTIONS: dict[str, ScalarFunction] = {
    **_ARITHMETIC,
    **TRANSCENDENTAL,
    **_LOGICAL,
    **_CONVERSIONS,
    **_RANDOM,
}
