"""The cases of tests/surface_settings: calls of all public functions, and operands of all types.

JAX runs them for data/make_surface_dtypes.py, gpuflow for the tests; neither is imported here.
Calls are expressions over ``jax`` (the package), ``np`` and these names:

- ``a``, ``b``, ``c``: operands of every kind; arrays are vectors. ``s``: lists and host arrays.
- ``x``, ``y``: vectors, ``m``, ``n``: square matrices, ``w``: an array of rank 3; their dtype runs
  over all dtypes; that of ``y`` and ``n`` differs from the others' in some of the cases.
- ``key``, ``raw``: random keys, typed and not.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
SETTINGS = {
    "x32": {},
    "x64": {"enable_x64": True},
    "x32 strict": {"numpy_dtype_promotion": "strict", "numpy_rank_promotion": "raise"},
    "x64 strict": {
        "enable_x64": True,
        "numpy_dtype_promotion": "strict",
        "numpy_rank_promotion": "raise",
    },
}


def numpy_dtype(name: str) -> np.dtype:
    """The dtype of NumPy with this name."""
    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)


# Python texts of operands, by kind. ``array`` is jax.numpy.asarray.
SCALARS = {"bool*": "True", "int*": "1", "float*": "1.5", "complex*": "1j"}
ARRAYS = {name: f"array(np.ones(3, dtype('{name}')))" for name in DTYPES}
WEAK = {f"weak {name}": f"array({text})" for name, text in SCALARS.items() if name != "bool*"}
NUMBERS = {
    f"np {name}": f"dtype('{name}').type(1)" for name in ("bool", "int8", "float16", "float64")
}
HOSTS = {"np[] int64": "np.ones(3, dtype('int64'))"}
LISTS = {
    "[bool]": "[True, False]",
    "[int]": "[1, 2]",
    "[float]": "[1, 2.5]",
    "[complex]": "[1, 2j]",
    "[]": "[]",
    "[np]": "[0, np.float16(1)]",
    "[array]": "[array(1)]",
    "[arrays]": "[array(1), array(np.int8(1))]",
    "[mixed]": "[1.5, array(np.float16(1))]",
    "[[int]]": "[[1, 2], (3, 4)]",
    "(array, int)": "(array(np.int8(1)), 2)",
}
KINDS = {**ARRAYS, **SCALARS, **WEAK, **NUMBERS, **HOSTS, **LISTS}
ALONE = (*ARRAYS, *SCALARS, *WEAK, "np int8", "np float16", "np float64", "[int]")
_PAIRED = ("np int8", "np float16", "np float64", "np[] int64")
PAIRED = {**ARRAYS, **SCALARS, **WEAK, **{kind: KINDS[kind] for kind in _PAIRED}}
MIXED = (
    ("float32", "int32"),
    ("int32", "float32"),
    ("float16", "bfloat16"),
    ("int8", "uint8"),
    ("uint32", "int32"),
    ("bool", "float16"),
    ("complex64", "float32"),
    ("float32", "complex64"),
    ("float32", "float64"),
    ("bool", "int8"),
    ("int64", "float16"),
    ("float64", "bool"),
)
# Strict promotion is about mixtures: of the dtypes themselves a few are enough.
FEW_DTYPES = ("uint8", "int32", "bfloat16", "float32")
FEW_MIXED = MIXED[:2]


@cache
def _pairs(is_strict: bool) -> tuple[tuple[str, str], ...]:
    """Pairs of kinds: equal ones, arrays with Python's numbers, and some drawn of all."""
    arrays = FEW_DTYPES if is_strict else DTYPES
    numbers = ("int*", "float*", "weak int*", "weak float*")
    pairs = [(name, name) for name in arrays]
    pairs += [(name, number) for name in arrays for number in numbers[: 1 + is_strict]]
    pairs += [("int*", "float*"), ("int*", "int*"), ("weak int*", "int*"), ("bool*", "weak int*")]
    draw = random.Random(1)
    pairs += [tuple(draw.choices(list(PAIRED), k=2)) for _ in range(3 if is_strict else 12)]
    return tuple(pairs)


@cache
def names_of(expression: str) -> tuple[str, ...]:
    """The operands that an expression is about."""
    words = set(re.findall(r"(?<![.\w'\"])\w+(?!\w|\s*=[^=])", expression))
    return tuple(sorted(words & set("abcmnswxy")))


@cache
def operand_types(names: tuple[str, ...], is_strict: bool) -> tuple[tuple[str, ...], ...]:
    """For each case, the kinds or the dtypes of these operands."""
    if not names:
        return ((),)
    dtypes = FEW_DTYPES if is_strict else DTYPES
    if names == ("s",):
        return tuple((kind,) for kind in (*LISTS, *NUMBERS, *HOSTS))
    if set(names) <= set("abc"):
        if len(names) == 1:
            kinds = (*dtypes, "int*", "float*") if is_strict else ALONE
            return tuple((kind,) for kind in kinds)
        if len(names) == 2:
            return _pairs(is_strict)
        draw = random.Random(0)
        same = [(kind,) * 3 for kind in (*dtypes, "int*", "float*", "weak int*")]
        drawn = [tuple(draw.choices(list(PAIRED), k=3)) for _ in range(4 if is_strict else 12)]
        return (*same, *drawn)
    same = [(name,) * len(names) for name in dtypes]
    if not set(names) & set("ynb"):
        return tuple(same)
    chosen = FEW_MIXED if is_strict else MIXED
    return (*same, *(tuple(pair[name in "ynb"] for name in names) for pair in chosen))


def _of_dtype(array: Callable[..., Any], name: str, dtype: str) -> Any:
    size, wanted = 3, numpy_dtype(dtype)
    if name in "mn":
        return array((2 * np.eye(size) + np.ones((size, size))).astype(wanted))
    if name == "w":
        return array(np.ones((2, 3, 4), wanted))
    return array(np.arange(1, size + 1).astype(wanted))


def operands(array: Callable[..., Any], names: tuple[str, ...], types: tuple[str, ...]) -> Any:
    """The operands of one case, by name."""
    space = {"array": array, "np": np, "dtype": numpy_dtype}
    return {
        name: eval(KINDS[kind], dict(space))
        if kind in KINDS and set(names) <= set("abcs")
        else _of_dtype(array, name, kind)
        for name, kind in zip(names, types, strict=True)
    }


def described(leaves: list[Any]) -> str:
    """The types of results: dtypes, with a star where they are weak; other types by name."""
    texts = []
    for leaf in leaves:
        if hasattr(leaf, "dtype"):
            weak = getattr(leaf, "weak_type", False)
            texts.append(str(leaf.dtype) + ("*" if weak else ""))
        else:
            texts.append(type(leaf).__name__)
    return " ".join(texts)


REFUSED = "!"


@cache
def compiled(expression: str) -> Any:
    return compile(expression, "<case>", "eval")


def outcome(package: Any, expression: str, values: dict[str, Any], is_traced: bool) -> str:
    """The types of an expression's results, or that it is refused."""
    space = {"jax": package, "np": np, "jnp": package.numpy, "lax": package.lax, **values}

    def call() -> Any:
        return eval(compiled(expression), dict(space))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = package.eval_shape(call) if is_traced else call()
            return described(package.tree.leaves(result))
    except Exception:
        return REFUSED


def constants(package: Any) -> dict[str, Any]:
    """Operands that have one type only."""
    return {"key": package.random.key(0), "raw": package.random.PRNGKey(0)}


def outcomes(package: Any, expression: str, is_traced: bool, is_strict: bool) -> Iterator[str]:
    """What an expression gives in each of its cases, under the settings of now."""
    names = names_of(expression)
    fixed = constants(package)
    for types in operand_types(names, is_strict):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                values = operands(package.numpy.asarray, names, types)
            except Exception:
                yield "no operand"
                continue
        yield outcome(package, expression, {**fixed, **values}, is_traced)
