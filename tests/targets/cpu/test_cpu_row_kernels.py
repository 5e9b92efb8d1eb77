"""Row kernels on the CPU: values that are kept in the output's row, and short rows."""

import re

import numpy as np
import pytest
from cpu_harness import call_of, calls_of, normals
from loop_texts import vectors

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.kir.nodes import Apply, Mode
from gpuflow.kir.walk import statements
from gpuflow.targets.cpu.codegen.build import assembly
from gpuflow.targets.cpu.codegen.loop_compiler import compile_module
from gpuflow.targets.cpu.codegen.loops.nodes import InvalidProgram
from gpuflow.targets.cpu.codegen.loops.parser import parsed_source
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.cpu.codegen.schedules.row_values import cache_row_values
from gpuflow.targets.cpu.codegen.schedules.rows_across_lanes import (
    MIN_TRANSPOSED,
    ROWS_ACROSS_LANES,
)
from gpuflow.targets.cpu.runtime.kernels import print_cpu


def softmax(x):
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def log_softmax(x):
    y = x - x.max(-1, keepdims=True)
    return y - jnp.log(jnp.exp(y).sum(-1, keepdims=True))


def logsumexp(x):
    top = x.max(-1, keepdims=True)
    return jnp.log(jnp.exp(x - top).sum(-1)) + top[..., 0]


def cross_entropy(x):
    chosen = jnp.arange(x.shape[-1]) == 1
    return -(jnp.where(chosen, log_softmax(x), 0.0)).sum(-1)


def standardize(x):
    centered = x - x.mean(-1, keepdims=True)
    return centered / jnp.sqrt((centered * centered).mean(-1, keepdims=True) + 1e-6)


def exp_and_softmax(x):
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e, e / e.sum(-1, keepdims=True)


def two_stores(x):
    """The row that keeps exp is stored before exp is used for the other one."""
    e = jnp.exp(x - x.max(-1, keepdims=True))
    total = e.sum(-1, keepdims=True)
    return x + total, e / total


ROWS = [softmax, log_softmax, logsumexp, cross_entropy, standardize, exp_and_softmax, two_stores]


def count(kernel, fn):
    return sum(isinstance(s, Apply) and s.fn == fn for s in statements(kernel.body))


# --- kept values ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_softmax_evaluates_exp_once(dtype):
    kernel = call_of(softmax, (100, 300), dtype=dtype).kernel
    kept = cache_row_values(kernel)
    assert count(kernel, "exp") == 2
    assert count(kept, "exp") == 1
    (out,) = [o for o in kept.operands if o.mode is Mode.INOUT]
    assert [o.name for o in kept.operands] == [o.name for o in kernel.operands]
    assert out.name.startswith("o")


@pytest.mark.parametrize(
    "function, dtype",
    [
        (log_softmax, np.float32),  # the final loop has no use for exp
        (logsumexp, np.float32),  # there is no final loop
        (lambda x: softmax(x.astype("f")).astype("float16"), np.float16),  # it would be rounded
        (lambda x: x + 1, np.float32),
    ],
)
def test_kernels_that_keep_nothing(function, dtype):
    kernel = call_of(function, (100, 300), dtype=dtype).kernel
    assert cache_row_values(kernel) == kernel


# --- short rows -------------------------------------------------------------------------------


def test_which_rows_are_narrow():
    is_narrow = ROWS_ACROSS_LANES.applies
    assert is_narrow(call_of(softmax, (100, 10)).kernel)
    assert not is_narrow(call_of(softmax, (100, 17)).kernel)
    assert is_narrow(call_of(lambda x: x.argmax(1), (100, 10)).kernel)
    # Sums and maxima are faster in their own order.
    assert not is_narrow(call_of(lambda x: x.mean(1), (100, 10)).kernel)
    assert not is_narrow(call_of(lambda x: x - x.max(1, keepdims=True), (100, 10)).kernel)

    def text(rows):
        (call,) = calls_of(softmax, (rows, 10))
        return print_cpu(call.kernel).text

    assert "_tile" in text(1000) and "_tile" not in text(100)


def test_which_rows_are_a_few_vectors():
    def is_short(width):
        (call,) = calls_of(softmax, (200, width))
        return call.kernel.axes[-1].is_short

    assert [is_short(n) for n in (16, 17, 127, 128)] == [False, True, True, False]
    (call,) = calls_of(softmax, (200, 50))
    assert "short_range(0, n_i1)" in print_cpu(call.kernel).text
    source = print_cpu(call.kernel)
    # One vector a turn: written so, or LLVM is told.
    assert vectors(source) == 1 or "interleave.count" in str(compile_module(source))


@pytest.mark.parametrize(
    "function, fewest", [(lambda x: x + x[:1], 3), (lambda x: x.sum(1), 8)], ids=["map", "row"]
)
def test_loops_of_a_known_length_are_left_to_the_vectorizer(function, fewest):
    """LLVM wrote out all 16 channels of a map, and made scalar code of float16: 6 times the time.
    What adds fewer than 8 elements is faster one after the other."""
    for width in (2, 3, 7, 8, 16):
        source = print_cpu(call_of(function, (500, width)).kernel)
        head = f"short_range(0, {width})" if width >= fewest else f"range({width})"
        assert head in source.text
        written = compile_module(source)
        is_told = "unroll.disable" in str(written)
        assert (is_told or written.is_fully_vectorized) == (width >= fewest)  # or it is one vector
    source = print_cpu(call_of(function, (500, 17)).kernel)
    assert "short_range" not in source.text


@pytest.mark.skipif(not cpu_target().is_x86 or cpu_target().has_masks, reason="AVX2 alone")
def test_no_masked_stores():
    """They took ten times as long as others: 1.5 ms, not 0.2, for x + row with rows of 9."""

    def masks(function, shape, dtype="float32"):
        text = assembly(print_cpu(call_of(function, shape, dtype=dtype).kernel))
        return len(re.findall(r"maskmov\w+\t(?:%[xy]mm\d+, ){2}", text))  # loads name memory first

    for width in (3, 5, 7, 9, 12, 15):
        assert not masks(lambda x: x + x[:1], (500, width))
        assert not masks(lambda x: x.sum(1), (500, width))
        assert not masks(lambda x: jnp.exp(x) + x[:1], (500, width))
    # Places and values of maxima that stay as they are; what comes out is stored once for 1024.
    for dtype, halves in (("float32", 1), ("int32", 1), ("float64", 2)):
        assert masks(lambda x: x.argmax(0), (500, 300), dtype) <= halves


def test_other_steps_are_not_compiled():
    text = "def kernel_f(words, lo, hi):\n    for i in range(0, hi, 2):\n        pass\n"
    with pytest.raises(InvalidProgram, match="range"):
        compile_module(parsed_source(text, "kernel_f"))


# --- results ----------------------------------------------------------------------------------


def many(rows, width):
    """A number of rows at which narrow ones are turned."""
    return rows + MIN_TRANSPOSED // width if width <= 16 else rows


@pytest.mark.parametrize("width", [1, 3, 8, 10, 16, 17, 32, 65, 127, 128, 4097])
@pytest.mark.parametrize("function", ROWS, ids=lambda f: f.__name__)
def test_rows_of_every_width(function, width):
    for rows in (1, 2, 63, 64, 65, 200, *[many(n, width) for n in (1, 2, 63, 64, 65)]):
        x = normals(rows, width, seed=rows) * 3
        found, want = gf.jit(function)(x), function(x.astype(np.float64))
        pairs = [found, want] if isinstance(found, tuple) else [[found], [want]]
        for a, b in zip(*pairs, strict=True):
            # Values up to 10 with a few roundings each.
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize("width", [10, 100])
@pytest.mark.parametrize(
    "view", [lambda x: x[:, ::-1], lambda x: x[::2, 1::3], lambda x: x.swapaxes(0, 1), lambda x: x]
)
def test_rows_of_views(view, width):
    rows = 3 * many(70, width)
    x = normals(width, rows) if view(np.zeros((2, 3))).shape == (3, 2) else normals(rows, width)
    found = gf.jit(lambda x: softmax(view(x)))(x)
    np.testing.assert_allclose(found, softmax(view(x.astype(np.float64))), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("width", [5, 50])
def test_dtypes_of_rows(dtype, width):
    with gf.enable_x64(True):
        x = jnp.asarray(normals(many(131, width), width)).astype(dtype)
        found = np.asarray(gf.jit(softmax)(x)).astype(np.float64)
        want = softmax(np.asarray(x).astype(np.float64))
    # Half a unit in the last place of numbers up to 1, for each of about four roundings.
    precision = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 5e-7, "float64": 1e-14}[dtype]
    np.testing.assert_allclose(found, want, rtol=precision, atol=precision)


@pytest.mark.parametrize("width", [10, 100])
def test_special_values_stay_in_their_rows(width):
    x = normals(many(130, width), width)
    x[3, 1], x[64, 2], x[65] = np.nan, np.inf, -np.inf
    found = np.asarray(gf.jit(softmax)(x))
    with np.errstate(invalid="ignore"):
        want = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
        want /= want.sum(1, keepdims=True)
    np.testing.assert_allclose(found, want, rtol=1e-5)
    assert np.isnan(found).any(1).sum() == 3


@pytest.mark.parametrize("width", [10, 100])
def test_donated_rows(width):
    x = normals(many(300, width), width)
    want = softmax(x.astype(np.float64))
    found = gf.jit(softmax, donate_argnums=0)(jnp.asarray(x))
    np.testing.assert_allclose(found, want, rtol=1e-5)


@pytest.mark.parametrize("width", [10, 100])
def test_rows_with_broadcast_operands(width):
    """An operand for each row, one for each column, and gradients."""
    rows = many(33, width)
    x, scale = normals(5, rows, width), normals(width, seed=1)
    shift = normals(rows, 1, seed=2)

    def function(x, scale, shift):
        return softmax(x * scale + shift) * scale

    wide = [v.astype(np.float64) for v in (x, scale, shift)]
    found = gf.jit(function)(x, scale, shift)
    np.testing.assert_allclose(found, function(*wide), rtol=1e-5, atol=1e-6)
    gradient = gf.jit(gf.grad(lambda x: (softmax(x) * scale).sum()))(x)
    p = softmax(wide[0])
    want = p * (wide[1] - (p * wide[1]).sum(-1, keepdims=True))
    np.testing.assert_allclose(gradient, want, rtol=1e-4, atol=1e-6)


def test_a_value_that_is_used_twice_at_each_of_many_steps():
    """Written out, the formula has 2**40 terms: whoever follows it term by term never ends."""

    def function(x):
        for _ in range(40):
            x = x * x - x
        e = jnp.exp(x)
        return e / e.sum(1, keepdims=True)

    x = np.full((5, 7), 1.5, np.float32)
    np.testing.assert_allclose(gf.jit(function)(x), np.full((5, 7), 1 / 7), rtol=1e-6)
