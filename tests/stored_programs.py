"""Small programs as source text that runs under JAX and under gpuflow, and what they give as data.

A file of programs is Python: each expression at its top level is a program, and so is each ``def``
without parameters, which is called. Everything else there (imports, classes, functions with
parameters) is shared by the programs of the file.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parent / "data"
# The files: tests/data/{name}.txt, with JAX's outcomes in tests/data/{name}.json.
FILES = (
    "array_programs",
    "transform_programs",
    "tree_programs",
    "rule_programs",
    "checkify_programs",
    "trace_programs",
    "static_programs",
    "stage_programs",
    "interop_programs",
    "pmap_programs",
)
# What programs may use of jax without importing it.
MODULES = (
    "jax.numpy",
    "jax.flatten_util",
    "jax.ad_checkpoint",
    "jax.custom_batching",
    "jax.custom_derivatives",
    "jax.experimental.checkify",
)


def _is_program(node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef):
        return ast.unparse(node.args) == "" and not node.decorator_list
    return isinstance(node, ast.Expr)


def programs_of(name: str) -> list[str]:
    """The sources of the programs of a file, in order."""
    text = (DATA / f"{name}.txt").read_text()
    nodes = [node for node in ast.parse(text).body if _is_program(node)]
    return [str(ast.get_source_segment(text, node)) for node in nodes]


def space_of(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The names that programs of a file use: the given modules, and what the file shares."""
    tree = ast.parse((DATA / f"{name}.txt").read_text())
    shared = [node for node in tree.body if not _is_program(node)]
    space = dict(given)
    exec(compile(ast.Module(shared, []), name, "exec"), space)
    return space


def run(source: str, space: dict[str, Any]) -> Any:
    """The result of a program."""
    if not source.startswith("def "):
        return eval(source, dict(space))
    own = dict(space)
    exec(source, own)
    return own[ast.parse(source).body[0].name]()  # type: ignore[attr-defined]


def outcome(source: str, space: dict[str, Any]) -> Any:
    """What a program gives, as data: its result, or the class of what it raises."""
    jax = space["jax"]
    try:
        return described(run(source, space), jax)
    except Exception as error:
        names = [kind.__name__ for kind in type(error).__mro__]
        found = {"error": next(name for name in names if hasattr(builtins, name))}
        error_names = [name for name in names if hasattr(jax.errors, name)]
        return {**found, "jax.errors": error_names} if error_names else found


def described(value: Any, jax: Any) -> Any:
    """A result as data: dtype, shape and values of arrays; other things as text."""
    if isinstance(value, tuple):
        return [described(item, jax) for item in value]
    if isinstance(value, list):
        return {"list": [described(item, jax) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[str(key), described(item, jax)] for key, item in value.items()]}
    is_array = isinstance(value, jax.Array)
    is_key = is_array and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    if is_key or not isinstance(value, jax.Array | np.ndarray):
        return str(value)
    host = np.asarray(value)
    numbers = host.astype(np.complex128 if host.dtype.kind == "c" else np.float64).reshape(-1)
    description = {
        "dtype": host.dtype.name,
        "shape": list(host.shape),
        "values": [str(v) for v in numbers.tolist()],
    }
    if not is_array:
        description["numpy"] = True
    # Weak bools mean nothing: JAX marks some comparisons so.
    elif value.weak_type and host.dtype != bool:
        description["weak"] = True
    return description


def check(got: Any, want: Any, close: Callable[[np.ndarray, np.ndarray], None]) -> None:
    """Compare what :func:`outcome` gives with what it gave under JAX.

    Args:
        got, want: the two.
        close: compares the numbers of two arrays of one shape and dtype.
    """
    if isinstance(want, list):
        assert isinstance(got, list) and len(got) == len(want), (got, want)
        for one, stored in zip(got, want, strict=True):
            check(one, stored, close)
    elif isinstance(want, dict) and "list" in want:
        assert isinstance(got, dict) and "list" in got, (got, want)
        check(got["list"], want["list"], close)
    elif isinstance(want, dict) and "dict" in want:
        assert isinstance(got, dict) and "dict" in got, (got, want)
        check(got["dict"], want["dict"], close)
    elif isinstance(want, dict) and "values" in want:
        assert isinstance(got, dict) and "values" in got, (got, want)
        kinds = [{k: v for k, v in one.items() if k != "values"} for one in (got, want)]
        assert kinds[0] == kinds[1]
        close(_numbers(got), _numbers(want))
    elif isinstance(want, dict):
        # An error may say more than JAX's does, never less.
        assert isinstance(got, dict) and got.get("error") == want["error"], (got, want)
        error_name = want.get("jax.errors", [None])[0]
        assert error_name is None or error_name in got.get("jax.errors", ()), (got, want)
    else:
        assert got == want


def _numbers(found: dict[str, Any]) -> np.ndarray:
    kind = complex if found["dtype"].startswith("complex") else float
    return np.array([kind(v) for v in found["values"]]).reshape(found["shape"])
