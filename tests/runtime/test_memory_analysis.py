"""What a compiled program says of its memory is what it takes, to the byte."""

import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base.garbage import collect_garbage
from gpuflow.compiler.planning.plan import scratch_of
from gpuflow.runtime.memory import (
    ALIGNMENT,
    Arenas,
    address,
    allocated_bytes,
    free_cached_memory,
)
from gpuflow.targets.cpu.library.convolution_calls import SLOT_BYTES
from gpuflow.targets.cpu.runtime import program
from gpuflow.targets.cpu.runtime.native.services import native_services

sys.path.insert(0, str(Path(__file__).parents[2] / "perf"))
import models
import optimizers

# NumPy reports the memory of arrays to tracemalloc in a domain of its own.
NUMPY_DOMAIN = np.lib.tracemalloc_domain
# Argument blocks and instructions: each is an array of 8-byte words. A plan has a few thousand.
MAX_WORDS = 1 << 17


def training(loss, params, data):
    state = optimizers.sgd_state(params)
    return optimizers.training_step(gf, jnp, loss, optimizers.sgd), state, data


def scan_with_carries(state, xs):
    def body(carry, x):
        a, b = carry
        return (b @ x, a + jnp.sum(b, 1, keepdims=True)), jnp.tanh(a)

    return gf.lax.scan(body, state, xs)


def while_with_carries(state, limit):
    def body(carry):
        k, a, b = carry
        return k + 1, b @ b, a * 0.5

    return gf.lax.while_loop(lambda carry: carry[0] < limit, body, state)


def split_reduction(state, data):
    """A sum of so many elements has scratch memory for the sums of its parts."""
    return state + jnp.sum(data), jnp.max(data, axis=0)


def rows_and_sums(state, data):
    """Kernels of every kind, each of which may write into what it reads."""
    x, y, bias, total = state
    scaled = y * data
    return gf.nn.softmax(x), scaled, bias + scaled.sum(0), total + (x * data).sum()


def forwarded(state, data):
    return state, data, 1.5, data + 1


MATRIX = np.random.default_rng(0).standard_normal((96, 96)).astype(np.float32) / 10
PROGRAMS = {
    "perceptron": training(
        models.mlp_loss, models.mlp_params((30, 50, 40, 10)), models.mlp_batch(60, 30)
    ),
    "transformer": training(
        models.transformer_loss, models.transformer_params(64), models.transformer_batch(2, 32, 64)
    ),
    "convolutional network": training(models.cnn_loss, models.cnn_params(), models.cnn_batch(8)),
    "scan": (scan_with_carries, (MATRIX, MATRIX * 2), (np.stack([MATRIX] * 5),)),
    "while": (while_with_carries, (np.int32(0), MATRIX, MATRIX * 2), (np.int32(4),)),
    "split reduction": (split_reduction, np.float32(1), (np.ones((1 << 15, 16), np.float32),)),
    "rows and sums": (rows_and_sums, (MATRIX, MATRIX, MATRIX[0], np.float32(1)), (MATRIX,)),
    "forwarded": (forwarded, MATRIX, (MATRIX[:5],)),
}
CASES = [(name, donates) for name in PROGRAMS for donates in (False, True)]


def compiled_program(name, donates):
    function, state, data = PROGRAMS[name]
    to_arrays = gf.tree_util.tree_map
    state, data = (to_arrays(lambda x: jnp.array(x), tree) for tree in (state, data))
    jitted = gf.jit(function, donate_argnums=(0,) if donates else ())
    return jitted.lower(state, *data).compile(), state, data


def numpy_bytes():
    snapshot = tracemalloc.take_snapshot()
    numpy_traces = snapshot.filter_traces([tracemalloc.DomainFilter(True, NUMPY_DOMAIN)])
    return sum(statistic.size for statistic in numpy_traces.statistics("filename"))


def leaf_bytes(tree):
    return sum(leaf.nbytes for leaf in gf.tree_util.tree_leaves(tree))


@pytest.fixture
def fresh_memory(monkeypatch):
    """No arena and no free block of earlier programs."""
    arenas = Arenas()
    monkeypatch.setattr(program, "arenas", arenas)
    free_cached_memory()
    native_services().slots(SLOT_BYTES)  # of the process's threads, made once
    yield arenas
    tracemalloc.stop()


@pytest.mark.parametrize(("name", "donates"), CASES)
def test_stated_is_allocated(name, donates, fresh_memory):
    compiled, state, data = compiled_program(name, donates)
    stated = compiled.memory_analysis()
    assert stated.argument_size_in_bytes == leaf_bytes(state) + leaf_bytes(data)
    places = {address(leaf.data) for leaf in gf.tree_util.tree_leaves((state, data))}
    collect_garbage()
    tracemalloc.start()
    before = numpy_bytes()
    results = compiled(state, *data)
    taken = numpy_bytes() - before
    (arena,) = fresh_memory._idle
    leaves = gf.tree_util.tree_leaves(results)
    assert stated.output_size_in_bytes == leaf_bytes(results)
    assert stated.temp_size_in_bytes == arena.memory.nbytes
    fresh = [leaf for leaf in leaves if address(leaf.data) not in places]
    assert stated.alias_size_in_bytes == leaf_bytes(results) - leaf_bytes(fresh)
    taken -= arena.memory.nbytes + ALIGNMENT if arena.memory.nbytes else 0
    taken -= sum(allocated_bytes(leaf.nbytes) for leaf in fresh)
    assert 0 <= taken < MAX_WORDS, "memory that the plan does not know of"


@pytest.mark.parametrize(("name", "donates"), CASES)
def test_a_call_takes_outputs_only(name, donates, fresh_memory):
    """Once a program was run its arena is there, and nothing else is allocated on the way."""
    compiled, state, data = compiled_program(name, donates)
    copies = [gf.tree_util.tree_map(lambda x: x + 0, state) for _ in range(2)]
    compiled(copies[0], *data)
    free_cached_memory()
    collect_garbage()
    tracemalloc.start()
    start = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    results = compiled(copies[1], *data)
    peak = tracemalloc.get_traced_memory()[1] - start
    stated = compiled.memory_analysis()
    outputs = stated.output_size_in_bytes - stated.alias_size_in_bytes
    leaves = gf.tree_util.tree_leaves(results)
    # Whole pages for large outputs; Python's own objects: Arrays, tuples, and the tree.
    slack = sum(4096 + ALIGNMENT + 1024 for _ in leaves) + (1 << 14)
    assert outputs <= peak + 1024 and peak <= outputs + slack


def test_peak_is_the_sum():
    stated = compiled_program("perceptron", True)[0].memory_analysis()
    assert stated.alias_size_in_bytes > 0
    assert stated.peak_memory_in_bytes == (
        stated.argument_size_in_bytes
        + stated.output_size_in_bytes
        - stated.alias_size_in_bytes
        + stated.temp_size_in_bytes
    )
    assert stated.generated_code_size_in_bytes > 0


@pytest.mark.parametrize("name", ["split reduction", "convolutional network"])
def test_scratch_is_in_the_arena(name):
    compiled = compiled_program(name, False)[0]
    needed = [buffer for step in compiled.steps for buffer in scratch_of(step)]
    assert needed and set(needed) <= set(compiled._compiled.plan.offsets)


def test_donated_inputs_are_overwritten():
    """A chain of elementwise operations on a donated array needs no other memory."""
    step = gf.jit(lambda x: jnp.tanh(x * 2) + jnp.exp(-x), donate_argnums=0)
    x = jnp.array(MATRIX)
    stated = step.lower(x).compile().memory_analysis()
    assert stated.alias_size_in_bytes == stated.output_size_in_bytes == MATRIX.nbytes
    assert stated.temp_size_in_bytes == 0
    assert stated.peak_memory_in_bytes == MATRIX.nbytes
    place = address(x.data)
    assert address(step(x).data) == place


def layernorm(x):
    centered = x - x.mean(1, keepdims=True)
    return centered / jnp.sqrt((centered * centered).mean(1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("function", [gf.nn.softmax, gf.nn.log_softmax, layernorm])
@pytest.mark.parametrize("shape", [(64, 32), (64, 300), (3, 70_000)])
def test_donated_rows_are_overwritten(function, shape):
    """One array in place of two; rows of few elements, and rows that several threads share."""
    x = jnp.array(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    keeping = gf.jit(function).lower(x).compile().memory_analysis()
    step = gf.jit(function, donate_argnums=0)
    stated = step.lower(x).compile().memory_analysis()
    assert stated.alias_size_in_bytes == stated.output_size_in_bytes == x.nbytes
    assert stated.temp_size_in_bytes == keeping.temp_size_in_bytes
    assert stated.peak_memory_in_bytes == keeping.peak_memory_in_bytes - x.nbytes
    place = address(x.data)
    assert address(step(x).data) == place


def test_sums_are_stored_beside_what_they_add_up():
    """A gradient and its bias's: two arrays take the memory of those that are not needed again."""

    def function(x, y, bias):
        gradient = x * y
        return gradient, bias + gradient.sum(0)

    x = jnp.array(np.ones((300, 70), np.float32))
    bias = jnp.array(np.ones(70, np.float32))
    step = gf.jit(function, donate_argnums=(0, 2))
    stated = step.lower(x, x, bias).compile().memory_analysis()
    assert stated.alias_size_in_bytes == x.nbytes + bias.nbytes == stated.output_size_in_bytes
