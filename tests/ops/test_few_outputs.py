"""Convolutions with few outputs, as a product and sums of its shifted parts."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.ops.contractions.few_outputs import MAX_OUTPUTS

RANDOM = np.random.default_rng(0)


def normals(*shape, dtype=np.float32):
    return RANDOM.standard_normal(shape).astype(dtype)


def calls_of(function, *args):
    """The names of what a program calls; kernels have none."""
    plan = compile_plan(gf.jit(function).lower(*args).jaxpr, ())[0]
    return [step.name for step in plan.steps if step.kind != "kernel"]


def direct(x, k, strides, pads, holes, gaps):
    """The sum over taps in float64: x is (batch, depth, ...), k is (outputs, depth, ...)."""
    x, k = x.astype(np.float64), k.astype(np.float64)
    spread = np.zeros((*x.shape[:2], *[(n - 1) * h + 1 for n, h in zip(x.shape[2:], holes)]))
    spread[(..., *[slice(None, None, h) for h in holes])] = x
    low, high = zip(*pads, strict=True)
    grown = np.pad(spread, [(0, 0)] * 2 + [(max(a, 0), max(b, 0)) for a, b in pads])
    cut = [slice(max(-a, 0), n - max(-b, 0)) for a, b, n in zip(low, high, grown.shape[2:])]
    grown = grown[(..., *cut)]
    reach = [(n - 1) * g + 1 for n, g in zip(k.shape[2:], gaps)]
    sizes = [max((n - r) // s + 1, 0) for n, r, s in zip(grown.shape[2:], reach, strides)]
    out = np.zeros((x.shape[0], k.shape[0], *sizes))
    for tap in np.ndindex(*k.shape[2:]):
        at = [slice(t * g, t * g + n * s, s) for t, g, n, s in zip(tap, gaps, sizes, strides)]
        part = grown[(..., *at)][(..., *[slice(n) for n in sizes])]
        out += np.einsum("bc...,oc->bo...", part, k[(..., *tap)])
    return out


# space of the input, of the kernel, pads, holes of the input, gaps of the kernel
CASES = {
    "same": ((9, 40), (3, 3), ((1, 1), (1, 1)), (1, 1), (1, 1)),
    "valid": ((20, 17), (3, 2), ((0, 0), (0, 0)), (1, 1), (1, 1)),
    "wide margins": ((16, 17), (3, 3), ((5, 7), (9, 0)), (1, 1), (1, 1)),
    "cut margins": ((20, 21), (3, 3), ((-2, 1), (0, -5)), (1, 1), (1, 1)),
    "gaps": ((20, 21), (3, 3), ((2, 3), (4, 1)), (1, 1), (2, 3)),
    "holes": ((16, 17), (4, 4), ((2, 2), (2, 2)), (2, 2), (1, 1)),
    "uneven holes": ((16, 17), (4, 3), ((1, 2), (3, 0)), (2, 3), (1, 1)),
    "holes that one tap meets": ((16, 17), (2, 3), ((0, 0), (1, 1)), (2, 3), (1, 1)),
    "phases without a tap": ((16, 17), (2, 2), ((1, 1), (1, 0)), (2, 1), (2, 1)),
    "holes, gaps and cut margins": ((16, 17), (3, 3), ((-1, 3), (2, -4)), (2, 1), (3, 2)),
    "kernel as large as the input": ((5, 60), (5, 5), ((0, 0), (2, 2)), (1, 1), (1, 1)),
    "one dimension": ((300,), (5,), ((2, 2),), (1,), (1,)),
    "one dimension with holes": ((300,), (9,), ((3, 4),), (3,), (1,)),
    "three dimensions": ((7, 8, 9), (2, 2, 3), ((1, 0), (0, 1), (1, 1)), (1, 1, 1), (1, 1, 1)),
    "three with holes": ((7, 8, 9), (2, 3, 2), ((1, 1), (1, 1), (0, 1)), (2, 1, 2), (1, 1, 1)),
}
LETTERS = "DHW"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("layout", ["first", "last", "mixed"])
def test_values(name, layout):
    size, taps, pads, holes, gaps = CASES[name]
    x, k = normals(2, 48, *size), normals(3, 48, *taps)
    space = LETTERS[-len(size) :]
    specs = {
        "first": (f"NC{space}", f"OI{space}", f"NC{space}"),
        "last": (f"N{space}C", f"{space}IO", f"N{space}C"),
        "mixed": (f"C{space}N", f"I{space}O", f"{space}NC"),
    }[layout]
    ones = (1,) * len(size)

    def moved(array, names, to):
        return np.transpose(array, [names.index(letter) for letter in to])

    def function(x, k):
        return lax.conv_general_dilated(x, k, ones, pads, holes, gaps, dimension_numbers=specs)

    args = moved(x, f"NC{space}", specs[0]), moved(k, f"OI{space}", specs[1])
    wanted = moved(direct(x, k, ones, pads, holes, gaps), f"NC{space}", specs[2])
    np.testing.assert_allclose(gf.jit(function)(*args), wanted, rtol=1e-4, atol=1e-4)
    assert "conv_general_dilated" not in calls_of(function, *args)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_other_types(dtype):
    with gf.enable_x64():
        x, k = (jnp.asarray(normals(*s), dtype) for s in ((2, 32, 12, 13), (2, 32, 3, 3)))
        got = gf.jit(lambda x, k: lax.conv(x, k, (1, 1), "SAME"))(x, k)
        assert got.dtype == dtype
        args = (np.asarray(a.astype(np.float64)) for a in (x, k))
        wanted = direct(*args, (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1))
        rtol = {"float64": 1e-13, "float16": 4e-3, "bfloat16": 4e-2}[dtype]
        np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=rtol, atol=10 * rtol)


def test_what_stays_a_convolution():
    def calls(x, k, **options):
        return calls_of(
            lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME", **options), x, k
        )

    assert calls(normals(2, 64, 20, 20), normals(MAX_OUTPUTS, 64, 3, 3)) == ["dot_general"]
    for outputs, depth in ((MAX_OUTPUTS + 1, 64), (3, 8), (8, 16)):
        x, k = normals(2, depth, 20, 20), normals(outputs, depth, 3, 3)
        assert calls(x, k) == ["conv_general_dilated"]
    x, k = normals(2, 64, 20, 20), normals(4, 32, 3, 3)
    assert calls(x, k, feature_group_count=2) == ["conv_general_dilated"]
    assert calls(normals(1, 64, 5, 5), normals(2, 64, 3, 3)) == ["conv_general_dilated"]


def test_the_gradient_of_a_first_layer():
    x, k = normals(2, 3, 30, 31), normals(32, 3, 7, 7)

    def loss(x, k):
        return (lax.conv(x, k, (2, 2), "SAME") ** 2).sum() / 2

    got = gf.jit(gf.grad(loss))(x, k)
    y = lax.conv(x, k, (2, 2), "SAME")
    pads = lax.padtype_to_pads((30, 31), (7, 7), (2, 2), "SAME")
    grown = [n + low + high for n, (low, high) in zip((30, 31), pads, strict=True)]
    wanted = np.zeros((2, 3, *grown))
    for i, j in np.ndindex(7, 7):
        part = np.einsum("bohw,oc->bchw", np.asarray(y, np.float64), k[:, :, i, j])
        wanted[:, :, i : i + 2 * y.shape[2] : 2, j : j + 2 * y.shape[3] : 2] += part
    (a, _), (b, _) = pads
    wanted = wanted[:, :, a : a + 30, b : b + 31]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-2)
    assert "conv_general_dilated" in calls_of(gf.grad(loss), x, k)  # the layer itself


def test_derivatives_and_vmap():
    x, k = normals(3, 2, 32, 12, 13), normals(3, 2, 32, 3, 3)

    def conv(x, k):
        return jnp.tanh(lax.conv(x, k, (1, 1), "SAME"))

    def loss(x, k):
        return (conv(x, k) ** 2).sum()

    for function in (conv, gf.grad(loss), gf.grad(loss, 1)):
        for axes in ((0, None), (None, 0), (0, 0)):
            args = [a if axis == 0 else a[0] for a, axis in zip((x, k), axes, strict=True)]
            got = gf.jit(gf.vmap(function, axes))(*args)
            for n, row in enumerate(got):
                one = [a[n] if axis == 0 else a for a, axis in zip(args, axes, strict=True)]
                np.testing.assert_allclose(row, function(*one), rtol=1e-3, atol=1e-3)
