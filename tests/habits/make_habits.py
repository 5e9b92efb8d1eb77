"""Writes habits.json: the outcomes of calls with one argument given in another way, by JAX 0.10.

Calls are those of surface_dtypes.json and more_calls.txt. For each parameter that they pass, and
for each optional one, a template is kept. Run by hand: python tests/habits/make_habits.py
[HOW_MANY]; templates that are stored are not run again.
"""

from __future__ import annotations

import ast
import inspect
import json
import multiprocessing
import random
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.experimental.ode
import jax.scipy.cluster.vq
import jax.scipy.integrate
import jax.scipy.interpolate
import jax.scipy.ndimage
import jax.scipy.optimize
import jax.scipy.signal
import jax.scipy.sparse.linalg
import jax.scipy.spatial.transform
import jax.scipy.stats
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from habit_cases import DTYPES, REFUSED, habits, names, outcome, summary

DATA = Path(__file__).parents[1] / "data"
OPTIONAL = {  # bases of parameters whose default is None
    "dtype": "'float32'", "preferred_element_type": "'float32'", "out_dtype": "'float32'",
    "axis": "0", "axes": "(0,)", "shape": "(3,)", "size": "3", "length": "3", "n": "3", "num": "3",
    "where": "(x > 0)", "fill_value": "0", "initial": "1", "total_repeat_length": "3",
    "unroll": "1", "bins": "3", "k": "1", "weights": "x", "decimals": "1", "mode": "'clip'",
    "num_segments": "3", "rcond": "0.5", "rtol": "0.5", "M": "3", "stop": "3", "b": "x",
    "scale": "1.0", "static_argnums": "(1,)", "precision": "'highest'", "ddof": "1", "rank": "1",
}  # fmt: skip


def expressions() -> list[str]:
    stored = json.loads((DATA / "surface_dtypes.json").read_text())["calls"]
    more = (Path(__file__).parent / "more_calls.txt").read_text().splitlines()
    return [*stored, *(line for line in more if line and not line.startswith("# "))]


def kind_of(parameter: str, value: Any) -> str | None:
    """The kind of an argument, by its value."""
    if "dtype" in parameter or parameter == "preferred_element_type" or isinstance(value, type):
        return "dtype"
    if isinstance(value, jax.Array):
        return "key" if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key) else "array"
    for own, kind in ((bool, "bool"), (int, "int"), (float, "float"), (str, "str")):
        if isinstance(value, own):
            return kind
    if isinstance(value, tuple | list):
        is_ints = bool(value) and all(type(item) is int for item in value)
        return "ints" if is_ints else "items"
    if isinstance(value, np.ndarray):
        return "array"
    return "function" if callable(value) else None


def parameters_of(function: Any) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}


def arguments(
    call: ast.Call, known: dict[str, inspect.Parameter]
) -> Iterator[tuple[str, Any, int]]:
    """Parameter names, nodes and the positions of a call's arguments (-1: by keyword)."""
    order = [p for p in known.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for position, node in enumerate(call.args):
        if not isinstance(node, ast.Starred):
            name = order[position].name if position < len(order) else f"args[{position}]"
            yield name, node, position
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg, keyword.value, -1


def is_taken(text: str, space: dict[str, Any]) -> bool:
    """Whether JAX takes a call, traced where it can be, which needs no compiling."""

    def call() -> Any:
        leaves = jax.tree.leaves(eval(text, dict(space)))
        return [leaf for leaf in leaves if hasattr(leaf, "dtype")]

    try:
        jax.eval_shape(call)
        return True
    except Exception:
        return not outcome(jax, text, space).startswith(REFUSED)


def evaluated(node: ast.AST, space: dict[str, Any]) -> Any:
    return eval(ast.unparse(node), dict(space))


def with_habit(tree: ast.Expression, call: ast.Call, position: int, name: str, node: Any) -> str:
    """The text of an expression with ``HABIT`` for an argument; ``node`` None adds it."""
    marker = ast.Name("HABIT")
    args, keywords = list(call.args), list(call.keywords)
    if position >= 0:
        call.args[position] = marker
    elif node is None:
        call.keywords.append(ast.keyword(name, marker))
    else:
        call.keywords = [ast.keyword(name, marker) if k.arg == name else k for k in keywords]
    text = ast.unparse(tree)
    call.args, call.keywords = args, keywords
    return text


def function_name(call: ast.Call, function: Any) -> Any:
    """Identity of a function, or the name of a method."""
    root = call.func
    while isinstance(root, ast.Attribute):
        root = root.value
    if isinstance(root, ast.Name) and root.id in ("jax", "jnp", "lax"):
        return id(function)
    return call.func.attr if isinstance(call.func, ast.Attribute) else None


def templates(spaces: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str, str, str]]:
    """Template, base, kind and dtype of operands, one for each parameter and kind."""
    seen, functions = set(), set()
    for text in expressions():
        dtype = next((dtype for dtype in DTYPES if is_taken(text, spaces[dtype])), None)
        if dtype is None:
            continue
        space = spaces[dtype]
        tree = ast.parse(text, mode="eval")
        for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
            try:
                function = evaluated(call.func, space)
            except Exception:  # names of a lambda
                continue
            name = function_name(call, function)
            if name is None:
                continue
            known = parameters_of(function)
            found = [(p, node, k) for p, node, k in arguments(call, known)]
            if name not in functions:
                functions.add(name)
                passed = {p for p, _, _ in found}
                found += [(p, None, -1) for p in known if p not in passed]
            for parameter, node, position in found:
                row = row_of(known.get(parameter), parameter, node, space)
                if row is None or (name, parameter, row[1]) in seen:
                    continue
                template = with_habit(tree, call, position, parameter, node)
                base, kind = row
                if node is None and not is_taken(template.replace("HABIT", base), space):
                    continue
                seen.add((name, parameter, kind))
                yield template, base, kind, dtype


def row_of(known: Any, parameter: str, node: Any, space: Any) -> tuple[str, str] | None:
    """The base and the kind of an argument."""
    if node is not None:
        base = ast.unparse(node)
    elif known is None or known.default is known.empty:
        return None
    elif known.default is None:
        if parameter not in OPTIONAL:
            return None
        base = OPTIONAL[parameter]
    else:
        base = repr(known.default)
    try:
        kind = kind_of(parameter, eval(base, dict(space)))
    except Exception:
        return None
    return None if kind is None else (base, kind)


NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.UnexpectedTracerError,
)
SPACES: dict[str, dict[str, Any]] = {}


def start() -> None:
    jax.config.update("jax_traceback_filtering", "off")
    jax.config.update("jax_disable_most_optimizations", True)
    SPACES.update({dtype: names(jax, dtype) for dtype in DTYPES})


def results(row: tuple[str, str, str, str]) -> list[str]:
    template, base, kind, dtype = row
    return [result(template, habit, SPACES[dtype]) for habit in habits(template, base, kind)]


def result(template: str, habit: str, space: dict[str, Any]) -> str:
    """The types of results; with values too if JAX needs the values of operands.

    Tracing needs no compiling, which would take hours. What depends on values is computed.
    """
    found: list[str] = []

    def call() -> None:
        leaves = jax.tree.leaves(eval(template, {**space, "HABIT": value}))
        kinds = [isinstance(leaf, jax.core.Tracer) for leaf in leaves]
        found.append(" ".join(map(summary, leaves, kinds)) or "()")

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = eval(habit, dict(space))
            jax.eval_shape(call)
            return found[0]
    except NEEDS_VALUES:
        return outcome(jax, template.replace("HABIT", habit), space)
    except Exception as error:
        return REFUSED + type(error).__name__


def read() -> dict[tuple[str, ...], list[str]]:
    """The stored outcomes, by template, base, kind and dtype."""
    path = DATA / "habits.json"
    data = json.loads(path.read_text()) if path.exists() else {"legend": [], "templates": []}
    return {
        tuple(row): [data["legend"][int(code)] for code in codes.split()]
        for *row, codes in data["templates"]
    }


def main(limit: int) -> None:
    """Find the outcomes of at most ``limit`` templates that are not stored yet."""
    start()
    stored = read()
    rows = [row for row in templates(SPACES) if row not in stored]
    random.Random(0).shuffle(rows)
    rows.sort(key=lambda row: row[2] == "array")  # whose operands have a sweep of dtypes, too
    print(len(stored), "stored", len(rows), "templates", flush=True)
    rows = rows[:limit]
    with multiprocessing.get_context("spawn").Pool(2, start) as pool:
        for row, found in zip(rows, pool.imap(results, rows, chunksize=4)):
            stored[row] = found
            if len(stored) % 50 == 0 or row == rows[-1]:
                print(len(stored), flush=True)
                write(stored)


def write(stored: dict[tuple[str, ...], list[str]]) -> None:
    legend: dict[str, int] = {}
    rows = [
        [*row, " ".join(str(legend.setdefault(text, len(legend))) for text in found)]
        for row, found in sorted(stored.items())
    ]
    data = {"jax": jax.__version__, "legend": list(legend), "templates": rows}
    text = json.dumps(data, separators=(",", ":")).replace("],[", "],\n[")
    (DATA / "habits.json").write_text(text + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10**9)
