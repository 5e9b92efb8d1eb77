"""The bytes that programs over a mesh send, and their results on real processes."""

import os
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from process_groups import run_group

PERF = Path(__file__).resolve().parents[2] / "perf"
sys.path.append(str(PERF))

import bench_mesh  # noqa: E402
from mesh_counts import count, mesh  # noqa: E402

import gpuflow as gf  # noqa: E402
import gpuflow.numpy as jnp  # noqa: E402
from gpuflow import P, lax  # noqa: E402

# Bytes sent compared with JAX's: the last steps of a scan have fewer rows than devices.
MORE = {"associative_scan along the split dimension": 1.6}
# JAX sends nothing, or no figure is stored; bytes that are sent here.
OTHERS = {
    "dynamic_update_slice, cache split on sequence": 0,
    "scan over 8 layers, step: batch split": 29_360_128,
    "RNN from zeros, batch split": 0,
    "FSDP rows: MLP step, params split on dim 0": 4_400_000,
    "FSDP rows + constraints on activations": 4_400_000,
    "ZeRO-1: Adam step, states split": 5_600_000,
    "transformer block grad, FSDP rows": 5_600_000,
    "transformer block grad, FSDP x TP (4 x 2)": 4_200_000,
    "embedding grad, batch split, table on vocabulary": 4_600_000,
}
counts = cache(bench_mesh.counts)


@pytest.mark.parametrize("name", [name for name in bench_mesh.stored() if name not in OTHERS])
def test_bytes_compared_with_jax(name):
    ours, theirs = counts()[name].bytes_sent, bench_mesh.stored()[name]
    assert ours <= MORE.get(name, 1.0) * theirs * 1.05 + 1


@pytest.mark.parametrize("name", OTHERS)
def test_bytes(name):
    assert counts()[name].bytes_sent <= OTHERS[name]


def specialized(function, *shapes, specs, outs=None, names=("x",), grid=(8,)):
    args = [gf.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return count(function, args, specs, mesh(grid, names), outs)


def test_a_sum_is_added_up_once_where_its_reader_wants_it():
    def f(a, b, c):
        return c - 0.5 * (a @ b).T

    specs, shapes = (P(None, "x"), P("x"), P("x")), ((64, 32), (32, 64), (64, 64))
    found = specialized(f, *shapes, specs=specs)
    assert found.times == {"reduce_scatter": 1}
    assert found.bytes_sent == 64 * 64 * 4 * 7 / 8


def test_a_sum_that_is_read_twice_is_added_up_once():
    def f(a, b):
        total = a @ b
        return jnp.sin(total), jnp.exp(total)

    specs, shapes = (P(None, "x"), P("x")), ((64, 32), (32, 64))
    assert specialized(f, *shapes, specs=specs, outs=(P(), P())).times == {"all_reduce": 1}
    split = specialized(f, *shapes, specs=specs, outs=(P("x"), P("x")))
    assert split.times == {"reduce_scatter": 1}


def test_what_depends_on_more_than_terms_is_computed_from_the_sum():
    """One minus a sum is not the sum of one minus its terms."""
    specs, shapes = (P(None, "x"), P("x")), ((64, 32), (32, 64))
    found = specialized(lambda a, b: jnp.exp(1 - a @ b), *shapes, specs=specs, outs=P("x"))
    assert found.times == {"reduce_scatter": 1}


@pytest.mark.parametrize(
    "function, sent",
    [
        (lambda x: x - x.sum(), 2 * 4 * 7 / 8),
        (lambda x: jnp.broadcast_to(x.sum(), (64, 64)), 2 * 4 * 7 / 8),
        (lambda x: x * jnp.broadcast_to(x.mean(), (64, 64)), 2 * 4 * 7 / 8),
        (lambda x: jnp.broadcast_to(x.sum(0, keepdims=True), (64, 64)) + x, 2 * 256 * 7 / 8),
    ],
    ids=["minus", "scalar", "mean", "row"],
)
def test_sums_are_added_up_before_they_are_broadcast(function, sent):
    """The terms of a broadcast would be as large as it is."""
    assert specialized(function, (64, 64), specs=(P("x"),)).bytes_sent == round(sent)


def test_few_bytes_decide_how_a_product_is_split():
    """Activations stay where they are if they are larger than weights, and else weights do."""
    specs = (P("x"), P(None, "x"))
    large = specialized(jnp.matmul, (4096, 64), (64, 64), specs=specs, outs=P("x"))
    assert large.times == {"all_gather": 1} and large.bytes_sent == 64 * 64 * 4 * 7 / 8
    small = specialized(jnp.matmul, (8, 4096), (4096, 4096), specs=specs, outs=P(None, "x"))
    assert small.times == {"all_gather": 1} and small.bytes_sent == 8 * 4096 * 4 * 7 / 8


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_terms_are_added_before_they_are_summed(dtype):
    """The cotangent of the input of three products: one sum, of float32 terms."""

    def f(x, ws):
        return sum((x @ w).astype(jnp.float32).sum() for w in ws)

    x = gf.ShapeDtypeStruct((64, 32), dtype)
    ws = [gf.ShapeDtypeStruct((32, 64), dtype)] * 3
    specs, outs = (P(), [P(None, "x")] * 3), P()
    found = count(gf.grad(f), (x, ws), specs, mesh((8,), ("x",)), outs)
    assert found.times == {"all_reduce": 1}
    assert found.explanation.collectives[0].dtype == np.float32


def test_axes_of_one_dimension_are_gathered_and_scattered_at_once():
    args = [gf.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 32), (4096, 32))]
    specs, grid = (P(("x", "y")), P(("x", "y"))), mesh((4, 2), ("x", "y"))
    found = count(
        gf.grad(lambda w, x: ((x @ w.T) ** 2).sum()), tuple(args), specs, grid, P(("x", "y"))
    )
    assert found.times == {"all_gather": 1, "reduce_scatter": 1}
    assert all(c.group_size == 8 for c in found.explanation.collectives)


@pytest.mark.parametrize(
    "old, new, spec, times",
    [
        ((64, 8), (8, 8, 8), P("x"), {}),
        ((8, 8, 8), (64, 8), P("x"), {}),
        ((2, 64, 8), (2, 8, 8, 8), P(None, "x"), {}),
        ((1, 64), (64, 1), P(None, "x"), {}),
        ((16, 8), (4, 32), P("x"), {"all_gather": 1}),
        ((8, 64), (512,), P(None, "x"), {"all_to_all": 1}),
    ],
)
def test_reshapes_keep_the_split_of_a_leading_dimension(old, new, spec, times):
    found = specialized(lambda x: x.reshape(new) + 1, old, specs=(spec,))
    assert found.times == times


def test_a_loop_that_begins_with_zeros_is_split_like_its_body():
    def f(xs):
        return lax.scan(lambda h, x: (jnp.tanh(h + x), h), jnp.zeros((64, 4)), xs)

    assert specialized(f, (5, 64, 4), specs=(P(None, "x"),)).times == {}


def test_zeros_are_made_where_they_are_wanted():
    def init(w, scale):
        return w + 1, jnp.zeros((1024, 64)), jnp.broadcast_to(scale, (64, 1024))

    outs = (P("x"), P("x"), P(None, "x"))
    found = specialized(init, (1024, 64), (), specs=(P("x"), P()), outs=outs)
    assert found.bytes_sent == 0 and found.peak_bytes < 5 * 1024 * 64 * 4 / 8


ROW = 16 * 4  # bytes of a row of float32[64, 16]
STENCIL = np.ones((1, 1, 3, 3), np.float32)


@pytest.mark.parametrize(
    "function, rows",
    [
        (lambda x: x[1:-1] - x[2:], 2),
        (lambda x: jnp.roll(x, 3, 0), 4),
        (lambda x: jnp.pad(x[1:], ((0, 1), (0, 0))), 1),
        (lambda x: x[::2] + x[1::2], 8),
        (lambda x: x[::-1], 8),
        (lambda x: lax.reduce_window(x, 0.0, lax.add, (3, 1), (1, 1), "SAME"), 2),
        (lambda x: lax.conv(x[None, None], STENCIL, (1, 1), "SAME")[0, 0], 2),
        (lambda x: x.at[1:-1].add(0.5 * (x[2:] + x[:-2] - 2 * x[1:-1])), 5),
        (lambda x: lax.dynamic_update_slice(x, x[:1] * 0 + 1, (5, 0)), 1.75),
        (lambda x: x.at[jnp.array([3, 60])].set(2.0), 0),
        (lambda x: jnp.sort(x, axis=0), 14),
    ],
    ids=[
        "difference",
        "roll",
        "pad",
        "strided",
        "reverse",
        "window",
        "conv",
        "stencil",
        "update",
        "set",
        "sort",
    ],
)
def test_rows_that_are_exchanged(function, rows):
    found = specialized(function, (64, 16), specs=(P("x"),))
    results = function_shape(function)[0]
    is_whole = results % 8 != 0  # such a result cannot be split, so it is gathered
    assert found.bytes_sent <= rows * ROW + is_whole * -(-results // 8) * 7 * ROW * 1.2
    assert found.warnings == []


def function_shape(function):
    return gf.eval_shape(function, gf.ShapeDtypeStruct((64, 16), jnp.float32)).shape


def test_a_model_of_7_billion_parameters():
    """On 8 devices; perf/bench_mesh.py has the figures of 64."""
    found = bench_mesh.model(scanned=True, dim=0)
    parameters = 13.48e9
    assert found.warnings == [] and not found.times["all_to_all"]
    # Gathered for the forward and the backward pass; gradients are summed in float32.
    assert found.bytes_sent <= 4 * parameters * 7 / 8 * 1.01
    assert found.peak_bytes <= 20e9


def test_programs_on_processes():
    """All of them agree with one device, on four processes of two devices each."""
    program = Path(__file__).with_name("partition_program.py")
    for rank, one in enumerate(run_group(program, 4, GPUFLOW_CPU_DEVICES="2", timeout=240.0)):
        assert one.status == 0 and f"rank {rank} of 4: " in one.output, one.output


def test_random_layouts_on_processes():
    """Slices, pads, windows and updates; FUZZ_EXAMPLES of them, from FUZZ_SEED on."""
    program = Path(__file__).with_name("layout_fuzz_program.py")
    drawn = os.environ.get("FUZZ_EXAMPLES", "24"), os.environ.get("FUZZ_SEED", "0")
    for rank, one in enumerate(run_group(program, 4, *drawn, timeout=600.0)):
        assert one.status == 0 and f"rank {rank} of 4: " in one.output, one.output


def test_random_programs_on_processes():
    """The same ones each time; for others, FUZZ_EXAMPLES of each kind from FUZZ_SEED on."""
    program = Path(__file__).with_name("partition_fuzz_program.py")
    drawn = os.environ.get("FUZZ_EXAMPLES", "8"), os.environ.get("FUZZ_SEED", "0")
    for rank, one in enumerate(run_group(program, 4, *drawn, timeout=600.0)):
        assert one.status == 0 and f"rank {rank} of 4: " in one.output, one.output
