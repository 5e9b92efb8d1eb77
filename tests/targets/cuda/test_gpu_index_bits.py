"""When a GPU kernel counts with 32 bits: the decision at its limits, and what it saves."""

import re
from dataclasses import replace

import cuda_zoo
import numpy as np
import pytest
from cuda_harness import (
    ANY,
    IN,
    OUT,
    PARALLEL,
    UNIT,
    ZERO,
    aligned,
    build,
    make,
    requires_cuda_tools,
    run_cuda,
)

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler.lowering.lower import KernelCall, segmented
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.kir.nodes import Mode, Operand, arguments
from gpuflow.targets.cuda.codegen.printing.printers import print_cuda
from gpuflow.targets.cuda.codegen.schedules.index_bits import (
    MAX_COUNTER_OVERSHOOT,
    fits_32_bits,
    with_narrowest_indices,
)
from gpuflow.targets.cuda.codegen.schedules.launch_config import launch_shape, schedule_cuda
from gpuflow.targets.cuda.library.target import gpu_target
from gpuflow.targets.cuda.runtime.driver.launch import launched_kernel

LIMIT = 2**31
MAX_COUNT = LIMIT - 1 - MAX_COUNTER_OVERSHOOT  # of what is counted


def call_of(kernel, extents, strides=None, first=0):
    """A call with these numbers; no memory has to be so large."""
    given = {"extent": lambda a: extents[a.axis], "stride": lambda a: strides[a.operand, a.axis]}
    words = [given.get(a.kind, lambda a: first)(a) for a in arguments(kernel)]
    return KernelCall(kernel, tuple(words), (), 1, 1)


def two_axes(mode=IN, first=ANY, exact=None):
    """o[i0] (one element for each row) = x[i0, i1]: only x moves along i1."""
    dtype = "int64" if mode is Mode.INDEX else "float32"
    operands = [Operand("x", dtype, mode, (first, ANY)), Operand("o", dtype, OUT, (ANY, ZERO))]

    def body(b):
        with b.for_axis("i0"), b.for_axis("i1"):
            b.store("o", b.load("x"))

    axes = {"i0": PARALLEL, "i1": PARALLEL if exact is None else (PARALLEL, exact)}
    return make("two_axes", axes, operands, body)


def test_the_number_of_points():
    kernel = cuda_zoo.scaled_tanh()
    assert fits_32_bits(call_of(kernel, {"i0": MAX_COUNT}))
    assert not fits_32_bits(call_of(kernel, {"i0": MAX_COUNT + 1}))
    assert not fits_32_bits(call_of(kernel, {"i0": LIMIT}))
    assert not fits_32_bits(call_of(kernel, {"i0": 2**32 + 5}))  # its low word is small


def test_the_number_of_points_of_several_axes_that_no_operand_moves_along():
    kernel = two_axes()
    still = {("x", "i0"): 0, ("x", "i1"): 0, ("o", "i0"): 0}
    rows = MAX_COUNT // 1000
    assert fits_32_bits(call_of(kernel, {"i0": rows, "i1": 1000}, still))
    assert not fits_32_bits(call_of(kernel, {"i0": rows + 1, "i1": 1000}, still))
    exact = two_axes(exact=1000)
    assert fits_32_bits(call_of(exact, {"i0": rows}, still))
    assert not fits_32_bits(call_of(exact, {"i0": rows + 1}, still))
    # Of no points too, as the product may stand in the kernel before it is 0.
    assert not fits_32_bits(call_of(kernel, {"i0": 0, "i1": LIMIT}, still))


def test_members_and_points_are_counted_apart():
    kernel = cuda_zoo.column_sum()
    (moved,) = {a.operand for a in arguments(kernel) if a.kind == "stride"}
    strides = {(moved, axis.name): 0 for axis in kernel.axes}
    names = [axis.name for axis in kernel.axes]
    half = dict.fromkeys(names, 2**20)
    assert fits_32_bits(call_of(kernel, half, strides))
    for name in names:
        assert not fits_32_bits(call_of(kernel, {**half, name: MAX_COUNT + 1}, strides))


@pytest.mark.parametrize("sign", [1, -1])
def test_offsets(sign):
    """The sum of both axes counts, whatever way they go: one may be walked before the other."""
    kernel, extents = two_axes(), {"i0": 1 << 10, "i1": 1 << 10}

    def fits(one, other, out=0):
        strides = {("x", "i0"): one, ("x", "i1"): other, ("o", "i0"): out}
        return fits_32_bits(call_of(kernel, extents, strides, first=2**40))

    most = (LIMIT - 1) // 1024  # what both strides may be together
    assert fits(sign * most, 0) and not fits(sign * (most + 1), 0)
    assert fits(0, sign * most) and not fits(0, sign * (most + 1))
    assert fits(sign * (most - 7), 7) and not fits(sign * (most - 7), 8)
    assert not fits(sign * (most - 7), -8), "they do not make up for each other"
    assert fits(0, 0, sign * most) and not fits(0, 0, sign * (most + 1))


def test_strides_of_axes_without_steps_are_parameters_all_the_same():
    kernel = two_axes()
    for rows in (0, 1):
        strides = {("x", "i0"): LIMIT, ("x", "i1"): 1, ("o", "i0"): 1}
        assert not fits_32_bits(call_of(kernel, {"i0": rows, "i1": 8}, strides))
        strides["x", "i0"] = LIMIT - 9
        assert fits_32_bits(call_of(kernel, {"i0": rows, "i1": 8}, strides))


def test_values_of_index_operands_have_64_bits_but_their_strides():
    kernel, extents = two_axes(Mode.INDEX), {"i0": 1 << 10, "i1": 1 << 10}

    def fits(stride):
        strides = {("x", "i0"): stride, ("x", "i1"): -stride, ("o", "i0"): 1}
        return fits_32_bits(call_of(kernel, extents, strides, first=2**40))

    assert fits(LIMIT - 1) and not fits(LIMIT)


@requires_cuda_tools
def test_indices_are_cast_to_bool():
    """Only in x64 mode does an iota have the dtype of indices."""
    (device,) = gf.devices("cuda_sim")
    with gf.enable_x64(True), gf.default_device(device):
        found = gf.jit(lambda: gf.lax.iota(jnp.int64, 5).astype(bool))()
    assert found.tolist() == [False, True, True, True, True]


def test_all_calls_of_a_launch_decide():
    kernel = cuda_zoo.scaled_tanh()
    small, large = (call_of(kernel, {"i0": n}) for n in (8, LIMIT))
    joint = segmented(kernel)
    assert with_narrowest_indices(joint, [small, small]).index_bits == 32
    assert with_narrowest_indices(joint, [small, large]) is joint
    assert with_narrowest_indices(kernel, [small]) is with_narrowest_indices(kernel, [small])
    assert (kernel.index_bits, with_narrowest_indices(kernel, [large])) == (64, kernel)


def test_no_launch_goes_further_past_the_end():
    """Of the largest grid on a device of 1,000 multiprocessors, four steps."""
    for kernel in cuda_zoo.zoo().values():
        for vectorize in (False, True):
            launch = schedule_cuda(kernel, vectorize)
            extents = dict.fromkeys([axis.name for axis in kernel.axes], 2**30)
            for length in (1, 100, 1000, 5000, 2**30):
                extents[kernel.axes[-1].name if kernel.axes else ""] = length
                (blocks, _), (width, height) = launch_shape(launch, extents, 1000, 1 << 14)
                steps = {"row": (blocks * height, width), "column": (blocks * width, height)}
                assert (
                    4 * max(steps.get(launch.strategy, [blocks * width])) <= MAX_COUNTER_OVERSHOOT
                )


def launched(function, *shapes, dtype="float32"):
    avals = [gf.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    plan, _ = compile_plan(gf.make_jaxpr(function)(*avals), target=gpu_target())
    steps = [step for step in plan.steps if step.kind == "kernel"]
    return [launched_kernel(step, calls)[0] for step in steps for calls in step.launches]


def test_one_program_of_many_sizes():
    """They have one template; what is launched follows from the sizes of each."""

    def widths(rows):
        shapes = (rows, 1024), (1024,)
        kernels = launched(lambda x, b: (jnp.tanh(x) + b, gf.nn.softmax(x), x.sum(0)), *shapes)
        assert len(kernels) >= 3
        return {kernel.index_bits for kernel in kernels if not kernel.name.endswith("_combine")}

    assert [widths(n) for n in (1000, 2**21, 1000)] == [{32}, {64}, {32}]


def test_joined_steps_of_one_large_array():
    def widths(n):
        kernels = launched(lambda a, b: (a * 2 + 1, b * 2 + 1), (n,), (16,))
        return [(kernel.segmented, kernel.index_bits) for kernel in kernels]

    assert widths(32) == [(True, 32)]
    assert widths(2**32) == [(True, 64)]


WIDE = re.compile(r"\b(add|sub|mul\.lo|mad\.lo|setp\.\w+|div|rem|shl|shr|or)\.[su]?b?64\b")


def in_loops(ptx):
    """The instructions between a label and a branch back to it."""
    lines = [line.strip() for line in ptx.splitlines()]
    labels = {line.partition(":")[0]: k for k, line in enumerate(lines) if line.startswith("$")}
    inside = set()
    for k, line in enumerate(lines):
        to = re.search(r"\bbra(?:\.uni)?\s+(\$\w+)", line)
        if to and labels[to[1]] < k:
            inside |= set(range(labels[to[1]], k + 1))
    return [lines[k] for k in sorted(inside)]


def _column(x):
    return x.sum(0)


@requires_cuda_tools
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, y: jnp.tanh(x * 2 + y) * jnp.exp(-x), [(4096,), (4096,)]),
        (lambda x, b: jnp.tanh(x * 2 + b) * x, [(64, 64), (64,)]),
        (gf.nn.softmax, [(64, 1024)]),
        (_column, [(128, 96)]),
        (jnp.sum, [(4096,)]),
    ],
    ids=["chain", "bias", "softmax", "column", "full"],
)
def test_what_it_saves(function, shapes):
    """What is left of 64-bit arithmetic in loops is the address of each access."""
    (narrow,) = launched(function, *shapes)
    _, with_32 = build(narrow, True, (9, 0))
    _, with_64 = build(replace(narrow, index_bits=64), True, (9, 0))
    few, many = (
        sum(WIDE.search(line) is not None for line in in_loops(built.ptx))
        for built in (with_32, with_64)
    )
    assert 0 < few * 3 <= many * 2
    assert not re.search(r"\b(mul\.lo|mad\.lo|div|rem)\.[su]64\b", with_32.ptx)
    assert with_32.registers <= with_64.registers + 1


def test_explicit_offsets_are_added_in_64_bits():
    operands = [
        Operand("x", "float32", IN, (ANY,)),
        Operand("k", "int64", IN, (UNIT,)),
        Operand("o", "float32", OUT, (UNIT,)),
    ]

    def body(b):
        with b.for_axis("i0"):
            b.store("o", b.load("x", b.load("k")))

    kernel = make("gather", {"i0": PARALLEL}, operands, body, index_bits=32)
    text = print_cuda(kernel, vectorize=False).text
    assert "x_at_i0 = np.int32(i0 * x_stride_i0)" in text
    assert re.search(r"load_readonly\(x, x_at_i0 \+ t\d+\)", text)


@requires_cuda_tools
@pytest.mark.parametrize("vectorize", [True, False])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_furthest_element_that_32_bits_reach_through(sign, vectorize):
    """Rows 4 GiB apart, of which only two pages are ever touched: bytes are counted with 64."""
    operands = [Operand("x", "float32", IN, (ANY, UNIT)), Operand("o", "float32", OUT, (ANY, UNIT))]

    def body(b):
        with b.for_axis("i0"), b.for_axis("i1"):
            b.store("o", b.load("x"))

    axes = {"i0": PARALLEL, "i1": PARALLEL}
    kernel = make("far_rows", axes, operands, body, index_bits=32)
    extents, apart = {"i0": 2, "i1": 8}, 2**30 - 8
    strides = {("x", "i0"): sign * apart, ("o", "i0"): 8}
    assert fits_32_bits(call_of(kernel, extents, strides))
    assert not fits_32_bits(call_of(kernel, extents, {**strides, ("x", "i0"): sign * (apart + 8)}))
    x = np.zeros(2**30 + 256, np.float32)  # pages that are not written take no memory
    x = x[-x.ctypes.data % 256 // 4 :][: 2**30]
    x[:8], x[apart:] = np.arange(8), np.arange(8, 16)
    out = aligned(np.zeros((2, 8), np.float32))
    run_cuda(kernel, {"x": (x, 0 if sign > 0 else apart), "o": out}, extents, strides, vectorize)
    np.testing.assert_array_equal(out.reshape(2, 8)[::sign], np.arange(16).reshape(2, 8))
