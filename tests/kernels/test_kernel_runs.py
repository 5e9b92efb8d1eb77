"""Scatters with places that repeat, by handwritten kernels in the PTX interpreter."""

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from schedule_run import at_gpu, on_gpu

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.core.lowering import Library
from gpuflow.targets.cuda.library import runs
from gpuflow.targets.cuda.library.target import gpu_target

pytestmark = requires_cuda_tools

RNG = np.random.default_rng(13)


def reference(combine, x, places, rows):
    """One row after the other."""
    out = x.copy()
    for place, row in zip(places, rows, strict=True):
        if 0 <= place < len(out):
            out[place] = row if combine is None else combine(out[place], row)
    return out


def scattered(method, **how):
    return lambda x, places, rows: getattr(x.at[places], method)(rows, **how)


@pytest.mark.parametrize("count", [64, 65, 257, 1025])
@pytest.mark.parametrize("width", [(), (3,)])
def test_sums(count, width):
    places = RNG.integers(-2, 33, count)
    rows = RNG.integers(-9, 9, (count, *width)).astype(np.float32)
    x = RNG.integers(-9, 9, (31, *width)).astype(np.float32)
    got = on_gpu(scattered("add", mode="drop", wrap_negative_indices=False), x, places, rows)
    # Sums of small integers are exact, in any order.
    np.testing.assert_array_equal(got, reference(np.add, x, places, rows))


@pytest.mark.parametrize(
    "method, combine, dtype",
    [
        ("set", None, np.complex64),
        ("multiply", np.multiply, np.int32),
        ("min", np.minimum, np.float32),
        ("max", np.maximum, np.int8),
        ("add", np.add, np.uint8),
        ("add", np.add, np.complex64),
    ],
)
def test_combinations(method, combine, dtype):
    places = RNG.integers(0, 7, 101)
    rows = RNG.integers(0, 5, (101, 2)).astype(dtype)
    x = RNG.integers(0, 5, (7, 2)).astype(dtype)
    got = on_gpu(scattered(method), x, places, rows)
    np.testing.assert_array_equal(got, reference(combine, x, places, rows))


def test_chunks_of_chunks(monkeypatch):
    monkeypatch.setattr(runs, "CHUNK", 2)
    monkeypatch.setattr(runs, "FEW", 2)
    rows = RNG.integers(-9, 9, (257, 2)).astype(np.float32)
    x = np.zeros((9, 2), np.float32)
    for places in (np.zeros(257, np.int64), RNG.integers(0, 9, 257), np.arange(257) // 30):
        got = on_gpu(scattered("add"), x, places, rows)
        np.testing.assert_array_equal(got, reference(np.add, x, places, rows))


def test_sums_of_halves_are_rounded_once():
    """1 + 2^-11 + ... in float16, each of which would be lost by itself."""
    places, rows = np.zeros(64, np.int64), np.full(64, 2.0**-11, np.float16)
    got = on_gpu(scattered("add"), np.ones(2, np.float16), places, rows)
    np.testing.assert_array_equal(got, np.float16([1 + 2.0**-5, 1]))


def test_sums_have_the_same_bits_in_every_run():
    places = RNG.integers(0, 5, 300)
    rows, x = RNG.normal(size=300).astype(np.float32), np.zeros(5, np.float32)
    first, again = (on_gpu(scattered("add"), x, places, rows) for _ in range(2))
    np.testing.assert_array_equal(first.view(np.uint32), again.view(np.uint32))


def test_gradients_of_gathers():
    table, places = RNG.normal(size=(9, 4)).astype(np.float32), RNG.integers(0, 9, (11, 7))

    def gradient(table, places):
        return gf.grad(lambda t: jnp.sum(jnp.sin(t[places])))(table)

    want = np.zeros((9, 4))
    np.add.at(want, places, np.cos(table.astype(np.float64))[places])
    np.testing.assert_allclose(on_gpu(gradient, table, places), want, rtol=1e-5)
    halves = on_gpu(gradient, table.astype(np.float16), places)
    assert halves.dtype == np.float16
    np.testing.assert_allclose(halves.astype(np.float32), want, rtol=5e-3, atol=5e-3)


def test_gradients_of_gathers_in_batches():
    table, places = RNG.normal(size=(3, 9, 4)).astype(np.float32), RNG.integers(0, 9, (3, 31))

    def gradient(table, places):
        loss = gf.vmap(lambda t, i: jnp.sum(jnp.sin(t[i])))
        return gf.grad(lambda t: jnp.sum(loss(t, places)))(table)

    want = np.zeros((3, 9, 4))
    for k in range(3):
        np.add.at(want[k], places[k], np.cos(table[k].astype(np.float64))[places[k]])
    np.testing.assert_allclose(on_gpu(gradient, table, places), want, rtol=1e-5)


def test_no_library_is_left_in_plans_with_sorts_and_scatters():
    """Such plans can be recorded as CUDA graphs."""

    def function(x, places):
        ranked = jnp.cumsum(jnp.sort(x)) + jnp.argsort(x)
        return jnp.zeros(9, x.dtype).at[places].add(ranked), gf.lax.top_k(x, 3)

    x, places = np.ones(100, np.float16), np.zeros(100, np.int32)
    plan, _ = compile_plan(gf.make_jaxpr(function)(x, places), target=gpu_target())
    calls = [step for step in plan.steps if step.kind != "kernel"]
    assert len(calls) > 3
    for step in calls:
        if step.kind == "library":
            assert isinstance(step.eqn.primitive.lower, Library)
            assert step.implementation is not None, step.name
        else:
            assert step.kind == "copy"


def test_replayed_launches_give_the_same_bits():
    """The third call records all launches, and later ones replay them."""

    def function(x, places):
        return jnp.zeros(9, x.dtype).at[places].add(jnp.cumsum(jnp.sort(x)))

    x, places = RNG.normal(size=100).astype(np.float32), RNG.integers(0, 9, 100)

    def replayed():
        operands = jnp.asarray(x), jnp.asarray(places)
        step = gf.jit(function)
        return [step(*operands) for _ in range(5)]

    results = at_gpu(replayed)
    for result in results[1:]:
        np.testing.assert_array_equal(result.view(np.uint32), results[0].view(np.uint32))
