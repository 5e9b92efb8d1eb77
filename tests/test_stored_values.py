"""Expressions and programs, and what JAX 0.10 gives for each: stored in tests/data.

    expressions    numpy_values.json, numpy_functions.json, scipy_surface.json, lax_values.json,
                   linalg_values.json, sorting_values.json: each a value, or the error
    programs       array_programs.txt and its siblings (stored_programs.py), with their outcomes

Each test runs the expressions of one family, at most 40, and lists all that differ. One alone, by
its text or a part of it: CASE="jnp.sinc(f)" pytest tests/test_stored_values.py::test_expression

Where JAX allows it, expressions also run under jit and vmap, and must give the same there.
"""

from __future__ import annotations

import builtins
import importlib
import json
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from stored_programs import DATA, FILES, MODULES, check, outcome, space_of
from together import together

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import Array, as_jax, lax, nn, tree
from gpuflow.experimental import ode
from gpuflow.scipy import fft, integrate, interpolate, linalg, ndimage, optimize, signal
from gpuflow.scipy.cluster.vq import vq
from gpuflow.scipy.sparse import linalg as sparse
from gpuflow.scipy.spatial import transform

NAMES = {
    "jax": gpuflow, "jnp": jnp, "np": np, "lax": lax, "nn": nn, "grad": gpuflow.grad,
    "vmap": gpuflow.vmap, "jit": gpuflow.jit, "fft": fft, "integrate": integrate,
    "linalg": linalg, "interpolate": interpolate, "ndimage": ndimage, "optimize": optimize,
    "signal": signal, "sparse": sparse, "transform": transform, "vq": vq, "ode": ode,
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore")


@dataclass(frozen=True)
class Tolerance:
    """How close results must be to JAX's.

    Args:
        relative: by dtype; results of other dtypes must be equal.
        of_largest, at_least: the absolute tolerance is the relative one times this share of the
            largest element, and times this at least.
        looser: another relative tolerance for expressions that start so.
        has_signs: zeros must have the same signs.
    """

    relative: Mapping[str, float]
    of_largest: float = 0.0
    at_least: float = 0.0
    looser: Mapping[str, float] = field(default_factory=dict)
    has_signs: bool = False

    def check(self, got: np.ndarray, want: np.ndarray, dtype: str, line: str) -> None:
        limit = self.relative.get(dtype, 0.0)
        if limit:
            limit = next((value for k, value in self.looser.items() if line.startswith(k)), limit)
        largest = np.abs(want[np.isfinite(want)]).max(initial=0.0)
        absolute = limit * max(self.of_largest * largest, self.at_least)
        np.testing.assert_allclose(got, want, rtol=limit, atol=absolute)
        if self.has_signs and want.dtype.kind == "f":
            zeros = (want == 0) & (got == 0)
            np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))


TOLERANCES = {
    # The libraries' exp, log and sums round differently, by a few units in the last place; a
    # 16-bit result may be off by one unit.
    "numpy_values": Tolerance(
        {"float32": 4e-6, "complex64": 4e-6, "float16": 2e-3, "bfloat16": 1.6e-2}, of_largest=0.1
    ),
    "numpy_functions": Tolerance(
        {"float32": 1e-5, "complex64": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}, of_largest=0.3
    ),
    # Decompositions and iterations are float32 both here and in JAX.
    "scipy_surface": Tolerance(
        {"float32": 1e-5, "complex64": 1e-5},
        of_largest=1.0,
        at_least=0.1,
        looser={
            "sparse.": 1e-4,  # iterations end at 1e-5
            "ode.odeint": 1e-4,  # likewise
            "grad(lambda t: (ode": 1e-3,
            "optimize.": 1e-3,
            "linalg.expm(": 1e-4,  # JAX scales matrices once less than the error bound asks for
            "linalg.expm_frechet": 1e-4,
            "grad(lambda a: (linalg.expm": 1e-3,
            "linalg.funm": 1e-4,
            "linalg.sqrtm": 1e-4,
            "linalg.solve_sylvester": 1e-4,
        },
    ),
    # Sums of float32 in another order.
    "lax_values": Tolerance({"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}, at_least=1.0),
    # Both call the same LAPACK routines.
    "linalg_values": Tolerance(
        dict.fromkeys(("float64", "complex128", "float32"), 1e-8), of_largest=1.0, at_least=1.0
    ),
    # JAX adds, multiplies and takes logarithms in the order of a tree.
    "sorting_values": Tolerance(
        {"float32": 1e-6, "complex64": 1e-6, "float16": 2e-3}, at_least=1.0, has_signs=True
    ),
}
# Functions of float32 and sums may differ in the last place; nothing here cancels.
OF_PROGRAMS = 3e-7
WIDE = ("linalg_values",)  # run with x64
# Positions at which JAX gives nan and mathematics a number: here, where pi * x overflows.
NUMBERS = {"jnp.sinc(f)": {8: 0.0}}


# --- expressions -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """Expressions of one file over the same operands."""

    file: str
    operands: dict[str, str]
    values: dict[str, Any]
    jit: tuple[str, ...] = ()
    vmap: tuple[str, ...] = ()

    def settings(self) -> Any:
        return gpuflow.enable_x64() if self.file in WIDE else nullcontext()

    def is_close(self, got: Any, want: Any, dtype: str, line: str) -> None:
        TOLERANCES[self.file].check(got, want, dtype, line)


def _families() -> dict[str, Family]:
    """All families, by file and name."""
    found = {}
    for file in TOLERANCES:
        stored = json.loads((DATA / f"{file}.json").read_text())
        operands = stored.pop("operands", None)
        for name, own in stored.items():
            parts = own if operands is None else {"operands": operands, "values": own}
            found[f"{file}: {name}"] = Family(file, **parts)
    return found


FAMILIES = _families()


@cache
def space(family: str) -> MappingProxyType[str, Any]:
    """The modules and the operands of a family."""
    own = FAMILIES[family]
    names = dict(NAMES)
    with own.settings():
        for name, text in own.operands.items():
            names[name] = eval(text, dict(names))
    return MappingProxyType(names)


def compare(family: Family, line: str, got: Any, want: Any) -> None:
    """A result has the stored structure, dtype, weak type, shape and values."""
    if isinstance(want, list):
        assert isinstance(got, tuple | list) and len(got) == len(want)
        for one, stored in zip(got, want, strict=True):
            compare(family, line, one, stored)
        return
    if isinstance(want, str):
        assert str(got) == want
        return
    assert isinstance(got, Array)
    assert (got.dtype.name, list(got.shape)) == (want["dtype"], want["shape"])
    # Weak bools mean nothing: JAX marks some comparisons so, and we do not.
    assert got.dtype == bool or got.weak_type == want.get("weak", got.weak_type)
    kind = complex if got.dtype.kind == "c" else float
    expected = np.array([kind(v) for v in want["values"]], kind).reshape(got.shape)
    family.is_close(np.asarray(got).astype(kind), expected, got.dtype.name, line)


@together(by="family", size=40)
@pytest.mark.parametrize(
    ("family", "line"),
    [pytest.param(name, line, id=line) for name, own in FAMILIES.items() for line in own.values],
)
def test_expression(family, line):
    own = FAMILIES[family]
    want = own.values[line]
    if line in NUMBERS:
        stored = [NUMBERS[line].get(k, value) for k, value in enumerate(want["values"])]
        want = {**want, "values": stored}
    with own.settings():
        if not (isinstance(want, dict) and "error" in want):
            compare(own, line, eval(line, dict(space(family))), want)
            return
        with pytest.raises(getattr(builtins, want["error"])) as caught:
            eval(line, dict(space(family)))
    text = str(caught.value)
    assert text.startswith("[") and "; got " in text and " Fix: " in text


def arrays_of(family):
    names = space(family)
    return {
        name: names[name] for name in FAMILIES[family].operands if isinstance(names[name], Array)
    }


def same(family, line, got, want):
    """Two results have the same structure, dtypes, shapes and values."""
    try:
        assert tree.structure(got) == tree.structure(want)
        for one, other in zip(tree.leaves(got), tree.leaves(want), strict=True):
            one, other = jnp.asarray(one), jnp.asarray(other)
            assert one.dtype == other.dtype and one.shape == other.shape
            kind = complex if one.dtype.kind == "c" else float
            arrays = np.asarray(one).astype(kind), np.asarray(other).astype(kind)
            FAMILIES[family].is_close(*arrays, one.dtype.name, line)
    except AssertionError as error:
        raise AssertionError(line) from error


@pytest.mark.parametrize("family", [name for name, own in FAMILIES.items() if own.jit])
def test_jit_changes_nothing(family):
    """All expressions of a family as one program."""
    names, lines = space(family), FAMILIES[family].jit

    def program(arrays):
        return [eval(line, {**names, **arrays}) for line in lines]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = gpuflow.jit(program)(arrays_of(family))
        want = program(arrays_of(family))
    for line, one, other in zip(lines, got, want, strict=True):
        same(family, line, one, other)


@together(by="family", size=40)
@pytest.mark.parametrize(
    ("family", "line"),
    [pytest.param(name, line, id=line) for name, own in FAMILIES.items() for line in own.vmap],
)
def test_vmap_changes_nothing(family, line):
    """Two equal elements give two equal results."""
    names, arrays = space(family), arrays_of(family)

    def function(arrays):
        return eval(line, {**names, **arrays})

    want = function(arrays)
    got = gpuflow.vmap(function)({name: jnp.stack([x, x]) for name, x in arrays.items()})
    for k in (0, 1):
        same(family, line, tree.map(lambda x, k=k: x[k], got), want)


# --- programs --------------------------------------------------------------------------------

PROGRAMS = {name: json.loads((DATA / f"{name}.json").read_text()) for name in FILES}
# Derivatives that JAX refuses, or gives as nan; these are the limits.
LIMITS = {
    "jax.grad(lambda x: jax.ops.segment_prod(x, jnp.array([0,0,1]), 2).sum())"
    "(jnp.array([1.,2,3]))": [2, 1, 1],
    "jax.jacrev(lambda z: (z ** jnp.arange(3.)))(0.)": [0, 1, 0],
}


@pytest.fixture(scope="module")
def spaces():
    """For each file the names that its programs use; ``jax`` is gpuflow."""
    as_jax.install()
    for module in MODULES:
        importlib.import_module(module)
    jax = importlib.import_module("jax")
    given = {"jax": jax, "jnp": jax.numpy, "np": np, "lax": jax.lax, "ml_dtypes": ml_dtypes}
    yield {name: space_of(name, given) for name in FILES}
    as_jax.uninstall()


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=OF_PROGRAMS)
    if expected.dtype.kind == "f":
        zeros = expected == 0
        np.testing.assert_array_equal(np.signbit(actual)[zeros], np.signbit(expected)[zeros])


@together(by="file")
@pytest.mark.parametrize(
    ("file", "source"),
    [
        pytest.param(file, source, id=source.partition("\n")[0])
        for file, stored in PROGRAMS.items()
        for source in stored
    ],
)
def test_program(file, source, spaces):
    result = outcome(source, spaces[file])
    if source in LIMITS:
        assert list(map(float, result["values"])) == LIMITS[source]
    else:
        check(result, PROGRAMS[file][source], close)
