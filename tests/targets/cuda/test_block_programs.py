"""Loops that one kernel runs, block by block, on the simulated GPU, which looks for races as well.

Each program is compared with the same one on the CPU, and with the loop that Python drives.
"""

from dataclasses import replace

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from late_gpu import gpu_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.config import config
from gpuflow.targets.cuda.codegen.block_printer import BlockPrinter
from gpuflow.targets.cuda.runtime.program import block_programs, driver_text
from gpuflow.targets.cuda_sim.driver import SimApi
from ptxsim.faults import PtxError

# Many of these loops could be statements of a kernel by themselves.
pytestmark = [requires_cuda_tools, pytest.mark.usefixtures("loops_of_steps")]
rng = np.random.default_rng(0)
X = rng.standard_normal((5, 7, 6)).astype(np.float32)
M = (0.3 * rng.standard_normal((6, 6))).astype(np.float32)


@pytest.fixture(scope="module")
def device():
    return gpu_devices("cuda_block_programs_sim", SimApi())[0]


@pytest.fixture
def launches(monkeypatch):
    """All loops pay; the list gets an entry for each that is asked: whether a kernel runs it."""
    seen = []
    ask = driver_text.bind_loop_launch

    def spy(*args):
        answer = ask(*args)
        seen.append(answer is not None)
        return answer

    monkeypatch.setattr(block_programs, "_pays_off", lambda *args: True)
    monkeypatch.setattr(driver_text, "bind_loop_launch", spy)
    return seen


def run(function, args, device):
    with gf.default_matmul_precision("highest"), gf.default_device(device):
        return gf.tree.leaves(gf.jit(function)(*args))


def check(function, args, device, launches, tol=1e-5):
    """It is one kernel, of the right numbers, here and without."""
    found = [run(function, args, device)]
    assert launches == [True]  # nothing in it is asked
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "environment", replace(config.environment, block_programs=False))
        found.append(run(lambda *a: function(*a), args, device))
        assert not any(launches[1:])
    cpu = gf.devices("cpu")[0]
    wanted = run(lambda *a: function(*a), args, cpu)
    for results in found:
        for got, want in zip(results, wanted, strict=True):
            assert got.dtype == want.dtype
            kind = np.complex128 if want.dtype.kind == "c" else np.float64
            got, want = (np.asarray(a).astype(kind) for a in (got, want))
            np.testing.assert_allclose(got, want, rtol=tol, atol=tol)


def sums(x):
    """Reductions of all kinds, views that are copied, and branches."""

    def one(t):
        which = jnp.int32(t[0, 0] * 3)
        chosen = lax.switch(which, [lambda t: t @ M, lambda t: t.sum() + t, lambda t: t[::-1]], t)
        e = jnp.exp(t - t.max(1, keepdims=True))
        return chosen, (t * t).sum(), t - t.mean(0), t[:, ::2] > 0, e.sum(1) * t[:, 0]

    return lax.map(one, x)


def loops(x):
    """Scans of scans, forwards and backwards, with stacked results, and a while_loop."""

    def inner(c, r):
        return jnp.tanh(c @ M) + r, (c.sum(0), r)

    def outer(c, r):
        c, ys = lax.scan(inner, c, jnp.arange(3.0), reverse=True)
        return c * r, ys

    def turn(c):
        return c[0] @ M, c[1] + 1

    def one(t):
        small = lax.while_loop(lambda c: jnp.abs(c[0]).sum() > 5, turn, (t, jnp.int32(0)))
        return lax.scan(outer, t, jnp.arange(2.0)), small

    return lax.map(one, x)


def updates(x):
    """Carries that change where they lie, constants of inner programs, and what has no elements."""
    table = jnp.asarray(np.arange(6, dtype=np.float32))

    def turn(i, c):
        return c.at[i % 7].set(c[i % 7] @ M + c[0]).at[:, 1].add(c.sum(1))

    def one(t):
        changed = lax.fori_loop(0, 4, turn, t)
        added = lax.scan(lambda c, _: (c @ M + table, 2.0), t, None, length=3)
        kept = lax.scan(lambda c, r: (c @ M, r), t, jnp.zeros((0, 3)))
        return changed, added, kept, t[:0] @ M, (t[:0] @ M).sum(), t[:0].T @ t[:0]

    return lax.map(one, x)


@pytest.mark.parametrize("program", [sums, loops, updates], ids=lambda p: p.__name__)
def test_turns(program, device, launches):
    check(program, [X], device, launches, 1e-4)


def columns(x):
    """An arena of 46,656 bytes and more, and 4 KB of static memory for the sums of columns."""

    def one(t):
        product = t @ t.T
        return product - product.sum(0)

    return lax.map(one, x)


def test_an_arena_and_static_memory_that_exceed_48_kb_together(device, launches):
    """Each alone is below what CUDA gives a block without being asked."""
    x = np.random.default_rng(3).standard_normal((2, 108, 3)).astype(np.float32)
    check(columns, [x], device, launches, 2e-4)
    (own,) = gpu_devices("cuda_block_programs_planted", SimApi())
    own.driver.api.allow_shared = lambda kernel, count: None
    with pytest.raises(PtxError, match=r"shared memory; got \d{4} static and 4\d{4} dynamic"):
        run(columns, [x], own)


@pytest.mark.parametrize("most, is_shared", [(50_879, False), (50_880, True)])
def test_static_memory_counts_towards_the_limit_of_an_arena(most, is_shared, monkeypatch):
    lines = BlockPrinter()
    monkeypatch.setattr(lines, "_static_bytes", 4224)
    assert lines.text(46_656, most).is_shared is is_shared


def test_an_arena_in_global_memory(device, launches, monkeypatch):
    monkeypatch.setattr(block_programs, "_MAX_SHARED_BYTES", 0)
    got = run(loops, [X], device)
    assert launches == [True]
    for found, want in zip(got, run(loops, [X], gf.devices("cpu")[0]), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_more_turns_than_blocks(device, launches, monkeypatch):
    monkeypatch.setattr(block_programs, "_BLOCKS_PER_PROCESSOR", 1)
    x = rng.standard_normal((2 * SimApi().processors + 3, 2, 6)).astype(np.float32)
    check(lambda x: lax.map(lambda t: jnp.tanh(t @ M).max(), x), [x], device, launches)


def whole_loop(x):
    """A scan that one block runs as a whole, of odd and even length."""
    for length in (3, 4):
        x, ys = lax.scan(lambda c, r: (jnp.tanh(c @ M + r), c.max(0)), x, jnp.arange(float(length)))
        x = x + ys[-1]
    return x


def test_a_loop_of_one_block(device, launches):
    want = [np.asarray(a, np.float64) for a in run(whole_loop, [X[0]], gf.devices("cpu")[0])]
    got = run(whole_loop, [X[0]], device)
    assert launches == [True, True]
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_turns_of_a_while_loop(turns, device, launches):
    def loop(x, n):
        return lax.while_loop(lambda c: c[1] < n, lambda c: (jnp.tanh(c[0] @ M), c[1] + 1), (x, 0))

    check(loop, [X[0], np.int32(turns)], device, launches, 1e-4)


LAYOUTS = ["mk,kn->mn", "km,kn->mn", "mk,nk->mn", "km,nk->mn", "bmk,bkn->bmn", "mbk,bnk->bmn"]
SIZES = [dict(b=2, m=5, n=3, k=7), dict(b=1, m=17, n=33, k=19), dict(b=3, m=1, n=40, k=1)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_products(dtype, device, launches):
    """However the operands lie; of small integers, whose sums are exact."""
    pairs = []
    for spec, sizes in zip(LAYOUTS, 2 * SIZES, strict=True):
        sides = spec.split("->")[0].split(",")
        pairs.append([rng.integers(-4, 5, [sizes[letter] for letter in side]) for side in sides])

    def loop(pairs):
        def turn(_, totals):
            return [
                total + jnp.einsum(spec, *pair, preferred_element_type=total.dtype)
                for spec, pair, total in zip(LAYOUTS, pairs, totals, strict=True)
            ]

        kind = dtype if dtype[-2:] != "16" else "float32"
        shapes = [jnp.einsum(*item).shape for item in zip(LAYOUTS, *zip(*pairs, strict=True))]
        return lax.fori_loop(0, 2, turn, [jnp.zeros(shape, kind) for shape in shapes])

    with gf.enable_x64(dtype == "float64"):
        given = [[jnp.asarray(a, dtype) for a in pair] for pair in pairs]
        got = run(loop, [given], device)
    assert launches == [True]
    for found, spec, pair in zip(got, LAYOUTS, pairs, strict=True):
        np.testing.assert_array_equal(np.asarray(found), 2.0 * np.einsum(spec, *pair))


def test_other_dtypes(device, launches):
    names = ["bool", "int8", "uint16", "int32", "bfloat16", "complex64"]
    x = (3 * rng.standard_normal((4, 5, 3))).astype(np.float32)

    def one(t):
        def two(name):
            t_ = t.astype(name)
            return lax.cond(t[0, 0] > 0, lambda: t_[::-1] * t_, lambda: t_.T.reshape(5, 3))

        return [two(name) for name in names]

    check(lambda x: lax.map(one, x), [x], device, launches, 1e-2)


def test_a_second_call_finds_other_arrays(device, launches):
    """Addresses are parameters, and nothing of a call is left for the next."""
    function = gf.jit(sums)
    with gf.default_device(device), gf.default_matmul_precision("highest"):
        for k in range(3):
            got = function(jnp.asarray((k + 1) * X))
            np.testing.assert_allclose(got[1], ((k + 1) * X) ** 2 @ np.ones(6) @ np.ones(7), 1e-5)
    assert launches == [True]


def test_what_no_block_does_by_itself(device, launches):
    """A sort is a launch of its own: the loop stays Python's, and its numbers right."""
    got = run(lambda x: lax.fori_loop(0, 3, lambda _, c: jnp.sort(c @ M, 0), x), [X[0]], device)
    assert launches == [False]
    want = X[0]
    for _ in range(3):
        want = np.sort(want @ M, 0)
    np.testing.assert_allclose(got[0], want, rtol=1e-4, atol=1e-5)


def test_gradients(device, launches):
    """The backward loop of a scan is one as well."""

    def loss(x):
        return lax.scan(lambda c, r: (jnp.tanh(c @ M) * r.sum(), None), x[0], x[1:])[0].sum()

    got = run(gf.grad(loss), [X], device)[0]
    assert launches == [True, True]
    want = run(gf.grad(loss), [X], gf.devices("cpu")[0])[0]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("turns, size, pays", [(400, 8, True), (2, 300, False), (3, 8, False)])
def test_what_pays(turns, size, pays, monkeypatch, device):
    """Many turns of little work do; few turns of much work do not, nor what is done at once."""
    asked = []

    def spy(*args):
        asked.append(rule(*args))
        return False

    rule = block_programs._pays_off
    monkeypatch.setattr(block_programs, "_pays_off", spy)
    monkeypatch.setattr(driver_text._DeviceArrays, "program_step", only_asks)
    x = np.zeros((turns, size, size), np.float32)
    run(lambda x: lax.map(lambda t: jnp.tanh(jnp.tanh(t @ t) @ t).max(0), x), [x], device)
    assert asked == [pays]


def only_asks(places, step):
    """Nothing of what would take its time in the simulator."""
    block_programs.bind_loop_launch(step, places.device, places.text.keep)
