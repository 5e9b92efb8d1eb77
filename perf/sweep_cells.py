"""The cells of sweep.py: each call in each mode, at each size, in each dtype and layout.

A call is an expression over the operands of sweep_operands.py, the modules MODULES and `jnp`,
written once for both frameworks. Its first dotted name says which function it is about.
"""

from __future__ import annotations

import ast
import functools
import importlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sweep_further_calls
import sweep_lax_calls
import sweep_linalg_calls
import sweep_numpy_calls
from sweep_operands import FIXED, NUMBERS, SIZES, VIEWS, Section, constants, has_view, operand
from workload import Workload

ROOT = Path(__file__).resolve().parents[1]
MODULES = {
    "jnp": "numpy",
    "lax": "lax",
    "nn": "nn",
    "special": "scipy.special",
    "linalg": "numpy.linalg",
    "fft": "numpy.fft",
    "random": "random",
}
SECTIONS = [
    *sweep_numpy_calls.CALLS,
    *sweep_linalg_calls.CALLS,
    *sweep_lax_calls.CALLS,
    *sweep_further_calls.CALLS,
]
FLOAT32 = "float32"
KEYS = ("key", "raw_key")
# Where dtypes and layouts matter: kernels at the largest size, dispatch where calls are short.
VARIANT_CELLS = (("jit", SIZES[-1]), ("eager", SIZES[1]))
# A sweep that ends early has seen all functions at the sizes that say most.
SIZE_ORDER = (SIZES[0], SIZES[-1], SIZES[1])
_NAME = re.compile(r"\w+\.\w+")


@dataclass(frozen=True)
class Cell:
    """One thing that is timed in both frameworks."""

    section: Section
    expression: str
    mode: str
    size: int
    variant: str = FLOAT32

    @property
    def name(self) -> str:
        return f"{self.mode} {self.expression} n={self.size} {self.variant}"

    @property
    def function(self) -> str:
        """The function that the cell is about."""
        match = _NAME.search(self.expression)
        assert match is not None, self.expression
        return match.group()

    def make(self, jax: Any, jnp: Any) -> Callable[[], Any]:
        """The call as a function of no arguments."""
        del jnp
        function, names = program(jax, self)
        arguments = [value_of(jax, name, self) for name in names]
        if self.mode == "eager":
            return functools.partial(function, *arguments)
        if self.mode == "grad":
            function, arguments = cotangents(jax, function, arguments)
        return functools.partial(jax.jit(function), *arguments)

    def compared(self, jax: Any, result: Any) -> Any:
        """What of the result both frameworks have to agree on."""
        if not self.section.compared or self.mode == "grad":
            return result
        return eval(self.section.compared, {"jnp": jax.numpy, "jax": jax, "result": result})


def program(jax: Any, cell: Cell) -> tuple[Callable[..., Any], list[str]]:
    """The call as a function of its operands, and their names."""
    tree = ast.parse(cell.expression, mode="eval")
    words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names = [name for name in (*NUMBERS, *FIXED, *KEYS) if name in words]
    space = {
        short: importlib.import_module(f"{jax.__name__}.{path}") for short, path in MODULES.items()
    }
    space.update(constants(jax, cell.size))
    call = eval(f"lambda {', '.join(names)}: {cell.expression}", space)
    if not any(has_view(name, cell.variant) for name in names):
        return call, names
    view = VIEWS[cell.variant]
    is_viewed = [has_view(name, cell.variant) for name in names]

    def call_with_views(*operands: Any) -> Any:
        return call(*(view(a) if seen else a for a, seen in zip(operands, is_viewed, strict=True)))

    return call_with_views, names


def value_of(jax: Any, name: str, cell: Cell) -> Any:
    """An operand on the device."""
    if name == "key":
        return jax.random.key(0)
    if name == "raw_key":
        return jax.random.PRNGKey(0)
    return jax.numpy.asarray(operand(name, cell.size, cell.variant))


def cotangents(
    jax: Any, function: Callable[..., Any], arguments: list[Any]
) -> tuple[Callable[..., Any], list[Any]]:
    """The function from cotangents of results to those of operands, and its arguments."""
    inexact = jax.numpy.inexact
    places = [k for k, a in enumerate(arguments) if jax.numpy.issubdtype(a.dtype, inexact)]

    def results(values: list[Any], others: list[Any]) -> list[Any]:
        merged = list(others)
        for k, value in zip(places, values, strict=True):
            merged[k] = value
        leaves = jax.tree.leaves(function(*merged))
        return [leaf for leaf in leaves if jax.numpy.issubdtype(leaf.dtype, inexact)]

    def pulled_back(received: list[Any], others: list[Any]) -> Any:
        values = [others[k] for k in places]
        return jax.vjp(lambda values: results(values, others), values)[1](received)

    shapes = jax.eval_shape(lambda others: results([others[k] for k in places], others), arguments)
    generator = np.random.default_rng(1)
    received = [
        jax.numpy.asarray(generator.standard_normal(leaf.shape)).astype(leaf.dtype)
        for leaf in shapes
    ]
    return pulled_back, [received, arguments]


def cells_of(section: Section) -> list[Cell]:
    """The cells of a section's calls."""
    cells = []
    for expression in section.expressions:
        cell = functools.partial(Cell, section, expression)
        cells += [cell(mode, size) for mode in section.modes for size in section.sizes]
        if section.grad:
            # What has variants is memory and arithmetic; of the rest, calls matter as well.
            cells.append(cell("grad", SIZES[-1] if section.variants else SIZES[1]))
        for variant in section.variants:
            cells += [cell(mode, size, variant) for mode, size in VARIANT_CELLS]
    return cells


CELLS = sorted(
    (cell for section in SECTIONS for cell in cells_of(section)),
    key=lambda cell: (cell.variant != FLOAT32, SIZE_ORDER.index(cell.size)),
)
WORKLOADS = [Workload(cell.name, cell.make, compared=cell.compared) for cell in CELLS]


def public_functions() -> dict[str, list[str]]:
    """Our functions that are JAX's too, each with its other names in the module."""
    stored = json.loads((ROOT / "docs" / "data" / "jax_names.json").read_text())
    functions: dict[str, list[str]] = {}
    for short, path in MODULES.items():
        module = importlib.import_module(f"gpuflow.{path}")
        names = [
            name for name in stored[f"jax.{path}"] if _is_function(getattr(module, name, None))
        ]
        by_identity: dict[int, list[str]] = {}
        for name in names:
            by_identity.setdefault(id(getattr(module, name)), []).append(f"{short}.{name}")
        functions.update((group[0], group) for group in by_identity.values())
    return functions


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def unlisted(functions: Mapping[str, list[str]]) -> list[str]:
    """Functions that are neither timed nor under a reason why not."""
    listed = {cell.function for cell in CELLS}
    for names in sweep_further_calls.NOT_TIMED.values():
        listed.update(names.split())
    return [name for name, names in functions.items() if not listed & set(names)]
