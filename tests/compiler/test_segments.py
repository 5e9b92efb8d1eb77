"""Equal kernels in one step: what joins, and that results have the bits of separate launches."""

import ctypes
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cpu_harness import (
    IN,
    INOUT,
    OUT,
    UNIT,
    ZERO,
    argument_words,
    make_kernel,
    random_array,
    shared_cache,
)

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.compiler.planning import symbolic_program
from gpuflow.compiler.planning.plan import KernelStep
from gpuflow.kir.nodes import Mode, Operand, Role
from gpuflow.targets.cpu.codegen.schedules.split_reductions import MIN_SPLIT
from gpuflow.targets.cpu.runtime.kernels import compile_cpu
from gpuflow.targets.cpu.runtime.native.object_code import load_native, module_defining

ROOT = Path(__file__).resolve().parents[2]
# Empty, one element, primes, around the bound of split reductions, and over several threads.
SIZES = [
    0,
    1,
    3,
    17,
    1009,
    4096,
    4099,
    40009,
    MIN_SPLIT - 1,
    MIN_SPLIT,
    MIN_SPLIT + 77,
    300007,
]


def plan_of(function, *args, donate=()):
    return compile_plan(gf.jit(function).lower(*args).jaxpr, donate)[0]


def kernels_of(function, *args, donate=()):
    """The number of calls of each kernel step."""
    steps = plan_of(function, *args, donate=donate).steps
    return [(step.kernel.kind, len(step.calls)) for step in steps if isinstance(step, KernelStep)]


def normals(*shapes, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape, dtype=np.float32) for shape in shapes]


def bits(array):
    """Bits, with all nan alike: their sign is free."""
    array = np.asarray(array)
    if array.dtype.kind not in "fV":
        return array.tobytes()
    return np.where(np.isnan(array), np.array(np.nan, array.dtype), array).tobytes()


def assert_like_separate(function, arrays):
    """One program for all arrays, and one program for each."""
    together = gf.jit(lambda xs: [function(x) for x in xs])(arrays)
    alone = gf.jit(function)
    for x, found in zip(arrays, together, strict=True):
        for ours, theirs in zip(*map(gf.tree.leaves, (found, alone(x))), strict=True):
            assert bits(ours) == bits(theirs), (np.shape(x), ours, theirs)


# --- what joins -------------------------------------------------------------------------------


def squares(xs):
    return [jnp.sum(x * x) for x in xs]


def test_matrices_vectors_and_single_elements_join():
    arrays = normals((3, 4), (5,), (2, 3, 4), (1,), (0,), (7, 1))
    assert kernels_of(squares, arrays) == [("full", 6)]


def test_arrays_that_do_not_lie_in_a_row_do_not_join():
    arrays = normals((6, 8), (5, 7), (9, 3))
    assert kernels_of(lambda xs: [jnp.sum(x[:, 1:]) for x in xs], arrays) == [("full", 1)] * 3


def test_other_kernels_and_dtypes_do_not_join():
    arrays = [*normals((5,), (6,)), np.ones(5, np.int32), np.ones(6, np.int32)]
    assert kernels_of(squares, arrays) == [("full", 2)] * 2
    found = kernels_of(lambda x, y: (x.sum(), y.sum(), (x * 2).sum()), *arrays[:2])
    assert sorted(found) == [("full", 1), ("full", 2)] or sorted(found) == [("full", 1)] * 2


def test_reductions_that_need_each_other_do_not_join():
    def chain(x, y, z):
        a = jnp.sum(x * x)
        b = jnp.sum((y * a) * (y * a))
        return b, jnp.sum((z * b) * (z * b))

    assert all(count == 1 for _, count in kernels_of(chain, *normals((5,), (6,), (7,))))


def test_a_kernel_does_not_move_behind_what_overwrites_its_operand():
    """y replaces x in its memory between two sums, of which the first reads x."""

    def function(x, z):
        total = jnp.sum(x)
        return total, x.at[1].set(total), jnp.sum(z)

    x, z = normals((5,), (6,))
    want = [np.asarray(v).tobytes() for v in gf.jit(function)(x, z)]
    found = gf.jit(function, donate_argnums=0)(jnp.asarray(x), z)
    assert [np.asarray(v).tobytes() for v in found] == want


def test_a_kernel_does_not_move_behind_what_updates_its_result():
    def function(x, y):
        return (x * 2).at[3].set(1.0), y * 2

    x, y = normals((5,), (6,))
    found = gf.jit(function)(x, y)
    want = x * 2
    want[3] = 1
    np.testing.assert_array_equal(found[0], want)
    np.testing.assert_array_equal(found[1], y * 2)


def test_reductions_with_stores_beside_join():
    def function(xs):
        made = [jnp.exp(x) for x in xs]
        return made, [jnp.sum(m) for m in made]

    arrays = normals((50,), (70,), (3, 30))
    assert kernels_of(function, arrays) == [("full", 3)]
    found = gf.jit(function)(arrays)
    for x, made, total in zip(arrays, *found, strict=True):
        np.testing.assert_allclose(made, np.exp(x), rtol=2e-6)
        np.testing.assert_allclose(total, np.exp(x).sum(), rtol=1e-5)


# --- tails ------------------------------------------------------------------------------------


def norm_of_list(xs):
    return jnp.sqrt(sum([jnp.sum(x * x) for x in xs]))


def norm_of_generator(xs):
    return jnp.sqrt(sum(jnp.sum(x * x) for x in xs))


def norm_from_the_first(xs):
    total = jnp.sum(xs[0] * xs[0])
    for x in xs[1:]:
        total = total + jnp.sum(x * x)
    return jnp.sqrt(total)


def norm_of_stack(xs):
    return jnp.sqrt(jnp.sum(jnp.stack([jnp.sum(x * x) for x in xs])))


def norm_of_norms(xs):
    norms = [jnp.sqrt(jnp.sum(x * x)) for x in xs]
    return jnp.sqrt(sum(n * n for n in norms))


@pytest.mark.parametrize("count", [3, 10, 120])
@pytest.mark.parametrize(
    "norm", [norm_of_list, norm_of_generator, norm_from_the_first, norm_of_norms]
)
def test_norms_over_many_arrays_are_two_steps(norm, count):
    arrays = normals(*[(3 + k % 7, 5) if k % 2 else (9 + k % 5,) for k in range(count)])
    assert kernels_of(norm, arrays) == [("full", count), ("map", 1)]
    want = np.sqrt(sum((x.astype(np.float64) ** 2).sum() for x in arrays))
    np.testing.assert_allclose(gf.jit(norm)(arrays), want, rtol=1e-6)


def test_norms_through_an_array_join():
    arrays = normals(*[(9 + k,) for k in range(20)])
    found = kernels_of(norm_of_stack, arrays)
    assert found[0] == ("full", 20)
    want = np.sqrt(sum((x.astype(np.float64) ** 2).sum() for x in arrays))
    np.testing.assert_allclose(gf.jit(norm_of_stack)(arrays), want, rtol=1e-6)


def test_norms_of_two_dtypes_are_three_steps():
    arrays = [
        x.astype(np.float32 if k % 2 else np.float16)
        for k, x in enumerate(normals(*[(9 + k,) for k in range(12)]))
    ]

    def norm(xs):
        return jnp.sqrt(sum(jnp.sum(x.astype(jnp.float32) ** 2) for x in xs))

    assert kernels_of(norm, arrays) == [("full", 6), ("full", 6), ("map", 1)]


def test_a_mean_keeps_its_division():
    """Nothing is taken out of a reduction that waits for no other one."""
    arrays = normals((5,), (6,), (7,), (8,))
    assert kernels_of(lambda xs: [jnp.mean(x * x) for x in xs], arrays) == [("full", 4)]
    assert kernels_of(lambda x, y: x.sum() + y.sum(), *arrays[:2]) == [("full", 1)] * 2


def test_reductions_one_after_the_other_keep_what_follows_them():
    """Steps of a solver: each product waits for the one before, so that apart is only slower."""

    def solver(a, r, p, count=4):
        square = jnp.sum(r * r)
        for _ in range(count):
            image = a * p
            step = square / jnp.sum(p * image)
            r = r - step * image
            following = jnp.sum(r * r)
            p = r + following / square * p
            square = following
        return r

    found = kernels_of(solver, *normals((50,), (50,), (50,)))
    assert not any(count > 1 for _, count in found)
    assert len(found) <= 17


def test_clipping_computes_what_numpy_does():
    grads = normals(*[(5 + k, 3) if k % 2 else (50 + k,) for k in range(30)])

    @gf.jit
    def clip(grads):
        norm = norm_of_list(grads)
        return [g * (1 / jnp.maximum(norm, 1.0)) for g in grads], norm

    clipped, norm = clip(grads)
    want = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads))
    np.testing.assert_allclose(norm, want, rtol=1e-6)
    for found, g in zip(clipped, grads, strict=True):
        np.testing.assert_allclose(found, g / want, rtol=1e-6)


# --- bits of separate launches ----------------------------------------------------------------

FUNCTIONS = {
    "sum of squares": lambda x: jnp.sum(x * x),
    "sum": jnp.sum,
    "maximum": lambda x: jnp.max(x, initial=-3),
    "mean of exponentials": lambda x: jnp.sum(jnp.exp(x * 0.5)) / 7,
    "product": lambda x: jnp.prod(1 + x * 1e-3),
    "several": lambda x: (x.sum(), jnp.min(x, initial=2), (x > 0).any(), (x * 2).sum()),
    "stored beside": lambda x: (jnp.tanh(x), jnp.tanh(x).sum()),
    "map": lambda x: jnp.exp(x) / (1 + x * x),
}
DTYPES = ["float32", "float64", "bfloat16", "float16", "int32", "int8", "uint16", "bool"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits_are_those_of_separate_launches(name):
    assert_like_separate(FUNCTIONS[name], normals(*SIZES))


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_all_storage_dtypes(dtype):
    with gf.enable_x64(True):
        arrays = [jnp.asarray(random_array(n, dtype, n)) for n in (0, 1, 100, 4099, 70001)]
        assert_like_separate(lambda x: (x.sum(), (x * x).sum()), arrays)
        assert_like_separate(lambda x: jnp.max(x, initial=0), arrays)


@pytest.mark.parametrize("seed", range(12))
def test_bits_of_random_collections(seed):
    """Counts, sizes, shapes and dtypes at random, in one program."""
    generator = np.random.default_rng(seed)
    arrays = []
    for k in range(generator.integers(2, 40)):
        size = int(generator.choice([0, 1, 2, 13, 64, 65, 1000, 5003, 66000, 131072 + 5]))
        dtype = generator.choice(["float32", "int32", "bfloat16", "float32"])
        array = jnp.asarray(random_array(size, str(dtype), k))
        arrays.append(array.reshape(2, -1) if size % 2 == 0 and k % 3 == 0 else array)
    name = list(FUNCTIONS)[seed % 2]
    assert_like_separate(FUNCTIONS[name], arrays)


def test_special_values_stay_in_their_segment():
    arrays = normals(40, 70001, 5, 66000, 3)
    for place, value in itertools.product((1, 3), (np.nan, np.inf, -np.inf)):
        changed = [x.copy() for x in arrays]
        changed[place][-1] = value
        assert_like_separate(lambda x: (x.sum(), x.max(), x.min()), changed)
        totals = gf.jit(lambda xs: [x.sum() for x in xs])(changed)
        assert [not np.isfinite(t) for t in totals] == [k == place for k in range(5)]
        np.testing.assert_array_equal(totals[place], value)


_SCRIPT = """
import hashlib
import numpy as np
import gpuflow as gf, gpuflow.numpy as jnp
r = np.random.default_rng(0)
sizes = [5, 70001, 1000, 65536, 3, 0, 300007, 4096, 40009] + [300 + k for k in range(150)]
arrays = [r.standard_normal(n, dtype=np.float32) for n in sizes]
digest = hashlib.sha256()
for f in (
    lambda xs: [(x * x).sum() for x in xs],
    lambda xs: [(jnp.exp(x).sum(), x.max(initial=-9)) for x in xs],
    lambda xs: jnp.sqrt(sum((x * x).sum() for x in xs)), lambda xs: [jnp.tanh(x) for x in xs],
):
    for leaf in gf.tree.leaves(gf.jit(f)(arrays)):
        digest.update(np.asarray(leaf).tobytes())
print(digest.hexdigest())
"""


def test_results_do_not_depend_on_the_number_of_threads():
    results = set()
    for threads in (1, 2, 3):
        environment = {**os.environ, "GPUFLOW_NUM_THREADS": str(threads)}
        command = [sys.executable, "-c", _SCRIPT]
        ran = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
        )
        results.add(ran.stdout)
    assert len(results) == 1


# --- launches, recipes and memory ---------------------------------------------------------------


def cpu_plan_of(function, *args):
    compiled = gf.jit(function).lower(*args).compile()
    return compiled, compiled._compiled.plan


def test_what_a_joined_step_launches():
    """The short ones in one launch, the parts of all long ones in the next, then what is left."""
    arrays = normals(10, 70001, 1000, 90011, 20)
    _, plan = cpu_plan_of(squares, arrays)
    (step,) = plan.steps
    kinds = {calls[0].kernel.name.rpartition("_")[2]: len(calls) for calls in step.launches}
    assert kinds == {"sum": 3, "parts": 4, "combine": 2}
    _, plan = cpu_plan_of(squares, normals(10, 20))
    assert [len(calls) for calls in plan.steps[0].launches] == [2]


def test_scratch_memory_is_part_of_the_plan():
    arrays = normals(70001, 10, 90011)
    compiled, plan = cpu_plan_of(squares, arrays)
    (step,) = plan.steps
    parts = [
        call.extent for calls in step.launches for call in calls if "parts" in call.kernel.name
    ]
    words = [plan.aval(buffer).size for buffer in step.scratch]
    assert len(words) == 2 and sum(words) == 4 * sum(parts)
    assert plan.arena_bytes == sum(-(-count // 64) * 64 for count in words)
    assert compiled.memory_analysis().temp_size_in_bytes == plan.arena_bytes


def test_new_sizes_take_the_plan(monkeypatch):
    monkeypatch.setattr(symbolic_program, "_programs", {})
    norm = gf.jit(norm_of_list)
    norm(normals((30, 20), (40,), (50,), (6, 70)))
    (program,) = symbolic_program._programs.values()
    arrays = normals((31, 21), (44,), (90000,), (3, 5))
    want = np.sqrt(sum((x.astype(np.float64) ** 2).sum() for x in arrays))
    np.testing.assert_allclose(norm(arrays), want, rtol=1e-6)
    assert len(symbolic_program._programs) == len(program.plans) == 1


def test_loops_run_joined_reductions():
    arrays = normals((4, 30), (4, 70001), (4, 50))

    def body(carry, xs):
        return carry + norm_of_list(xs), carry

    found, _ = gf.jit(lambda xs: gf.lax.scan(body, jnp.float32(0), xs))(arrays)
    want = sum(np.sqrt(sum((x[k].astype(np.float64) ** 2).sum() for x in arrays)) for k in range(4))
    np.testing.assert_allclose(found, want, rtol=1e-6)


# --- the function that runs segments ------------------------------------------------------------


def run_segments(kernel, blocks, starts, extents, spans, whole):
    loaded = compile_cpu(kernel, shared_cache())
    rows = zip(starts, [block.ctypes.data for block in blocks], extents, strict=True)
    words = [loaded.address, int(whole), len(blocks), *[word for row in rows for word in row]]
    table = np.array(words, np.int64)
    runtime = load_native(module_defining("gf_segments"), shared_cache())
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    function = kind(runtime.addresses["gf_segments"])
    for lo, hi in spans:
        function(table.ctypes.data, lo, hi)


def test_segments_of_a_map_run_in_any_parts():
    operands = [
        Operand("p", "float32", INOUT, (UNIT,)),
        Operand("g", "float32", IN, (UNIT,)),
        Operand("rate", "float32", Mode.SCALAR),
    ]

    def body(b):
        with b.for_axis("i0"):
            step = b.apply("mul", b.load("g"), b.load("rate"))
            b.store("p", b.apply("sub", b.load("p"), step))

    kernel = make_kernel("sgd", {"i0": Role.PARALLEL}, operands, body)
    sizes, starts = [5, 0, 1, 33, 1000, 7], [0, 64, 64, 128, 192, 1216]
    parameters = [random_array(n, "float32", n) for n in sizes]
    gradients = [random_array(n, "float32", n + 1) for n in sizes]
    want = [p - g * np.float32(0.5) for p, g in zip(parameters, gradients, strict=True)]
    blocks = [
        argument_words(kernel, {"p": p, "g": g, "rate": 0.5}, {"i0": p.size}, {})
        for p, g in zip(parameters, gradients, strict=True)
    ]
    spans = [(0, 3), (3, 6), (6, 70), (70, 1000), (1000, 1280)]
    run_segments(kernel, blocks, starts, sizes, spans, whole=False)
    for found, expected in zip(parameters, want, strict=True):
        # Product and sum may be contracted.
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_whole_segments_run_once_each():
    """Each sum is added to its result, so that one that ran twice or never would be seen."""
    operands = [Operand("x", "float32", IN, (UNIT,)), Operand("o", "float32", INOUT, (ZERO,))]

    def body(b):
        old = b.load("o")
        total = b.reduce("i0", b.const("float32", 0.0), "add", lambda: b.load("x"))
        b.store("o", b.apply("add", old, total))

    kernel = make_kernel("total", {"i0": Role.REDUCE}, operands, body, kind="full")
    sizes = [5, 0, 1, 33, 0]
    starts = [0, 5, 6, 7, 40]
    arrays = [np.ones(n + 1, np.float32) for n in sizes]
    sums = [np.full(1, 100, np.float32) for _ in sizes]
    blocks = [
        argument_words(kernel, {"x": x, "o": o}, {"i0": n}, {})
        for x, o, n in zip(arrays, sums, sizes, strict=True)
    ]
    for spans in ([(0, 41)], [(k, k + 1) for k in range(41)], [(0, 6), (6, 20), (20, 41)]):
        for o in sums:
            o[:] = 100
        run_segments(kernel, blocks, starts, [1] * len(sizes), spans, whole=True)
        assert [float(o[0]) for o in sums] == [100 + n for n in sizes]


def test_the_cpu_prints_no_segmented_kernel():
    operands = [Operand("x", "float32", IN, (UNIT,)), Operand("o", "float32", OUT, (UNIT,))]

    def body(b):
        with b.for_axis("i0"):
            b.store("o", b.load("x"))

    kernel = make_kernel("copy", {"i0": Role.PARALLEL}, operands, body, segmented=True)
    with pytest.raises(AssertionError, match="gf_segments"):
        compile_cpu(kernel, shared_cache())
