"""Expressions of printed CUDA source for scalar functions, casts, and storage dtypes.

Functions of libdevice are called by name: Numba's ``math.floor`` gives an integer, and ``math``
lacks a third of the table. Functions without an expression are device functions (``_HELPERS``),
which are printed into each module that calls them.

Tests: tests/targets/cuda/test_cuda_scalar.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuflow.kir.scalar import FLOAT8_DTYPES
from gpuflow.targets.kernel_walk import FLOATS

# KernelIR's name: libdevice's name for float64; that for float32 has the suffix f.
_LIBDEVICE = {
    "abs": "fabs",
    "rem": "fmod",
    "round": "rint",
    "round_away": "round",
    "erf_inv": "erfinv",
    **{
        name: name
        for name in (
            "floor", "ceil", "trunc", "nextafter", "copysign", "fma", "sqrt", "rsqrt", "cbrt",
            "exp", "exp2", "expm1", "log", "log1p", "log2", "sin", "cos", "tan", "asin", "acos",
            "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "atan2", "pow", "hypot",
            "erf", "erfc", "lgamma",
        )
    },
}  # fmt: skip

# Templates of float expressions: {T} is the NumPy type, {f} the suffix of libdevice's functions.
_FLOAT_TEMPLATES = {
    "max": "maximum({0}, {1})",
    "min": "minimum({0}, {1})",
    "sign": "(libdevice.copysign{f}({T}(1.0), {0}) if libdevice.fabs{f}({0}) > {T}(0.0) else {0})",
    "is_finite": "libdevice.fabs{f}({0}) < {T}(np.inf)",
}

_INTEGER_TEMPLATES = {
    "max": "({0} if {0} > {1} else {1})",
    "min": "({0} if {0} < {1} else {1})",
    "div": "divide_integers({0}, {1})",
    "rem": "remainder_integers({0}, {1})",
    "not": "{T}(~{0})",
    "shift_left": "shift_left_bits({0}, {1})",
    "shift_right_logical": "shift_right_zeros({0}, {1})",
    "shift_right_arithmetic": "shift_right_sign({0}, {1})",
    "population_count": "count_ones({0})",
    "clz": "count_leading_zeros({0})",
}

_SIGNED_TEMPLATES = {
    "abs": "({0} if {0} >= {T}(0) else {T}(-{0}))",
    "sign": "{T}({T}({0} > {T}(0)) - {T}({0} < {T}(0)))",
}

_UNSIGNED_TEMPLATES = {"abs": "{0}", "sign": "{T}({0} > {T}(0))"}

_LOGISTIC = """
@device_function
def logistic_{dtype}(x):
    # exp(-abs(x)) cannot overflow, and keeps the small results of large negative x.
    small = libdevice.exp{f}(-libdevice.fabs{f}(x))
    quotient = {T}(1.0) / ({T}(1.0) + small)
    return small * quotient if x < {T}(0.0) else quotient
"""

# Reflection to x >= 1/2, recurrence to x >= 10, asymptotic series: DLMF 5.5.4, 5.5.2 and 5.11.2.
# sinpi and cospi reduce their argument exactly.
_DIGAMMA = """
@device_function
def digamma_{dtype}(x):
    if x <= {T}(0.0) and x == libdevice.floor{f}(x):
        return {T}(np.nan)
    if x == {T}(np.inf):
        return x
    shifted = {T}(1.0) - x if x < {T}(0.5) else x
    correction = {T}(0.0)
    while shifted < {T}(10.0):
        correction += {T}(1.0) / shifted
        shifted += {T}(1.0)
    inverse = {T}(1.0) / shifted
    square = inverse * inverse
    series = {T}(0.0)
{series}
    positive = libdevice.log{f}(shifted) - {T}(0.5) * inverse - series - correction
    if x >= {T}(0.5):
        return positive
    cotangent = libdevice.cospi{f}(x) / libdevice.sinpi{f}(x)
    return positive - {T}(np.pi) * cotangent
"""
# Coefficients of the asymptotic series in 1 / x**2, the highest power first.
_DIGAMMA_SERIES = ("1 / 12", "-691 / 32760", "1 / 132", "-1 / 240", "1 / 252", "-1 / 120", "1 / 12")

# Templates of device functions, by KernelIR's name of the function.
_HELPERS = {"logistic": _LOGISTIC, "digamma": _DIGAMMA}


def spell_function(fn: str, arguments: Sequence[str], dtype: str) -> str:
    """The expression of a scalar function on arguments of ``dtype``, with that result dtype.

    Args:
        fn: a name of ``kir.scalar.FUNCTIONS`` for which Python has no operator.
        arguments: expressions without side effects.
        dtype: compute dtype of the first argument.

    Raises:
        KeyError: if the CUDA target lacks the function.
    """
    if fn in _HELPERS:
        return f"{fn}_{dtype}({arguments[0]})"
    if fn == "threefry2x32":
        return f"threefry2x32({', '.join(arguments)})"
    if fn.startswith("bitcast_"):
        return f"bitcast({arguments[0]}, np.{fn.removeprefix('bitcast_')})"
    if fn.startswith("round_"):
        storage = fn.removeprefix("round_")
        if storage == "bfloat16":
            return f"round_to_bfloat16({arguments[0]})"
        if storage in STORAGE_BITS:
            return widen(narrow(arguments[0], storage), storage)
    template = _template(fn, dtype)
    if template is None:
        raise KeyError(
            f"[cuda] fn must be a function of the CUDA target; got {fn!r} of {dtype}. "
            "Fix: add it to targets/cuda/codegen/printing/scalar_text.py."
        )
    return template.format(*arguments, T=f"np.{dtype}", f=_suffix(dtype))


def _template(fn: str, dtype: str) -> str | None:
    """The template of an expression, with {0}, {1}, {2} for the arguments; None: there is none."""
    if dtype == "bool":
        return "(not {0})" if fn == "not" else None
    if dtype in FLOATS:
        if fn in _LIBDEVICE:
            operands = {"fma": "{0}, {1}, {2}"}.get(fn, "{0}, {1}" if fn in _BINARY else "{0}")
            return f"libdevice.{_LIBDEVICE[fn]}{_suffix(dtype)}({operands})"
        return _FLOAT_TEMPLATES.get(fn)
    signed = _UNSIGNED_TEMPLATES if dtype.startswith("u") else _SIGNED_TEMPLATES
    return signed.get(fn) or _INTEGER_TEMPLATES.get(fn)


# Binary functions among ``_LIBDEVICE``; the others, without fma, are unary.
_BINARY = frozenset({"nextafter", "copysign", "atan2", "pow", "hypot", "rem"})


def _suffix(dtype: str) -> str:
    """The suffix of libdevice's functions of a float dtype."""
    return "f" if dtype == "float32" else ""


def function_helper(fn: str, dtype: str) -> str | None:
    """The text of the device function that ``spell_function`` calls; None: it calls none."""
    if fn not in _HELPERS:
        return None
    numpy_type = f"np.{dtype}"
    series = "\n".join(
        f"    series = (series + {numpy_type}({term})) * square" for term in _DIGAMMA_SERIES
    )
    return _HELPERS[fn].format(dtype=dtype, T=numpy_type, f=_suffix(dtype), series=series)


def spell_cast(argument: str, source: str, dtype: str) -> str:
    """The expression of a Cast between compute dtypes; ``source`` may be "index", an int64."""
    if source == dtype:
        return argument
    if dtype == "bool":
        compared = "int64" if source == "index" else source
        return f"({argument} != np.{compared}(0))"
    if source in FLOATS and dtype not in FLOATS:
        return f"saturate({argument}, np.{dtype})"
    return f"np.{dtype}({argument})"


# Storage dtypes that differ from their compute dtype: the unsigned integer that they are loaded as.
STORAGE_BITS = {"bool": "uint8", "float16": "uint16", "bfloat16": "uint16"} | dict.fromkeys(
    FLOAT8_DTYPES, "uint8"
)


def widen(stored: str, storage: str) -> str:
    """The expression of a stored element in its compute dtype."""
    if storage == "bool":
        return f"({stored} != np.uint8(0))"
    return f"{storage}_to_float32({stored})" if storage in STORAGE_BITS else stored


def narrow(value: str, storage: str) -> str:
    """The expression of a compute value in its storage dtype."""
    if storage == "bool":
        return f"np.uint8({value})"
    return f"float32_to_{storage}({value})" if storage in STORAGE_BITS else value
