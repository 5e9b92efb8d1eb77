"""The functions of numpy_functions.txt: values, dtypes and errors as stored from JAX 0.10.

Each line also runs under jit and vmap where JAX allows it, and must give what it gives outside.
"""

from __future__ import annotations

import builtins
import json
import warnings
from pathlib import Path

import numpy as np
import pytest

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import Array, tree

STORED = json.loads((Path(__file__).parents[1] / "data" / "numpy_functions.json").read_text())
CASES = [(family, line) for family, stored in STORED.items() for line in stored["values"]]
# Relative to each result and, a third of it, to the largest one: the libraries' functions and
# sums round differently.
TOLERANCE = {"float32": 1e-5, "complex64": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
# Positions at which JAX gives nan and mathematics a number: here, where pi * x overflows.
NUMBERS = {"jnp.sinc(f)": {8: 0.0}}
BASE = {
    "jnp": jnp, "np": np, "grad": gpuflow.grad, "vmap": gpuflow.vmap, "jit": gpuflow.jit,
}  # fmt: skip


@pytest.fixture(scope="module")
def spaces():
    """The operands of each family."""
    spaces_by_family = {}
    for family, stored in STORED.items():
        space = spaces_by_family[family] = dict(BASE)
        for name, text in stored["operands"].items():
            space[name] = eval(text, dict(space))
    return spaces_by_family


def check(got, want):
    if isinstance(want, list):
        assert isinstance(got, tuple | list) and len(got) == len(want)
        for one, stored in zip(got, want, strict=True):
            check(one, stored)
        return
    if isinstance(want, str):
        assert str(got) == want
        return
    assert isinstance(got, Array)
    assert got.dtype.name == want["dtype"]
    assert list(got.shape) == want["shape"]
    # Weak bools mean nothing: JAX marks some comparisons so, and we do not.
    assert got.dtype == bool or got.weak_type == want["weak"]
    kind = complex if got.dtype.kind == "c" else float
    expected = np.array([kind(v) for v in want["values"]]).reshape(got.shape)
    close(np.asarray(got).astype(expected.dtype), expected, got.dtype.name)


def close(actual, expected, dtype):
    tolerance = TOLERANCE.get(dtype, 0)
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=0.3 * tolerance * scale)


@pytest.mark.parametrize(("family", "line"), CASES, ids=[line for _, line in CASES])
def test_line(family, line, spaces):
    want = STORED[family]["values"][line]
    if line in NUMBERS:
        stored = [NUMBERS[line].get(k, value) for k, value in enumerate(want["values"])]
        want = {**want, "values": stored}
    if not (isinstance(want, dict) and "error" in want):
        check(eval(line, dict(spaces[family])), want)
        return
    with pytest.raises(getattr(builtins, want["error"])) as caught:
        eval(line, dict(spaces[family]))
    text = str(caught.value)
    assert text.startswith("[") and "; got " in text and " Fix: " in text


def arrays_of(space):
    return {name: value for name, value in space.items() if isinstance(value, Array)}


def same(got, want):
    assert tree.structure(got) == tree.structure(want)
    for one, other in zip(tree.leaves(got), tree.leaves(want), strict=True):
        one, other = jnp.asarray(one), jnp.asarray(other)
        assert one.dtype == other.dtype and one.shape == other.shape
        kind = complex if one.dtype.kind == "c" else float
        close(np.asarray(one).astype(kind), np.asarray(other).astype(kind), one.dtype.name)


@pytest.mark.parametrize("family", list(STORED))
def test_jit_changes_nothing(family, spaces):
    """All lines of a family as one program."""
    space, lines = spaces[family], STORED[family]["jit"]

    def program(arrays):
        return [eval(line, {**space, **arrays}) for line in lines]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = gpuflow.jit(program)(arrays_of(space))
        want = program(arrays_of(space))
    for line, one, other in zip(lines, got, want, strict=True):
        try:
            same(one, other)
        except AssertionError as error:
            raise AssertionError(line) from error


@pytest.mark.parametrize("family", list(STORED))
def test_vmap_changes_nothing(family, spaces):
    """Two equal elements give two equal results."""
    space, lines = spaces[family], STORED[family]["vmap"]
    twice = {name: jnp.stack([x, x]) for name, x in arrays_of(space).items()}
    for line in lines:

        def function(arrays, line=line):
            return eval(line, {**space, **arrays})

        want = function(arrays_of(space))
        got = gpuflow.vmap(function)(twice)
        try:
            for k in (0, 1):
                same(tree.map(lambda x, k=k: x[k], got), want)
        except AssertionError as error:
            raise AssertionError(line) from error


# --- axes and shapes as programs write them -------------------------------------------------


@pytest.mark.parametrize(
    "axes", [range(2), np.array([0, 1]), jnp.array([0, 1]), (0, 1)], ids=lambda a: type(a).__name__
)
def test_several_axes_as_a_range_or_an_array(axes):
    x = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    both = (0, 1)
    for name in ("sum", "mean", "max", "std", "any", "flip", "median"):
        np.testing.assert_allclose(
            getattr(jnp, name)(x, axis=axes), getattr(np, name)(x, axis=both), rtol=1e-6
        )
    assert jnp.expand_dims(x, axes).shape == (1, 1, 2, 3, 4)
    assert jnp.squeeze(np.ones((1, 1, 3)), axes).shape == (3,)
    assert jnp.moveaxis(x, axes, range(1, 3)).shape == (4, 2, 3)
    np.testing.assert_allclose(jnp.linalg.norm(x, axis=axes), np.linalg.norm(x, axis=both), 1e-6)
    assert jnp.sum(x, axis=np.array(1)).shape == (2, 4)


def test_split_at_an_array_of_one_place():
    x = np.arange(6.0)
    for places in (np.array([4]), jnp.array([4])):
        assert [part.shape for part in jnp.split(x, places)] == [(4,), (2,)]
        assert [part.shape for part in jnp.array_split(x, places)] == [(4,), (2,)]
    assert [part.shape for part in jnp.split(x, np.array(3))] == [(2,)] * 3


def test_none_has_no_axes():
    assert jnp.shape(None) == () and jnp.ndim(None) == 0 and jnp.size(None) == 1


def test_numbers_are_constant_polynomials():
    line = np.array([1.0, 3.0], np.float32)
    for name in ("polyadd", "polysub", "polymul"):
        for pair in ((2.0, line), (line, 2.0)):
            expected = getattr(np, name)(*pair)
            np.testing.assert_array_equal(getattr(jnp, name)(*pair), expected)
    np.testing.assert_array_equal(jnp.polydiv(line, 2.0)[0], np.polydiv(line, 2.0)[0])
    np.testing.assert_array_equal(jnp.polyval(2.0, line), [2.0, 2.0])
    np.testing.assert_array_equal(jnp.polyint(2.0), [2.0, 0.0])
    assert jnp.polyder(2.0).shape == (0,)
