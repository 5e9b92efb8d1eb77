"""Interpreted kernels against NumPy."""

import ml_dtypes
import numpy as np
import pytest

from gpuflow.kir.builder import Builder
from gpuflow.kir.interpret import (
    interpret,
    interpret_segments,
    run,
    scalar_from_slot,
    scalar_to_slot,
)
from gpuflow.kir.nodes import Axis, Kernel, Mode, Operand, Role, Stride
from gpuflow.kir.verify import KernelError, verify

ZERO, UNIT, ANY = Stride.ZERO, Stride.UNIT, Stride.ANY
I0 = Axis("i0", Role.PARALLEL)


def kernel_of(operands, axes, emit, **more):
    build = Builder({operand.name: operand for operand in operands}, [axis.name for axis in axes])
    emit(build)
    kernel = Kernel("k", tuple(axes), tuple(operands), build.finish(), **more)
    verify(kernel)
    return kernel


def map_kernel(expression, dtypes=("float32", "float32"), strides=(UNIT,), **more):
    """A map over one axis from x to o."""
    x = Operand("x", dtypes[0], Mode.IN, strides)
    o = Operand("o", dtypes[1], Mode.OUT, (UNIT,))

    def emit(build):
        with build.for_axis("i0"):
            build.store("o", expression(build, build.load("x")))

    return kernel_of((x, o), (I0,), emit, **more)


def softmax_kernel(dtype="float32"):
    x = Operand("x", dtype, Mode.IN, (ANY, UNIT))
    o = Operand("o", dtype, Mode.OUT, (ANY, UNIT))

    def emit(build):
        def shifted():
            return build.apply("exp", build.apply("sub", build.load("x"), largest))

        with build.for_axis("i0"):
            low = build.const("float32", -np.inf)
            largest = build.reduce("i1", low, "max", lambda: build.load("x"))
            total = build.reduce("i1", build.const("float32", 0), "add", shifted)
            with build.for_axis("i1"):
                build.store("o", build.apply("div", shifted(), total))

    return kernel_of((x, o), (I0, Axis("i1", Role.ROW)), emit, kind="row")


@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_softmax(stored):
    x = np.random.default_rng(0).normal(size=(5, 7)).astype(stored)
    o = np.zeros((5, 9), stored)
    kernel = softmax_kernel(np.dtype(stored).name)
    strides = {("x", "i0"): 7, ("o", "i0"): 9}
    run(kernel, {"x": x, "o": (o, 1)}, {"i0": 5, "i1": 7}, strides)
    wide = x.astype(np.float64)
    want = np.exp(wide - wide.max(1, keepdims=True))
    want /= want.sum(1, keepdims=True)
    # One rounding to the stored dtype beside the float32 arithmetic.
    eps = max(4 * np.finfo(np.float32).eps, float(ml_dtypes.finfo(stored).eps))
    np.testing.assert_allclose(o[:, 1:8].astype(np.float64), want, rtol=eps)
    assert not o[:, [0, 8]].any()


def test_float32_stays_float32():
    kernel = map_kernel(lambda build, x: build.apply("sub", build.apply("add", x, x), x))
    x = np.array([2.0**127, 1.0], np.float32)
    o = np.zeros(2, np.float32)
    run(kernel, {"x": x, "o": o}, {"i0": 2})
    assert o.tolist() == [np.inf, 1.0]


def test_a_reversed_broadcast_and_span():
    kernel = map_kernel(lambda build, x: x, strides=(ANY,))
    x, o = np.arange(6, dtype=np.float32), np.full(4, -1, np.float32)
    run(kernel, {"x": (x, 5), "o": o}, {"i0": 4}, {("x", "i0"): -1})
    assert o.tolist() == [5, 4, 3, 2]
    o[:] = -1
    run(kernel, {"x": (x, 2), "o": o}, {"i0": 4}, {("x", "i0"): 0}, span=(1, 3))
    assert o.tolist() == [-1, 2, 2, -1]


def test_bool_is_stored_as_a_byte():
    kernel = map_kernel(lambda build, x: build.apply("not", x), ("bool", "bool"))
    o = np.full(2, 7, np.uint8)
    run(kernel, {"x": np.array([0, 1], np.uint8), "o": o}, {"i0": 2})
    assert o.tolist() == [1, 0]


def test_a_kernel_without_axes_runs_once():
    operands = (Operand("a", "bfloat16", Mode.SCALAR), Operand("o", "float32", Mode.OUT))
    kernel = kernel_of(operands, (), lambda build: build.store("o", build.load("a")))
    o = np.zeros(1, np.float32)
    run(kernel, {"a": 1.01, "o": o}, {})
    assert o[0] == np.float32(ml_dtypes.bfloat16(1.01))


def gather_kernel():
    x = Operand("x", "int32", Mode.IN, (ZERO,))
    at = Operand("at", "int64", Mode.IN, (UNIT,))
    size = Operand("size", "int64", Mode.SCALAR)
    o = Operand("o", "int32", Mode.OUT, (UNIT,))

    def emit(build):
        with build.for_axis("i0"):
            index = build.load("at")
            inside = build.apply("lt", index, build.load("size"))
            build.store("o", build.load("x", offset=index, where=inside))

    return kernel_of((x, at, size, o), (I0,), emit)


def test_gather_with_a_mask():
    o = np.full(4, -1, np.int32)
    at = np.array([2, 9, 0, 1])
    x = np.array([5, 6, 7], np.int32)
    run(gather_kernel(), {"x": x, "at": at, "size": 3, "o": o}, {"i0": 4})
    assert o.tolist() == [7, 0, 5, 6]


def test_an_access_outside_is_an_error():
    arrays = {"x": np.zeros(3, np.int32), "at": np.array([2, -1]), "size": 3}
    with pytest.raises(KernelError, match=r"\[k\] Load of x must stay in its 3 .* index -1"):
        run(gather_kernel(), {**arrays, "o": np.zeros(2, np.int32)}, {"i0": 2})
    arrays["at"] = np.array([0, 1])
    with pytest.raises(KernelError, match=r"\[k\] Store of o must stay in its 1 .* index 1"):
        run(gather_kernel(), {**arrays, "o": np.zeros(1, np.int32)}, {"i0": 2})


def test_an_out_element_is_stored_once():
    x, o = Operand("x", "int32", Mode.IN, (UNIT,)), Operand("o", "int32", Mode.OUT, (ZERO,))

    def emit(build):
        with build.for_axis("i0"):
            build.store("o", build.load("x"))

    kernel = kernel_of((x, o), (I0,), emit)
    with pytest.raises(KernelError, match="an element of o must be stored once; got index 0 again"):
        run(kernel, {"x": np.zeros(2, np.int32), "o": np.zeros(1, np.int32)}, {"i0": 2})


def test_arrays_of_another_width_are_refused():
    kernel = map_kernel(lambda build, x: x)
    with pytest.raises(KernelError, match="x must be given as contiguous float32"):
        run(kernel, {"x": np.zeros(2), "o": np.zeros(2, np.float32)}, {"i0": 2})


def test_lanes_leave_a_while_loop_by_themselves():
    def steps(build, x):
        one, two, three = (build.const("int64", number) for number in (1, 2, 3))

        def step(value, count):
            odd = build.apply("eq", build.apply("rem", value, two), one)
            (value,) = build.if_(
                odd,
                lambda: build.apply("add", build.apply("mul", value, three), one),
                lambda: build.apply("div", value, two),
            )
            return value, build.apply("add", count, one)

        start = (x, build.const("int64", 0))
        return build.while_loop(start, lambda v, n: build.apply("ne", v, one), step)[1]

    kernel = map_kernel(steps, ("int64", "int64"))
    o = np.zeros(5, np.int64)
    run(kernel, {"x": np.array([1, 2, 6, 7, 27]), "o": o}, {"i0": 5})
    assert o.tolist() == [0, 1, 8, 16, 111]


def test_a_counted_loop_may_differ_between_lanes():
    def triangle(build, x):
        zero = build.const("int64", 0)
        return build.for_count(x, (zero,), lambda i, total: build.apply("add", total, i))[0]

    o = np.zeros(4, np.int64)
    kernel = map_kernel(triangle, ("int64", "int64"))
    run(kernel, {"x": np.array([0, 1, 5, -3]), "o": o}, {"i0": 4})
    assert o.tolist() == [0, 0, 10, 0]


def test_a_branch_that_is_not_taken_touches_nothing():
    x, o = Operand("x", "int32", Mode.IN, (UNIT,)), Operand("o", "int32", Mode.OUT, (UNIT,))
    at = Operand("at", "int64", Mode.INDEX, (UNIT,))

    def emit(build):
        with build.for_axis("i0"):
            index, two = build.load("at"), build.const("int64", 2)
            first = build.apply("lt", index, two)
            build.if_(first, lambda: build.store("o", build.load("x")), lambda: None)

    o_array = np.zeros(4, np.int32)
    kernel = kernel_of((x, o, at), (I0,), emit)
    run(kernel, {"x": np.array([3, 4], np.int32), "o": o_array, "at": 0}, {"i0": 4})
    assert o_array.tolist() == [3, 4, 0, 0]


def argmax_kernel():
    x = Operand("x", "float64", Mode.IN, (ANY, ANY, UNIT))
    at = Operand("at", "int64", Mode.INDEX, (ZERO, ANY, UNIT))
    o = Operand("o", "int64", Mode.OUT, (ANY, ZERO, ZERO))

    def emit(build):
        def larger(value, index, new_value, new_index):
            take = build.apply("gt", new_value, value)
            return build.select(take, new_value, value), build.select(take, new_index, index)

        with build.for_axis("i0"):
            init = (build.const("float64", -np.inf), build.const("int64", 0))
            element = lambda: (build.load("x"), build.load("at"))  # noqa: E731
            build.store("o", build.reduce(("i1", "i2"), init, larger, element)[1])

    axes = (I0, Axis("i1", Role.REDUCE), Axis("i2", Role.REDUCE))
    return kernel_of((x, at, o), axes, emit)


def test_argmax_over_two_axes():
    x = np.random.default_rng(1).normal(size=(4, 3, 5))
    o = np.zeros(4, np.int64)
    strides = {("x", "i0"): 15, ("x", "i1"): 5, ("at", "i1"): 5, ("o", "i0"): 1}
    run(argmax_kernel(), {"x": x, "at": 100, "o": o}, {"i0": 4, "i1": 3, "i2": 5}, strides)
    np.testing.assert_array_equal(o, 100 + x.reshape(4, -1).argmax(1))


def test_a_reduction_of_nothing_is_its_initial_value():
    o = np.ones(2, np.int64)
    strides = {("x", "i0"): 0, ("x", "i1"): 0, ("at", "i1"): 0, ("o", "i0"): 1}
    sizes = {"i0": 2, "i1": 3, "i2": 0}
    run(argmax_kernel(), {"x": np.zeros(0), "at": 9, "o": o}, sizes, strides)
    assert o.tolist() == [0, 0]


def test_a_serial_axis_runs_in_order():
    x = Operand("x", "int32", Mode.IN, (ANY, UNIT))
    total = Operand("t", "int32", Mode.INOUT, (ANY, ZERO))

    def emit(build):
        with build.for_axis("i0"), build.for_axis("i1"):
            two = build.const("int32", 2)
            doubled = build.apply("mul", build.load("t"), two)
            build.store("t", build.apply("add", doubled, build.load("x")))

    kernel = kernel_of((x, total), (I0, Axis("i1", Role.SERIAL)), emit)
    digits, out = np.array([[1, 0, 1], [0, 1, 1]], np.int32), np.zeros(2, np.int32)
    strides = {("x", "i0"): 3, ("t", "i0"): 1}
    run(kernel, {"x": digits, "t": out}, {"i0": 2, "i1": 3}, strides)
    assert out.tolist() == [5, 3]


def test_columns_with_a_vector_axis_around_a_reduction():
    axes = (I0, Axis("i1", Role.REDUCE), Axis("i2", Role.VECTOR, exact=4))
    x = Operand("x", "float32", Mode.IN, (ANY, ANY, UNIT))
    o = Operand("o", "float32", Mode.OUT, (ANY, ZERO, UNIT))

    def emit(build):
        with build.for_axis("i0"), build.for_axis("i2"):
            zero = build.const("float32", 0)
            build.store("o", build.reduce("i1", zero, "add", lambda: build.load("x")))

    array = np.random.default_rng(2).integers(0, 9, (5, 8)).astype(np.float32)
    sums = np.zeros(8, np.float32)
    strides = {("x", "i0"): 4, ("x", "i1"): 8, ("o", "i0"): 4}
    kernel = kernel_of((x, o), axes, emit)
    run(kernel, {"x": array, "o": sums}, {"i0": 2, "i1": 5}, strides)
    np.testing.assert_array_equal(sums, array.sum(0))


def test_words_and_memory_mean_the_same_as_arrays():
    x = np.random.default_rng(3).normal(size=(3, 4)).astype(np.float32)
    room = np.zeros(64, np.uint8)
    kernel = softmax_kernel()
    words = (1 << 40, 4096 + 16, 3, 4, 4, 4)
    interpret(kernel, words, {1 << 40: x, 4096: room})
    want = np.zeros_like(x)
    run(kernel, {"x": x, "o": want}, {"i0": 3, "i1": 4}, {("x", "i0"): 4, ("o", "i0"): 4})
    assert room[16:].tobytes() == want.tobytes()
    with pytest.raises(KernelError, match="pointer o must point into memory; got 0x8"):
        interpret(kernel, (1 << 40, 8, 3, 4, 4, 4), {1 << 40: x})
    with pytest.raises(KernelError, match="must have 6 slots; got 1"):
        interpret(kernel, (0,), {})


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "bfloat16", "float64"])
def test_scalar_words_keep_the_value(dtype):
    for value in (0, 1, -3) if dtype not in ("bool", "uint64") else (0, 1):
        assert scalar_from_slot(dtype, scalar_to_slot(dtype, value)) == value
    assert scalar_to_slot("float16", 1.0) == 0x3C00
    assert scalar_to_slot("int32", -1) == 0xFFFFFFFF


def test_segments_run_end_to_end():
    kernel = map_kernel(lambda build, x: build.apply("neg", x), segmented=True)
    memory = {}
    blocks = []
    for index, size in enumerate((3, 0, 2, 4)):
        source, target = 1000 * (2 * index + 1), 1000 * (2 * index + 2)
        memory[source] = np.arange(1, size + 1, dtype=np.float32)
        memory[target] = np.zeros(size, np.float32)
        blocks.append((source, target, size))
    interpret_segments(kernel, blocks, memory, span=(1, 6))
    outs = [memory[target].tolist() for _, target, _ in blocks]
    assert outs == [[0, -2, -3], [], [-1, -2], [-1, 0, 0, 0]]
    for _, target, _ in blocks:
        memory[target][:] = 0
    interpret_segments(kernel, blocks, memory)
    assert all((memory[target] == -memory[source]).all() for source, target, _ in blocks)


def test_an_empty_axis_reads_nothing():
    kernel = map_kernel(lambda build, x: x)
    empty = np.zeros(0, np.float32)
    run(kernel, {"x": empty, "o": empty.copy()}, {"i0": 0})
