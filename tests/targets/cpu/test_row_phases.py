"""Few long rows: each phase of a row kernel is a kernel of its own, and uses all threads."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cpu_harness import call_of, calls_of, normals

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler.schedules.phases import split_into_phases
from gpuflow.compiler.schedules.schedule import scheduled
from gpuflow.kir.verify import verify
from gpuflow.targets.cpu.codegen.schedules.row_phases import (
    FEW_ROWS,
    MAX_ROWS,
    MIN_LENGTH_OF_MANY_ROWS,
    MIN_ROW_LENGTH,
    ROW_PHASES,
)

ROOT = Path(__file__).resolve().parents[3]


def layernorm(x):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def statistics(x):
    """One stage of several reductions, another one, and stores of rows and of elements."""
    top = x.max(-1, keepdims=True)
    return jnp.exp(x - top), (x - top).mean(-1), x.var(-1), top[..., 0], x.argmin(-1)


def number_along(x, axis):
    return lax.broadcasted_iota(jnp.int32, x.shape, axis)


def by_row_number(x):
    """Each row's phases count from that row on."""
    triangle = number_along(x, x.ndim - 1) >= number_along(x, 0)
    return gf.nn.softmax(jnp.where(triangle, x * (1 + number_along(x, 0)), -9.0), -1)


FUNCTIONS = {
    "softmax": lambda x: gf.nn.softmax(x, -1),
    "log_softmax": lambda x: gf.nn.log_softmax(x, -1),
    "logsumexp": lambda x: gf.nn.logsumexp(x, -1),
    "layernorm": layernorm,
    "variance": lambda x: x.var(-1),
    "statistics": statistics,
    "gradient": gf.grad(lambda x: (gf.nn.log_softmax(x, -1) ** 2).mean()),
    "row of weights": lambda x: gf.nn.softmax(x * jnp.arange(x.shape[-1]), -1),
    "numbers of rows": by_row_number,
    "column of weights": lambda x: gf.nn.softmax(x, -1) * x[..., :1] + x.mean(-1, keepdims=True),
}


def calls(shape, function=layernorm):
    call = call_of(function, shape)
    launches = scheduled(call, lambda count: None, (ROW_PHASES,))
    return () if launches == (call,) else launches


# --- which calls ---------------------------------------------------------------------------


def test_few_long_rows_only():
    assert len(calls((1, MIN_ROW_LENGTH))) == 3
    assert len(calls((FEW_ROWS, MIN_ROW_LENGTH))) == 3 * FEW_ROWS
    assert calls((FEW_ROWS + 1, MIN_ROW_LENGTH)) == calls((1, MIN_ROW_LENGTH - 1)) == ()
    assert len(calls((MAX_ROWS, MIN_LENGTH_OF_MANY_ROWS))) == 3 * MAX_ROWS
    assert calls((MAX_ROWS + 1, MIN_LENGTH_OF_MANY_ROWS)) == ()
    assert calls((FEW_ROWS + 1, MIN_LENGTH_OF_MANY_ROWS - 1)) == ()
    assert calls((0, MIN_ROW_LENGTH)) == ()


def test_one_loop_over_a_row_stays_one_kernel():
    assert calls((1, MIN_ROW_LENGTH), lambda x: x.sum(-1)) == ()
    assert calls((1, MIN_ROW_LENGTH), lambda x: x + 1) == ()
    assert calls((MIN_ROW_LENGTH, 4), lambda x: x.sum(0)) == ()


def test_each_phase_is_split():
    extents = [call.extent for call in calls_of(layernorm, (1, 1 << 20))]
    assert extents == [64, 1, 64, 1, 1 << 20]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_kernels_are_valid(name):
    shapes = ((2, MIN_ROW_LENGTH),)
    phases = split_into_phases(call_of(FUNCTIONS[name], *shapes).kernel, keeps_rows=False)
    assert phases is not None
    for kernel in phases.kernels:
        verify(kernel)
        assert len(kernel.axes) == 1
    kinds = [kernel.kind for kernel in phases.kernels]
    assert set(kinds[:-1]) == {"full"} and kinds[-1] in ("full", "map")


# --- results -------------------------------------------------------------------------------

SHAPES = [(1, MIN_ROW_LENGTH), (2, MIN_ROW_LENGTH + 13), (2, 1, 100_003)]


def assert_accurate(function, x, found):
    """As accurate as rounding each element of the result, and its exponent, allows."""
    with gf.enable_x64():
        wanted = function(jnp.asarray(x.astype(np.float64)))
    pairs = zip(gf.tree_util.tree_leaves(found), gf.tree_util.tree_leaves(wanted), strict=True)
    for a, b in pairs:
        a, b = np.asarray(a), np.asarray(b)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=3e-7 * np.abs(b).max())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results(name, shape):
    x = normals(*shape)
    assert_accurate(FUNCTIONS[name], x, gf.jit(FUNCTIONS[name])(x))


VIEWS = {
    "transposed": lambda x: x.T,
    "reversed": lambda x: x.T[::-1, ::-1],
    "every second": lambda x: x.T[:, ::2],
    "middle": lambda x: x.T[:, None, 7:-8],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name):
    x, view = normals(2 * MIN_ROW_LENGTH + 15, 2), VIEWS[name]
    found = gf.jit(lambda x: (layernorm(view(x)), gf.nn.softmax(view(x), -1)))(x)
    assert_accurate(lambda x: (layernorm(view(x)), gf.nn.softmax(view(x), -1)), x, found)


def test_rows_of_two_axes():
    x = normals(2, 300, 400)
    found = gf.jit(lambda x: gf.nn.softmax(x[:, ::-1, 1:], (-2, -1)))(x)
    assert_accurate(lambda x: gf.nn.softmax(x[:, ::-1, 1:], (-2, -1)), x, found)


@pytest.mark.parametrize("name", ["softmax", "layernorm"])
def test_into_the_memory_of_the_operand(name):
    x = normals(2, MIN_ROW_LENGTH)
    found = gf.jit(FUNCTIONS[name], donate_argnums=0)(jnp.asarray(x))
    assert_accurate(FUNCTIONS[name], x, found)


def test_an_operand_of_a_row_that_is_overwritten():
    """The scale of a row is read by all phases, so that the first ones must not write it."""
    x, scale = normals(2, MIN_ROW_LENGTH), np.array([[1.5], [0.5]], np.float32)

    def function(x, scale):
        centered = x * scale - (x * scale).mean(-1, keepdims=True)
        return centered * scale, scale + (centered**2).sum(-1, keepdims=True)

    found = gf.jit(function, donate_argnums=1)(x, jnp.asarray(scale))
    for a, b in zip(found, function(x.astype(np.float64), scale.astype(np.float64)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_in_a_scan():
    x = normals(3, 1, MIN_ROW_LENGTH)
    _, found = gf.jit(lambda x: gf.lax.scan(lambda c, x: (c, gf.nn.softmax(x, -1)), 0, x))(x)
    assert_accurate(FUNCTIONS["softmax"], x, found)


_HASH = """
import hashlib, numpy as np, gpuflow as gf, gpuflow.numpy as jnp
x = np.random.default_rng(0).standard_normal((2, 100_003), dtype=np.float32)
made = gf.jit(lambda x: (gf.nn.softmax(x, -1), gf.nn.logsumexp(x, -1), x.var(-1)))(x)
print(hashlib.sha256(b"".join(np.asarray(part).tobytes() for part in made)).hexdigest())
"""


def test_results_do_not_depend_on_the_number_of_threads():
    found = set()
    for threads in (1, 2, 3):
        environment = {**os.environ, "GPUFLOW_NUM_THREADS": str(threads)}
        ran = subprocess.run(
            [sys.executable, "-c", _HASH],
            cwd=ROOT,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        found.add(ran.stdout)
    assert len(found) == 1
