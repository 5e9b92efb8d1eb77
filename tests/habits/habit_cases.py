"""The cases of tests/habits: calls of public functions with one argument given in another way.

JAX runs them for make_habits.py, gpuflow for the tests; neither is imported here. A template is
the text of a call in which ``HABIT`` replaces one argument, whose usual value is the ``base``. A
habit is the text of another value, in which ``@`` is the base.
"""

from __future__ import annotations

import signal
import warnings
import zlib
from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np

HABITS = {
    "int": (
        "np.int64(@)", "np.uint8(@)", "np.array(@)", "np.array([@])", "jnp.array(@)",
        "jnp.array([@])", "float(@)", "np.float32(@)", "jnp.array(@, float)", "bool(@)",
        "np.bool_(@)", "Index(@)", "'@'", "None", "(@,)", "[@]", "(k for k in [@])", "-1",
        "@ + 0.5", "int", "{@}",
    ),
    "ints": (
        "list(@)", "(k for k in @)", "np.array(@, int)", "jnp.array(@, int)", "range(len(@))",
        "tuple(map(np.int64, @))", "tuple(map(jnp.array, @))", "tuple(map(float, @))",
        "tuple(map(np.array, @))", "tuple(map(Index, @))", "tuple(map(bool, @))", "(@)[0]",
        "np.int64((@)[0])", "jnp.array((@)[0])", "np.array((@)[0])", "float((@)[0])", "None", "()",
        "dict.fromkeys(@)", "tuple(-1 for _ in @)", "tuple(map(str, @))", "(@, @)", "'a'", "[None]",
        "set(@)",
    ),
    "dtype": (
        "'float32'", "np.float32", "jnp.float32", "np.dtype('float32')", "jnp.dtype('float32')",
        "'f4'", "'f'", "'<f4'", "'>f4'", "'bfloat16'", "ml_dtypes.bfloat16", "np.float16(1)",
        "float", "int", "bool", "complex", "None", "np.floating", "jnp.floating", "object", "'O'",
        "'S3'", "str", "'float'", "'int'", "'abc'", "'datetime64[s]'", "x.dtype", "x", "1",
        "[('a', 'f4')]", "'int4'", "np.uint8", "b'f4'", "jax.dtypes.float0",
    ),
    "bool": (
        "int(@)", "np.bool_(@)", "np.array(@)", "jnp.array(@)", "float(@)", "None", "'a'", "''",
        "2", "[@]", "()", "np.array([@])", "not @",
    ),
    "float": (
        "int(@)", "np.float64(@)", "np.float32(@)", "np.array(@)", "jnp.array(@)", "np.array([@])",
        "jnp.array([@])", "jnp.array(@, int)", "True", "np.bool_(True)", "None", "'@'", "[@]",
        "(@,)", "complex(@)", "-(@)", "np.float16(@)",
    ),
    "str": (
        "None", "(@).upper()", "(@).encode()", "0", "True", "np.str_(@)", "[@]", "Text('a', @)",
        "jnp.array(0)",
    ),
    "function": ("None", "3", "'a'", "functools.partial(@)", "Calls(@)", "[@]", "np.sum"),
    "array": (
        "None", "'a'", "(k for k in (1, 2))", "range(3)", "list(np.asarray(@))", "tuple(@)",
        "np.asarray(@)", "np.asarray(@).tolist()", "jnp.array(2)", "np.array(2.5)",
        "np.bool_(True)", "np.array([1, None])", "float", "{'a': 1}", "[@, @]",
        "()", "Arrays(@)", "np.array(['a'])", "True", "2", "2.5", "Index(2)", "1j",
    ),
    "key": (
        "raw", "np.asarray(raw)", "0", "np.int64(3)", "[0, 1]", "None", "jax.random.split(@)",
        "'a'", "jnp.zeros(2)", "(0, 1)",
    ),
    "items": (
        "list(@)", "tuple(@)", "(k for k in @)", "dict(enumerate(@))", "(@)[0]", "()", "None",
        "iter(@)",
    ),
}  # fmt: skip
DTYPES = ("float32", "int32", "bool", "complex64")
REFUSED = "!"
SECONDS = 60  # that a call may take


class Index:
    """An integer of another class, as those of NumPy are."""

    def __init__(self, value: Any):
        self.value = int(value)

    def __index__(self) -> int:
        return self.value


class Arrays:
    """An object with ``__jax_array__``."""

    def __init__(self, value: Any):
        self.value = value

    def __jax_array__(self) -> Any:
        return self.value


class Calls:
    """A callable object."""

    def __init__(self, function: Any):
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def text_member(name: str, value: str) -> Any:
    """The member of an enum of strings."""
    return Enum("Text", {name: value}, type=str)[name]


class TooLongError(Exception):
    """A call exceeds its time."""


def _too_long(*_: Any) -> None:
    raise TooLongError


def operands(package: Any, dtype: str) -> dict[str, Any]:
    """The names of calls, with operands of a dtype."""
    array = package.numpy.asarray
    square = array((2 * np.eye(3) + np.ones((3, 3))).astype(dtype))
    vector = array(np.arange(1, 4).astype(dtype))
    cube = array(np.arange(24).reshape(2, 3, 4).astype(dtype))
    found = {name: vector for name in "abcxy"} | {"m": square, "n": square, "w": cube, "s": [1, 2]}
    return {**found, "key": package.random.key(0), "raw": package.random.PRNGKey(0)}


def names(package: Any, dtype: str) -> dict[str, Any]:
    """All names of calls and habits."""
    return {
        "jax": package,
        "jnp": package.numpy,
        "lax": package.lax,
        "np": np,
        "ml_dtypes": ml_dtypes,
        "functools": __import__("functools"),
        "Index": Index,
        "Arrays": Arrays,
        "Calls": Calls,
        "Text": text_member,
        **operands(package, dtype),
    }


def habits_of(template: str, kind: str) -> tuple[str, ...]:
    """The habits for a template.

    Operands are too many for all of their habits: each template has a quarter of them.
    """
    first, step = (zlib.crc32(template.encode()) % 4, 4) if kind == "array" else (0, 1)
    return HABITS[kind][first::step]


def habits(template: str, base: str, kind: str) -> list[str]:
    """The texts of the arguments for a template, in the order of its habits."""
    return [habit.replace("@", base) for habit in habits_of(template, kind)]


def summary(value: Any, is_traced: bool = False) -> str:
    """A result in a few characters: type, shape and a weighted sum of an array, else its text."""
    if isinstance(value, bool | int | float | complex | str):
        return f"{type(value).__name__} {value!r:.40}"
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return type(value).__name__
    weak = "*" if getattr(value, "weak_type", False) and str(value.dtype) != "bool" else ""
    kind = type(value).__name__ + " " if isinstance(value, np.ndarray | np.generic) else ""
    head = f"{kind}{value.dtype}{weak}[{','.join(map(str, value.shape))}]"
    if str(value.dtype).startswith("key") or is_traced:
        return head
    flat = np.asarray(value).astype(complex).ravel()
    flat = np.nan_to_num(flat, nan=7.5, posinf=11.5, neginf=-13.5)
    weights = 1 + np.arange(flat.size) % 7 / 7
    with np.errstate(all="ignore"):
        total = abs((np.abs(flat) * weights).sum() + 0.5 * (flat * weights).sum())
    return f"{head}={total:.4g}"


def outcome(package: Any, text: str, space: dict[str, Any]) -> str:
    """The summary of a call's results, or its refusal with the class of the error."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            leaves = package.tree.leaves(eval(text, dict(space)))
            return " ".join(summary(leaf) for leaf in leaves) or "()"
    except Exception as error:
        return REFUSED + type(error).__name__
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
