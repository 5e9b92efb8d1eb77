"""Transposed operands on the CPU: maps in tiles, and reductions with their loops exchanged."""

import itertools

import numpy as np
import pytest
from cpu_harness import call_of, calls_of, normals

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler.schedules.split_reduction import is_one_pass
from gpuflow.kir.nodes import Stride
from gpuflow.kir.verify import verify
from gpuflow.targets.cpu.codegen.schedules.copies import copy_kernel_call
from gpuflow.targets.cpu.codegen.schedules.tiled_maps import TILE, TILED_MAPS

# Around a tile, around a band of them, and primes.
SIZES = [(16, 300), (300, 16), (63, 64), (64, 65), (65, 129), (255, 257), (256, 256), (521, 67)]


def test_which_maps_are_tiled():
    def is_tiled(function, *shapes):
        (call,) = calls_of(function, *shapes)
        return bool(call.kernel.locals)

    assert is_tiled(lambda x: x.T + 1, (300, 300))
    assert is_tiled(lambda x, y: x + y.T, (300, 200), (200, 300))
    assert is_tiled(lambda x: jnp.swapaxes(x, 1, 2) * 2, (5, 40, 50))
    assert not is_tiled(lambda x: x + 1, (300, 300))
    assert not is_tiled(lambda x: x.T + 1, (30, 30))  # it is in the cache as a whole
    assert not is_tiled(lambda x: x.T + 1, (4, 5000))
    assert not is_tiled(lambda x: x[:, ::2] + 1, (300, 300))


def test_kernels_that_cannot_be_tiled():
    assert not TILED_MAPS.applies(call_of(lambda x: x + 1, (300, 300)).kernel)
    assert not TILED_MAPS.applies(call_of(lambda x: x.sum(0), (300, 300)).kernel)


@pytest.mark.parametrize("shape", SIZES)
def test_sums_with_a_transposed_array(shape):
    x, y = normals(*shape), normals(*shape[::-1], seed=1)
    found = gf.jit(lambda x, y: x + y.T)(x, y)
    np.testing.assert_array_equal(found, x + y.T)
    column, row = normals(shape[0], 1), normals(shape[1])
    found = gf.jit(lambda y, a, b: y.T * a - b)(y, column, row)
    # One multiplication and subtraction, which may be contracted.
    np.testing.assert_allclose(found, y.T * column - row, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("axes", [(0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_permutations(axes):
    x = normals(33, 70, 41)
    want = x.transpose(axes)
    np.testing.assert_array_equal(gf.jit(lambda x: x.transpose(axes))(x), want)
    np.testing.assert_array_equal(gf.jit(lambda x: -x.transpose(axes))(x), -want)


VIEWS = [lambda x: x[::-1].T, lambda x: x[:, ::-1].T, lambda x: x[3:, 7:].T]


@pytest.mark.parametrize("view", VIEWS)
def test_views_of_transposed_arrays(view):
    x = normals(200, 150)
    np.testing.assert_array_equal(gf.jit(view)(x), view(x))
    np.testing.assert_array_equal(gf.jit(lambda x: view(x) * 2)(x), view(x) * 2)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "bfloat16", "float64", "complex64"])
def test_dtypes(dtype):
    with gf.enable_x64(True):
        x = jnp.asarray((normals(130, 90) * 10).astype(np.int32)).astype(dtype)
        found = gf.jit(lambda x: (x.T, x.T + x.T[:, :1]))(x)
        np.testing.assert_array_equal(found[0], np.asarray(x).T)
        np.testing.assert_array_equal(found[1], np.asarray(x.T) + np.asarray(x.T[:, :1]))


def test_copies_that_kernels_are_for():
    assert copy_kernel_call([(300, 1), (300, 300)], 4).kernel.locals
    assert copy_kernel_call([(5, 90000), (300, 1), (300, 300)], 8).points == 5 * 90000
    verify(copy_kernel_call([(300, 1), (300, 300)], 4).kernel)
    assert copy_kernel_call([(300, 1), (300, 300)], 16) is None
    assert copy_kernel_call([(10, 1), (10, 10)], 4) is None
    assert copy_kernel_call([(90000, 9)], 4) is None
    known = {2: Stride.TWO, 3: Stride.THREE, 4: Stride.FOUR, -1: Stride.BACK, 1: Stride.UNIT}
    for stride, kind in known.items():
        for axes in ([(90000, stride)], [(300, 700), (300, stride)]):
            call = copy_kernel_call(axes, 4)
            assert call.kernel.operands[0].strides[-1] is kind
            verify(call.kernel)


@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "float32", "int64", "complex64"])
@pytest.mark.parametrize("step", [-1, 2, 3, 4, -2, 5, 8, 9])
def test_elements_that_lie_apart(step, dtype):
    """Of lengths that vectors do not divide, at the end of memory, with and without arithmetic."""
    with gf.enable_x64(True):
        for count in (4096, 4099, 12301, 70001):
            x = jnp.asarray((normals(count) * 10).astype(np.int32)).astype(dtype)
            want = np.asarray(x)[::step]
            copied, doubled, turned = gf.jit(
                lambda x: (x[::step], x[::step] + x[::step], x[: x.size // 2][::-1])
            )(x)
            np.testing.assert_array_equal(copied, want)
            np.testing.assert_array_equal(doubled, want + want)
            np.testing.assert_array_equal(turned, np.asarray(x)[: count // 2][::-1])
        rows = jnp.asarray((normals(90, 130) * 10).astype(np.int32)).astype(dtype)

        def views(x):
            return x[:, ::step], x[::-1], x[::-1, ::step], x[1:, 1::step] * x[0, 0]

        for got, want in zip(gf.jit(views)(rows), views(np.asarray(rows)), strict=True):
            np.testing.assert_array_equal(got, want)


def test_which_strides_are_in_the_text():
    def strides(function, *shapes):
        (call,) = calls_of(function, *shapes)
        return [o.strides[-1].value for o in call.kernel.operands if o.name.startswith("x")]

    assert strides(lambda x: jnp.exp(x[::2]), (9000,)) == ["2"]
    assert strides(lambda x: jnp.exp(x[::-1]), (9000,)) == ["-1"]
    assert strides(lambda x, y: x[:, ::3] + y, (300, 90), (300, 30)) == ["3", "1"]
    assert strides(lambda x: jnp.exp(x[::9]), (90000,)) == ["s"]
    assert strides(lambda x: jnp.exp(x[::2]), (900,)) == ["s"]  # one more kernel is not worth it


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(7, 5), (TILE, TILE), (300, 3), (3, 300), (1031, 517)])
def test_reductions_of_transposed_arrays(shape, axis):
    x = normals(*shape) + 1
    total, top = gf.jit(lambda x: (x.T.sum(axis), x.T.max(axis)))(x)
    np.testing.assert_allclose(total, x.T.astype(np.float64).sum(axis), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(top, x.T.max(axis))


def test_which_loops_are_exchanged():
    def kinds(function, *shapes):
        return [call.kernel.kind for call in calls_of(function, *shapes)]

    assert kinds(lambda x: x.T.sum(1), (170, 180)) == ["column"]
    assert kinds(lambda x: x.T.sum(0), (170, 180)) == ["row"]
    assert kinds(lambda x: x.sum(1), (170, 180)) == ["row"]
    assert kinds(lambda x: x.sum(0), (170, 180)) == ["column"]
    # A loop that needs the sum has to be in the row.
    kernel = call_of(lambda x: x / x.sum(1, keepdims=True), (170, 180)).kernel
    assert not is_one_pass(kernel)
    for function in (lambda x: x.T.sum(1), lambda x: x.T.sum(0)):
        verify(calls_of(function, (170, 180))[0].kernel)


# --- full reductions -------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7, 5), (300, 70), (3, 40, 50), (5, 1, 6, 301), (0, 4)])
def test_full_reductions_of_permuted_arrays(shape):
    x = normals(*shape) + 1
    weights = np.arange(x.size) % 7

    def results(xp, x, axes):
        y = xp.transpose(x, axes)
        flat = weights.reshape(y.shape).astype(x.dtype)
        return [xp.sum(y * y), xp.sum(y[::-1] * flat), xp.max(y, initial=-9), xp.sum(y + y[:1])]

    for axes in itertools.permutations(range(len(shape))):
        got = gf.jit(lambda x, axes=axes: results(jnp, x, axes))(x)
        for one, want in zip(got, results(np, x.astype(np.float64), axes), strict=True):
            np.testing.assert_allclose(one, want, rtol=1e-6, atol=1e-6)


def test_full_reductions_run_in_the_order_of_memory():
    def strides(function, *shapes):
        kernel = calls_of(function, *shapes)[0].kernel
        verify(kernel)
        return {o.name: o.strides[-1] for o in kernel.operands if o.name.startswith("x")}

    across, along = {"x0": Stride.ANY}, {"x0": Stride.UNIT}
    assert strides(lambda x: jnp.exp(x.T).sum(), (150, 160)) == along
    assert strides(lambda x: jnp.exp(x.transpose(2, 0, 1)).sum(), (15, 16, 17)) == along
    assert strides(lambda x: jnp.exp(x[:, ::2].T).sum(), (150, 160)) == across
    # Operands that lie differently: one of them is read across in any order.
    assert len(strides(lambda x, y: (x.T * y).sum(), (150, 160), (160, 150))) == 2


def test_positions_and_stores_keep_the_order_of_the_result():
    x = normals(90, 70)
    y, total, place = gf.jit(lambda x: (jnp.tanh(x.T), jnp.tanh(x.T).sum(), x.T.argmax()))(x)
    np.testing.assert_allclose(y, np.tanh(x.T), rtol=1e-6)
    np.testing.assert_allclose(total, np.tanh(x.T.astype(np.float64)).sum(), rtol=1e-5)
    assert place == x.T.argmax()
