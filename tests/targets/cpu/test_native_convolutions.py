"""Native convolutions: every way to pack and split them gives what NumPy gives in float64."""

import os
import subprocess
import sys

import numpy as np
import pytest
from together import together

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.core.blocks import Convolution
from gpuflow.core.views import contiguous
from gpuflow.targets.cpu.library import convolution_calls, convolution_matrices
from gpuflow.targets.cpu.library.blas import private_blas
from gpuflow.targets.cpu.library.convolution_calls import plan_convolution
from gpuflow.targets.cpu.target import NATIVE_TARGET

needs_blas = pytest.mark.skipif(private_blas() is None, reason="NumPy came without OpenBLAS")
LAYOUTS = {
    1: [("NCW", "OIW", "NCW"), ("NWC", "WIO", "NWC"), ("NCW", "WIO", "WNC")],
    2: [
        ("NCHW", "OIHW", "NCHW"),
        ("NHWC", "HWIO", "NHWC"),
        ("NHWC", "OIHW", "NCHW"),
        ("CHWN", "IHWO", "NCHW"),
    ],
    3: [("NCDHW", "OIDHW", "NCDHW"), ("NDHWC", "DHWIO", "NDHWC")],
}


def _random_case(seed):
    generator = np.random.default_rng(seed)
    space = int(generator.choice([1, 2, 2, 3]))
    groups = int(generator.choice([1, 1, 2, 4]))
    batch_groups = int(generator.choice([1, 1, 2])) if groups == 1 else 1
    examples, outputs = int(generator.integers(1, 4)), int(generator.choice([1, 3, 8]))
    inputs = int(generator.choice([1, 3, 8]))
    kernel = generator.integers(1, [8, 5, 3][space - 1], space)
    sizes = generator.integers(1, [40, 12, 6][space - 1], space)
    draw = lambda choices: tuple(int(n) for n in generator.choice(choices, space))  # noqa: E731
    pads = zip(draw(range(-2, 4)), draw(range(-2, 4)), map(int, sizes), strict=True)
    pads = tuple((low, max(high, -low - size)) for low, high, size in pads)
    layout = LAYOUTS[space][generator.integers(len(LAYOUTS[space]))]
    letters = LAYOUTS[space][0]
    shapes = (
        (examples * batch_groups, inputs * groups, *sizes),
        (outputs * groups * batch_groups, inputs, *kernel),
    )
    operands = [
        np.transpose(generator.normal(size=shape), [plain.index(letter) for letter in spec])
        for shape, plain, spec in zip(shapes, letters, layout, strict=False)
    ]
    rest = (
        draw([1, 2, 3]),
        pads,
        draw([1, 1, 2, 3]),
        draw([1, 1, 2]),
        layout,
        groups,
        batch_groups,
    )
    return (*operands, rest)


def _with_gradients(rest):
    strides, pads, holes, gaps, layout, groups, batch_groups = rest

    def call(lhs, rhs, ct):
        out, pull = gf.vjp(
            lambda a, b: lax.conv_general_dilated(
                a, b, strides, pads, holes, gaps, layout, groups, batch_groups
            ),
            lhs,
            rhs,
        )
        return (out, *pull(ct)) if ct is not None else out

    return call


def _check(seed, dtype):
    lhs, rhs, rest = _random_case(seed)
    call = _with_gradients(rest)
    # Single precision adds up to a thousand products here, in another order.
    tolerance = 2e-4 if dtype == np.float32 else 1e-10
    with gf.enable_x64():
        shape = call(lhs, rhs, None).shape
        ct = np.random.default_rng(seed).normal(size=shape)
        wanted = call(jnp.asarray(lhs), jnp.asarray(rhs), jnp.asarray(ct))
        got = gf.jit(call)(*(np.asarray(x, dtype) for x in (lhs, rhs, ct)))
        for one, want in zip(got, wanted, strict=True):
            assert one.dtype == dtype
            scale = max(np.abs(want).max(initial=0), 1)
            np.testing.assert_allclose(one, want, rtol=tolerance, atol=tolerance * scale)


@together(size=10)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(40))
def test_values_and_gradients(seed, dtype):
    _check(seed, dtype)


@together(size=10)
@needs_blas
@pytest.mark.parametrize("slot", [1 << 10, 1 << 12])
@pytest.mark.parametrize("seed", range(40, 80))
def test_small_blocks_and_split_sums(monkeypatch, seed, slot):
    monkeypatch.setattr(convolution_calls, "SLOT_BYTES", slot)
    monkeypatch.setattr(convolution_calls, "_MIN_FLOPS", 0)
    monkeypatch.setattr(convolution_matrices, "_MIN_COLUMNS", 4)
    _check(seed, np.float32)


def _record(rank, strides=None, pads=None):
    space, ones = tuple(range(2, rank)), (1,) * (rank - 2)
    roles = ((), (0,), (1,), space)
    return Convolution(
        roles, roles, roles, strides or ones, pads or ((0, 0),) * len(ones), ones, ones
    )


def _call_of(lhs, rhs, out, record, threads=2):
    views = contiguous(lhs), contiguous(rhs)
    made = plan_convolution(record, *views, out, np.dtype(np.float32), threads)
    if made is None:
        return None
    (call,), has_zeros = made
    assert not has_zeros
    return call


def test_the_split_does_not_depend_on_threads():
    same = ((1, 1), (1, 1))
    for lhs, rhs, out in (
        ((64, 32, 14, 14), (64, 32, 3, 3), (64, 64, 14, 14)),
        ((1, 64, 56, 56), (64, 64, 3, 3), (1, 64, 56, 56)),
        ((2, 1, 300, 300), (8, 1, 3, 3), (2, 8, 300, 300)),
    ):
        calls = [_call_of(lhs, rhs, out, _record(4, pads=same), n) for n in (1, 2, 7)]
        assert len({(call.arguments, call.extent, call.partial_elements) for call in calls}) == 1
        assert calls[0].extent >= 16  # enough for several threads


def test_kernels_of_size_one_read_their_operand_in_place():
    call = _call_of((8, 16, 6, 6), (4, 16, 1, 1), (8, 4, 6, 6), _record(4))
    assert call is not None and call.arguments[25] == 0 and call.rhs_copy is None
    x = np.random.default_rng(0).normal(size=(8, 16, 6, 6)).astype(np.float32)
    w = np.random.default_rng(1).normal(size=(4, 16, 1, 1)).astype(np.float32)
    got = gf.jit(lambda x, w: lax.conv(x, w, (1, 1), "VALID"))(x, w)
    np.testing.assert_allclose(
        got, np.einsum("nchw,oc->nohw", x, w[:, :, 0, 0]), rtol=1e-5, atol=1e-5
    )


def test_what_has_no_native_form():
    assert _call_of((0, 2, 5), (3, 2, 2), (0, 3, 4), _record(3)) is None
    assert _call_of((2, 0, 5), (3, 0, 2), (2, 3, 4), _record(3)) is None
    assert _call_of((1, 1, 2, 2, 2, 2), (1, 1, 2, 2, 2, 2), (1, 1, 1, 1, 1, 1), _record(6)) is None
    # One packed column alone is larger than what a thread may have.
    long = 1 << 20
    assert _call_of((1, 1, 3 * long), (1, 1, long), (1, 1, 2 * long + 1), _record(3)) is None
    whole = [np.ones(shape, np.int32) for shape in ((1, 1, 4), (1, 1, 2))]
    jaxpr = gf.make_jaxpr(lambda x, w: lax.conv(x, w, (1,), "VALID"))(*whole)
    (step,) = compile_plan(jaxpr, target=NATIVE_TARGET)[0].steps
    assert step.implementation is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("preferred", [None, "float32"])
def test_narrow_floats_add_in_float32(dtype, preferred):
    generator = np.random.default_rng(12)
    x = jnp.asarray(generator.normal(size=(2, 40, 9))).astype(dtype)
    w = jnp.asarray(generator.normal(size=(3, 40, 4))).astype(dtype)

    def call(x, w):
        return lax.conv(x, w, (1,), "SAME", preferred_element_type=preferred)

    want, got = call(x, w), gf.jit(call)(x, w)
    assert got.dtype == want.dtype == np.dtype(preferred or x.dtype)
    # One rounding to the result's type; sums of 160 products differ in their last bits.
    tolerance = 1e-5 if preferred else 2e-2
    np.testing.assert_allclose(
        np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("operand", [0, 1])
def test_margins_are_zeros_that_are_multiplied(operand, value):
    generator = np.random.default_rng(2)
    operands = [generator.normal(size=(2, 9, 6, 5)), generator.normal(size=(3, 9, 3, 3))]
    operands = [x.astype(np.float32) for x in operands]
    operands[operand][0, 1, 0, 2] = value

    def call(x, w):
        return lax.conv_general_dilated(x, w, (1, 2), ((1, 2), (2, 0)))

    with np.errstate(invalid="ignore"):
        want = call(*map(jnp.asarray, operands))
    np.testing.assert_allclose(gf.jit(call)(*operands), want, rtol=1e-4, atol=1e-4)
    if operand == 1:
        assert np.isnan(want[0, 0]).any()  # zero times infinity


def test_operands_that_are_not_row_major():
    x = np.random.default_rng(3).normal(size=(9, 8, 3, 2)).astype(np.float32)
    w = np.random.default_rng(4).normal(size=(2, 3, 3, 5)).astype(np.float32)

    def call(x, w):
        return lax.conv(x.T[:, :, ::2], jnp.flip(w, (0, 1)).T[::-1], (1, 1), "SAME")

    want = call(jnp.asarray(x), jnp.asarray(w))
    np.testing.assert_allclose(gf.jit(call)(x, w), want, rtol=1e-4, atol=1e-5)


@needs_blas
def test_repeated_calls_are_equal_bit_by_bit():
    """Threads take blocks in another order each time; sums are made in one order."""
    generator = np.random.default_rng(5)
    x = generator.normal(size=(32, 16, 15, 15)).astype(np.float32)
    w = generator.normal(size=(24, 16, 3, 3)).astype(np.float32)
    ct = generator.normal(size=(32, 24, 15, 15)).astype(np.float32)
    rest = ((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), LAYOUTS[2][0], 1, 1)
    call = gf.jit(_with_gradients(rest))
    first = [np.array(value) for value in call(x, w, ct)]
    for _ in range(10):
        for got, want in zip(call(x, w, ct), first, strict=True):
            np.testing.assert_array_equal(got, want)


def test_vmap_makes_free_dimensions_and_batch():
    x = np.random.default_rng(6).normal(size=(3, 2, 4, 9)).astype(np.float32)
    w = np.random.default_rng(7).normal(size=(3, 5, 4, 3)).astype(np.float32)

    def one(x, w):
        return lax.conv(x, w, (1,), "SAME")

    for axes in ((0, 0), (0, None), (None, 0)):
        args = [a if axis == 0 else a[0] for a, axis in zip((x, w), axes, strict=True)]
        got = gf.jit(gf.vmap(one, axes))(*args)
        for k in range(3):
            own = [a[k] if axis == 0 else a for a, axis in zip(args, axes, strict=True)]
            np.testing.assert_allclose(got[k], one(*own), rtol=1e-4, atol=1e-5)


def test_holes_are_not_multiplied():
    """A dilated input falls into phases; what no tap meets is zero."""
    views = contiguous((2, 3, 5, 6)), contiguous((4, 3, 1, 3))
    roles = ((), (0,), (1,), (2, 3))
    record = Convolution(roles, roles, roles, (1, 1), ((0, 1), (2, 2)), (2, 2), (1, 1))
    out = (2, 4, 10, 13)
    calls, has_zeros = plan_convolution(record, *views, out, np.dtype("f4"), 2)
    assert len(calls) == 2 and has_zeros
    x = np.random.default_rng(8).normal(size=(2, 3, 5, 6)).astype(np.float32)
    w = np.random.default_rng(9).normal(size=(4, 3, 1, 3)).astype(np.float32)

    def call(x, w):
        return lax.conv_with_general_padding(x, w, (1, 1), ((0, 1), (2, 2)), (2, 2), (1, 1))

    want = call(jnp.asarray(x), jnp.asarray(w))
    assert want.shape == out
    np.testing.assert_allclose(gf.jit(call)(x, w), want, rtol=1e-4, atol=1e-5)


def test_channels_in_the_middle_of_few_are_copied_once():
    x = np.random.default_rng(10).normal(size=(2, 9, 8, 6)).astype(np.float32)
    w = np.random.default_rng(11).normal(size=(3, 3, 1, 6)).astype(np.float32)

    def call(x, w):
        return lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=LAYOUTS[2][1], feature_group_count=6
        )

    want = call(jnp.asarray(x), jnp.asarray(w))
    np.testing.assert_allclose(gf.jit(call)(x, w), want, rtol=1e-4, atol=1e-5)


PROGRAM = """
import hashlib, sys
import numpy as np
import gpuflow as gf
from gpuflow import lax
generator = np.random.default_rng(0)
x = generator.normal(size=(8, 16, 20, 20)).astype(np.float32)
w = generator.normal(size=(24, 16, 3, 3)).astype(np.float32)
def call(x, w):
    y = lax.conv(x, w, (1, 1), "SAME")
    return (lax.reduce_window(y, -np.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), "SAME") ** 2).sum()
results = gf.jit(gf.value_and_grad(call, (0, 1)))(x, w)
digest = hashlib.sha256()
for value in gf.tree_util.tree_leaves(results):
    digest.update(np.asarray(value).tobytes())
print(digest.hexdigest())
"""


def test_results_do_not_depend_on_the_number_of_threads():
    found = set()
    for threads in ("1", "3"):
        environment = {**os.environ, "GPUFLOW_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout)
    assert len(found) == 1
