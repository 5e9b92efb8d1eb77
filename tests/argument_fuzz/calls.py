"""Calls of public functions with one or two arguments replaced by awkward values.

A call starts from one in an example of the function's docstring. Values are kept as source text, so
that a failing call can be repeated.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import random
import types
from collections.abc import Callable, Iterator
from inspect import Parameter
from typing import Any

import numpy as np

import gpuflow as gf
from gpuflow import lax
from gpuflow import numpy as jnp

AWKWARD = (
    *("None", "True", "-1", "0", "3", "-7", "1.5", "1j", "1e30", "-1e30", "2**31", "2**63"),
    *("10**400", "float('nan')", "float('inf')", "'abc'", "''", "b'abc'", "'float99'", "'ij,jk->'"),
    *("object()", "object", "int", "slice(None)", "...", "NotImplemented", "range(3)"),
    *("()", "[]", "{}", "{'a': 1}", "{1, 2}", "set()", "(k for k in (0, 1))", "iter(())"),
    *("(1, -1)", "(0, 0)", "(2**40, 2**40)", "(10**12,)", "(1,) * 70", "(None,)", "('a', 'b')"),
    *("[1e30]", "[[1, 2], [3]]", "[[[]]]", "[(0, 1, 2)]", "((1, 2), (3, 4))", "nested(900)"),
    *("returns_first", "takes_none", "fails", "print", "np.sin"),
    *("np.ones((2, 3, 4))", "np.ones((0, 3))", "np.arange(5)", "np.array(['a'])", "np.bool_(True)"),
    *("np.array([None, 1])", "np.float16(1.5)", "np.datetime64('2020')", "np.dtype('S3')"),
    *("np.array(3)", "np.zeros((2, 2), complex)", "np.float32", "np.array([1, -1])"),
    *("jnp.ones((2, 3))", "jnp.zeros((0,), int)", "jnp.array(2)", "jnp.ones((1,) * 9)"),
    *("gf.random.key(0)", "gf.ShapeDtypeStruct((2,), 'float32')", "jnp.float32", "jnp.ones(3) > 0"),
)
# Functions that are not called.
LEFT_OUT = {
    "gf.clear_caches": "the next calls would compile again",
    "gf.numpy.load": "reads files, whose errors are those of other libraries",
}


class UsersError(Exception):
    """Raised by a callback that fails."""


def returns_first(*operands: Any, **options: Any) -> Any:
    """A callback that takes anything."""
    del options
    return operands[0] if operands else None


def takes_none() -> None:
    """A callback that takes no arguments."""


def fails(*operands: Any, **options: Any) -> Any:
    """A callback that fails."""
    raise UsersError(len(operands) + len(options))


def nested(depth: int) -> list[Any]:
    """A list in a list in a list."""
    result: list[Any] = []
    for _ in range(depth):
        result = [result]
    return result


NAMES: dict[str, Any] = {"gf": gf, "jnp": jnp, "lax": lax, "np": np}
CALLBACKS = {f.__name__: f for f in (returns_first, takes_none, fails, nested)}


def public_modules() -> list[str]:
    """Modules of arrays and trees, as ``gf.numpy.linalg``, with those in them."""
    names = ["image", "lax", "nn", "numpy", "random", "scipy", "tree", "tree_util", "dtypes"]
    names += ["flatten_util", "mixed_precision", "ad_checkpoint"]
    found = [""]
    for name in names:
        module = importlib.import_module(f"gpuflow.{name}")
        found.append(name)
        for entry in pkgutil.walk_packages(getattr(module, "__path__", ()), f"gpuflow.{name}."):
            own = entry.name.removeprefix("gpuflow.")
            if is_reachable(own):
                found.append(own)
    return found


def is_reachable(name: str) -> bool:
    """Whether ``dir()`` of each module on the way lists the next one."""
    value: Any = gf
    for part in name.split("."):
        if part not in dir(value):
            return False
        value = getattr(value, part)
    return isinstance(value, types.ModuleType)


def functions() -> list[tuple[str, Callable[..., Any]]]:
    """Public functions by their first names, classes left out."""
    found: dict[int, tuple[str, Callable[..., Any]]] = {}
    for module in public_modules():
        home = importlib.import_module(f"gpuflow.{module}".rstrip("."))
        for key in sorted(dir(home)):
            value = getattr(home, key)
            name = ".".join(["gf", *([module] if module else []), key])
            if key.startswith("_") or not is_function(value) or name in LEFT_OUT:
                continue
            found.setdefault(id(value), (name, value))
    return list(found.values())


def is_function(value: Any) -> bool:
    """Whether a value is a function of this package."""
    if not callable(value) or isinstance(value, type):
        return False
    return str(getattr(value, "__module__", "")).startswith("gpuflow")


def calls_in_examples(function: Callable[..., Any]) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Arguments of a function's calls in the examples of its docstring."""
    names = dict(NAMES)
    for example in doctest.DocTestParser().get_examples(function.__doc__ or ""):
        tree = ast.parse(example.source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                try:
                    if evaluated(node.func, names) is function:
                        yield arguments_of(node, names)
                except Exception:  # names of a lambda, or a value that an earlier line computes
                    continue
        if not isinstance(tree.body[0], ast.Expr):
            try:
                exec(example.source, names)
            except Exception:  # an example that shows an error
                continue


def evaluated(node: ast.expr, names: dict[str, Any]) -> Any:
    """The value of an expression of an example."""
    return eval(compile(ast.Expression(node), "<example>", "eval"), names)


def arguments_of(node: ast.Call, names: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The values of a call's arguments."""
    args: list[Any] = []
    for arg in node.args:
        if isinstance(arg, ast.Starred):
            args.extend(evaluated(arg.value, names))
        else:
            args.append(evaluated(arg, names))
    keywords = {k.arg: evaluated(k.value, names) for k in node.keywords if k.arg is not None}
    return args, keywords


def make_call(
    function: Callable[..., Any],
    bases: list[tuple[list[Any], dict[str, Any]]],
    draw: random.Random,
) -> tuple[list[Any], dict[str, Any], str] | None:
    """A call with awkward arguments and its text; None where Python itself would refuse it."""
    args, keywords = draw.choice(bases) if bases else ([], {})
    args, keywords = list(args), dict(keywords)
    parameters = list(inspect.signature(function).parameters.values())
    if not bases:  # there must be a value for each parameter that needs one
        positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        args = [None for p in parameters if p.default is p.empty and p.kind in positional]
    named = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    others = [p.name for p in parameters[len(args) :] if p.kind in named]
    positions: list[Any] = [*range(len(args)), *others]
    drawn = draw.sample(positions, min(len(positions), draw.choice((1, 1, 1, 2))))
    texts = {k: draw.choice(AWKWARD) for k in (drawn if bases else {*range(len(args)), *drawn})}
    for position, text in texts.items():
        value = eval(text, {**NAMES, **CALLBACKS})
        if isinstance(position, int):
            args[position] = value
        else:
            keywords[position] = value
    try:
        inspect.signature(function).bind(*args, **keywords)
    except TypeError:
        return None
    shown = [texts.get(k) or short(arg) for k, arg in enumerate(args)]
    shown += [f"{name}={texts.get(name) or short(arg)}" for name, arg in keywords.items()]
    return args, keywords, ", ".join(shown)


def short(value: Any) -> str:
    """A value of an example in a few characters."""
    shape = getattr(value, "shape", None)
    text = repr(value) if shape in (None, ()) else f"<{getattr(value, 'dtype', '')}{shape}>"
    return text if len(text) < 60 else text[:57] + "..."
