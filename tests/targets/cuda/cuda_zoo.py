"""One kernel of every kind, which several CUDA tests share."""

from __future__ import annotations

from functools import cache
from typing import Any

from cuda_harness import (
    ANY,
    IN,
    INOUT,
    OUT,
    PARALLEL,
    REDUCE,
    ROW,
    UNIT,
    VECTOR,
    ZERO,
    make,
)

from gpuflow.kir.nodes import Kernel, Mode, Operand


def scaled_tanh(dtype: str = "float32", index_bits: int = 64) -> Kernel:
    """o = tanh(x * y) + x * 1/2 over one axis."""
    operands = [Operand(name, dtype, IN, (UNIT,)) for name in "xy"]
    operands.append(Operand("o", dtype, OUT, (UNIT,)))

    def body(b):
        with b.for_axis("i0"):
            x, y = b.load("x"), b.load("y")
            half = b.const(x.dtype, 0.5)
            b.store("o", b.apply("fma", x, half, b.apply("tanh", b.apply("mul", x, y))))

    return make("scaled_tanh", {"i0": PARALLEL}, operands, body, index_bits=index_bits)


def bias_relu(index_bits: int = 64) -> Kernel:
    """o, positive = max(x * row + bias, 0), x > 0: two axes, two outputs, mixed dtypes."""
    operands = [
        Operand("x", "bfloat16", IN, (ANY, UNIT)),
        Operand("row", "float32", IN, (ANY, ZERO)),
        Operand("bias", "float32", IN, (ZERO, UNIT)),
        Operand("o", "bfloat16", OUT, (ANY, UNIT)),
        Operand("positive", "bool", OUT, (ANY, UNIT)),
    ]

    def body(b):
        with b.for_axis("i0"):
            row = b.load("row")
            with b.for_axis("i1"):
                total = b.apply("add", b.apply("mul", b.load("x"), row), b.load("bias"))
                zero = b.const("float32", 0.0)
                b.store("o", b.apply("max", total, zero))
                b.store("positive", b.apply("gt", b.load("x"), zero))

    axes = {"i0": PARALLEL, "i1": PARALLEL}
    return make("bias_relu", axes, operands, body, index_bits=index_bits)


def softmax(in_place: bool = False, index_bits: int = 64) -> Kernel:
    """Softmax of every row."""
    x = Operand("x", "float32", INOUT if in_place else IN, (ANY, UNIT))
    operands = [x] if in_place else [x, Operand("o", "float32", OUT, (ANY, UNIT))]

    def body(b):
        with b.for_axis("i0"):
            lowest, zero = b.const("float32", float("-inf")), b.const("float32", 0.0)
            largest = b.reduce("i1", lowest, "max", lambda: b.load("x"))

            def exponential():
                return b.apply("exp", b.apply("sub", b.load("x"), largest))

            total = b.reduce("i1", zero, "add", exponential)
            with b.for_axis("i1"):
                b.store(operands[-1].name, b.apply("div", exponential(), total))

    axes = {"i0": PARALLEL, "i1": ROW}
    return make("softmax", axes, operands, body, kind="row", index_bits=index_bits)


def row_argmax() -> Kernel:
    """The largest element of every row and its first index: a Reduce of two components."""
    operands = [
        Operand("x", "float32", IN, (ANY, UNIT)),
        Operand("position", "int64", Mode.INDEX, (ZERO, UNIT)),
        Operand("largest", "float32", OUT, (UNIT_OF_ROWS, ZERO)),
        Operand("place", "int32", OUT, (UNIT_OF_ROWS, ZERO)),
    ]

    def combine(b, x, i, y, j):
        first = b.apply("and", b.apply("eq", x, y), b.apply("lt", i, j))
        keep = b.apply("or", b.apply("gt", x, y), first)
        return b.select(keep, x, y), b.select(keep, i, j)

    def body(b):
        with b.for_axis("i0"):
            init = (b.const("float32", float("-inf")), b.const("int32", 2**31 - 1))
            found = b.reduce(
                "i1",
                init,
                lambda *sides: combine(b, *sides),
                lambda: (b.load("x"), b.cast(b.load("position"), "int32")),
            )
            b.store("largest", found[0])
            b.store("place", found[1])

    return make("row_argmax", {"i0": PARALLEL, "i1": ROW}, operands, body, kind="row")


UNIT_OF_ROWS = ANY  # the row axis is not the innermost one, so its stride is an argument


def column_sum(role_last: bool = True) -> Kernel:
    """Sum over rows; either the columns are the last axis, or they come first as PARALLEL."""

    def body(b):
        with b.for_axis("column"):
            zero = b.const("float32", 0.0)
            b.store("o", b.reduce("row", zero, "add", lambda: b.load("x")))

    if role_last:
        axes, x, o = {"row": REDUCE, "column": VECTOR}, (ANY, UNIT), (ZERO, UNIT)
    else:
        axes, x, o = {"column": PARALLEL, "row": REDUCE}, (ANY, ANY), (ANY, ZERO)
    operands = [Operand("x", "float32", IN, x), Operand("o", "float32", OUT, o)]
    return make("column_sum", axes, operands, body, kind="column")


def batch_center() -> Kernel:
    """x minus its mean over batch and pixels, per channel: parallel, reduce, parallel."""
    operands = [
        Operand("x", "float32", IN, (ANY, ANY, UNIT)),
        Operand("scale", "float32", Mode.SCALAR),
        Operand("mean", "float32", OUT, (ANY, ZERO, ZERO)),
        Operand("o", "float32", OUT, (ANY, ANY, UNIT)),
    ]

    def body(b):
        with b.for_axis("channel"):
            zero = b.const("float32", 0.0)
            total = b.reduce(("image", "pixel"), zero, "add", lambda: b.load("x"))
            mean = b.apply("mul", total, b.load("scale"))
            b.store("mean", mean)
            with b.for_axis("image"), b.for_axis("pixel"):
                b.store("o", b.apply("sub", b.load("x"), mean))

    axes = {"channel": PARALLEL, "image": REDUCE, "pixel": REDUCE}
    return make("batch_center", axes, operands, body, kind="column")


def norm_and_largest(**more: Any) -> Kernel:
    """scale * sqrt(sum(x * x)) and max(x) of a whole array, and x * x itself."""
    operands = [
        Operand("x", "float32", IN, (UNIT,)),
        Operand("scale", "float32", Mode.SCALAR),
        Operand("norm", "float32", OUT, (ZERO,)),
        Operand("largest", "float32", OUT, (ZERO,)),
        Operand("square", "float32", OUT, (UNIT,)),
    ]

    def body(b):
        zero, lowest = b.const("float32", 0.0), b.const("float32", float("-inf"))

        def square():
            return b.apply("mul", b.load("x"), b.load("x"))

        total = b.reduce("i0", zero, "add", square)
        largest = b.reduce("i0", lowest, "max", lambda: b.load("x"))
        with b.for_axis("i0"):
            b.store("square", square())
        b.store("norm", b.apply("mul", b.apply("sqrt", total), b.load("scale")))
        b.store("largest", largest)

    return make("norm_and_largest", {"i0": REDUCE}, operands, body, kind="full", **more)


def collatz() -> Kernel:
    """Steps until 3x+1 reaches 1: a loop that every lane leaves by itself."""
    operands = [Operand("x", "int64", IN, (UNIT,)), Operand("o", "int32", OUT, (UNIT,))]

    def body(b):
        with b.for_axis("i0"):
            one = b.const("int64", 1)

            def step(x, count):
                even = b.apply("eq", b.apply("and", x, one), b.const("int64", 0))
                (following,) = b.if_(
                    even,
                    lambda: b.apply("shift_right_arithmetic", x, one),
                    lambda: b.apply("add", b.apply("add", b.apply("add", x, x), x), one),
                )
                return following, b.apply("add", count, b.const("int32", 1))

            found = b.while_loop(
                (b.load("x"), b.const("int32", 0)), lambda x, n: b.apply("gt", x, one), step
            )
            b.store("o", found[1])

    return make("collatz", {"i0": PARALLEL}, operands, body, kind="loop")


def update_step() -> Kernel:
    """p -= rate * g over many parameters at once."""
    operands = [
        Operand("p", "float32", INOUT, (UNIT,)),
        Operand("g", "bfloat16", IN, (UNIT,)),
        Operand("rate", "float32", Mode.SCALAR),
        Operand("decay", "bfloat16", Mode.SCALAR),
    ]

    def body(b):
        rate, decay = b.load("rate"), b.load("decay")
        with b.for_axis("i0"):
            p = b.apply("mul", b.load("p"), decay)
            b.store("p", b.apply("sub", p, b.apply("mul", rate, b.load("g"))))

    return make("update_step", {"i0": PARALLEL}, operands, body, segmented=True)


def two_numbers() -> Kernel:
    """A kernel without axes: o = x + y of single elements."""
    operands = [Operand("x", "float32", IN), Operand("y", "float32", Mode.SCALAR)]
    operands.append(Operand("o", "float32", OUT))

    def body(b):
        b.store("o", b.apply("add", b.load("x"), b.load("y")))

    return make("two_numbers", {}, operands, body)


@cache
def zoo() -> dict[str, Kernel]:
    """Every kernel above, by a name for the test's report."""
    return {
        "map": scaled_tanh(),
        "map_32_bit_index": scaled_tanh(index_bits=32),
        "map_two_axes": bias_relu(),
        "row": softmax(),
        "row_in_place": softmax(in_place=True),
        "row_tuple": row_argmax(),
        "column": column_sum(),
        "column_first": column_sum(role_last=False),
        "column_between": batch_center(),
        "full": norm_and_largest(),
        "loop": collatz(),
        "segments": update_step(),
        "full_segments": norm_and_largest(segmented=True),
        "no_axes": two_numbers(),
    }
