"""Strips and local arrays: text, rules, and what the interpreter refuses."""

import numpy as np
import pytest

from gpuflow.kir.interpret import run
from gpuflow.kir.nodes import (
    Apply,
    Axis,
    Block,
    Const,
    For,
    Kernel,
    Load,
    Local,
    Mode,
    Operand,
    Role,
    Store,
    Stride,
    Strip,
    Value,
)
from gpuflow.kir.rewrite import substituted
from gpuflow.kir.rules import KernelError
from gpuflow.kir.text import kernel_text
from gpuflow.kir.verify import verify

OPERANDS = (
    Operand("x", "float32", Mode.IN, (Stride.ANY, Stride.ANY)),
    Operand("o", "float32", Mode.OUT, (Stride.ANY, Stride.UNIT)),
)
AXES = (Axis("i", Role.PARALLEL), Axis("j", Role.PARALLEL))
TILE = Local("tile", "float32", (("j", 4), ("i", 4)))


def loops(names, *body):
    block = Block(body=body)
    for name in reversed(names):
        block = Block(body=(For(name, block),))
    return block.body[0]


def copy(source, target, number):
    value = Value(number, "float32")
    return Load(value, source), Store(target, value)


INTO = loops("ji", *copy("x", "tile", 0))
OFFSET, INTO_VALUE = Value(9, "int64"), Value(0, "float32")
BACK = loops("ij", *copy("tile", "o", 1))


def tiled(*body, size=4, local=TILE, axes=AXES):
    strips = Strip("i", size, Block(body=(Strip("j", 4, Block(body=body)),)))
    return Kernel("tiled", axes, OPERANDS, Block(body=(strips,)), locals=(local,))


def test_text():
    assert kernel_text(tiled(INTO, BACK)) == (
        "kernel tiled(x: f32 in [i:s, j:s], o: f32 out [i:s, j:1]) kind=map index=64\n"
        "  axes i parallel, j parallel\n"
        "  local tile: f32 [j:4, i:4]\n"
        "  strip i by 4:\n"
        "    strip j by 4:\n"
        "      for j:\n"
        "        for i:\n"
        "          %0: f32 = load x\n"
        "          store tile %0\n"
        "      for i:\n"
        "        for j:\n"
        "          %1: f32 = load tile\n"
        "          store o %1\n"
    )


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (4, 4), (5, 3), (9, 13)])
@pytest.mark.parametrize("span", [None, (1, 3)])
def test_a_turned_copy(shape, span):
    rows, columns = shape
    x = np.arange(rows * columns, dtype=np.float32)
    out = np.full(rows * columns, -1, np.float32)
    kernel = tiled(INTO, BACK)
    verify(kernel)
    strides = {("x", "i"): 1, ("x", "j"): rows, ("o", "i"): columns}
    span = None if span is None else (min(span[0], rows), min(span[1], rows))
    run(kernel, {"x": x, "o": out}, {"i": rows, "j": columns}, strides, span)
    want = np.full(shape, -1, np.float32)
    lo, hi = span or (0, rows)
    want[lo:hi] = x.reshape(columns, rows).T[lo:hi]
    np.testing.assert_array_equal(out.reshape(shape), want)


@pytest.mark.parametrize(
    "kernel, rule",
    [
        (tiled(INTO, BACK, size=3), "power of two"),
        (tiled(INTO, BACK, size=8), "at most the array's 4 points"),
        (tiled(INTO, BACK, local=Local("x", "float32", TILE.axes)), "names must differ"),
        (tiled(INTO, BACK, local=Local("tile", "int32", TILE.axes)), "its dtype"),
        (tiled(loops("j", *copy("x", "tile", 0)), BACK), "must be open"),
        (tiled(loops("ij", Load(INTO_VALUE, "tile", OFFSET))), "before its use"),
        (
            Kernel("open", AXES, OPERANDS, Block(body=(loops("i", Strip("i", 4, Block())),))),
            "must not be open already",
        ),
        (
            Kernel("unknown", AXES, OPERANDS, Block(body=(Strip("k", 4, Block()),))),
            "must be an axis",
        ),
    ],
)
def test_rules(kernel, rule):
    with pytest.raises(KernelError, match=rule):
        verify(kernel)


def test_elements_are_stored_before_they_are_loaded():
    strides = {("x", "i"): 3, ("x", "j"): 1, ("o", "i"): 3}
    arrays = {"x": np.zeros(18, np.float32), "o": np.zeros(18, np.float32)}
    with pytest.raises(KernelError, match="must be stored before it is loaded"):
        run(tiled(BACK, INTO), arrays, {"i": 6, "j": 3}, strides)


def test_an_axis_that_is_exact_needs_no_strip():
    axes = (AXES[0], Axis("j", Role.ROW, exact=3))
    local = Local("tile", "float32", (("j", 3), ("i", 4)))
    strip = Strip("i", 4, Block(body=(INTO, BACK)))
    kernel = Kernel("rows", axes, OPERANDS, Block(body=(strip,)), kind="row", locals=(local,))
    verify(kernel)
    x, out = np.arange(18, dtype=np.float32), np.zeros(18, np.float32)
    strides = {("x", "i"): 3, ("x", "j"): 1, ("o", "i"): 3}
    run(kernel, {"x": x, "o": out}, {"i": 6}, strides)
    np.testing.assert_array_equal(out, x)


def test_running_values_in_a_local_array():
    """Rows outside, columns inside: each turn of the loop over rows sees what the last one left."""
    axes = (Axis("i", Role.REDUCE), Axis("j", Role.PARALLEL))
    operands = (OPERANDS[0], Operand("o", "float32", Mode.OUT, (Stride.ZERO, Stride.UNIT)))
    local = Local("running", "float32", (("j", 4),))
    zero, old, new, total, last = (Value(k, "float32") for k in range(5))
    first = loops("j", Const(zero, 0.0), Store("running", zero))
    row = loops(
        "ij",
        Load(old, "running"),
        Load(new, "x"),
        Apply((total,), "add", (old, new)),
        Store("running", total),
    )
    end = loops("j", Load(last, "running"), Store("o", last))
    strip = Strip("j", 4, Block(body=(first, row, end)))
    kernel = Kernel("sums", axes, operands, Block(body=(strip,)), kind="column", locals=(local,))
    verify(kernel)
    x, out = np.arange(5 * 9, dtype=np.float32), np.zeros(9, np.float32)
    run(kernel, {"x": x, "o": out}, {"i": 5, "j": 9}, {("x", "i"): 9, ("x", "j"): 1})
    np.testing.assert_array_equal(out, x.reshape(5, 9).sum(0))


ROW = Local("row", "float32", (("j", 4),))
ONE_ROW = (
    Operand("x", "float32", Mode.IN, (Stride.UNIT,)),
    Operand("o", "float32", Mode.OUT, (Stride.UNIT,)),
)


def turned(*, place=None, local=ROW, size=4, back=None):
    """Pieces of 4, backwards: a loop over numbers, which reads and writes elements by offsets.

    Args:
        place: added to where elements are stored.
        local: the array.
        size: of the pieces.
        back: how the results are read; by default at points.
    """
    number, k, kept, at = (Value(n, "int64") for n in range(4))
    old, new = Value(4, "float32"), Value(5, "float32")
    shift, there = Value(6, "int64"), Value(7, "int64")
    turn = Block(
        (k,),
        (
            Apply((at,), "sub", (kept, k)),
            Load(old, "row", k),
            Const(shift, place or 0),
            Apply((there,), "add", (at, shift)),
            Store("row", old, there),
        ),
    )
    strip = Strip(
        "j",
        size,
        Block(
            body=(
                loops("j", *copy("x", "row", 8)),
                Const(number, 2),
                Const(kept, 3),
                For(None, turn, number),
                back or loops("j", Load(new, "row"), Store("o", new)),
            )
        ),
    )
    axes = (Axis("j", Role.PARALLEL),)
    return Kernel("turned", axes, ONE_ROW, Block(body=(strip,)), locals=(local,))


def test_elements_of_a_local_array_by_offsets():
    kernel = turned()
    verify(kernel)
    assert "%5: f32 = load row at %3\n" in kernel_text(kernel)
    x, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    run(kernel, {"x": x, "o": out}, {"j": 8}, {})
    np.testing.assert_array_equal(out, [0, 1, 1, 0, 4, 5, 5, 4])


def test_offsets_stay_in_the_array():
    arrays = {"x": np.zeros(4, np.float32), "o": np.zeros(4, np.float32)}
    with pytest.raises(KernelError, match="must stay in its 4 elements"):
        run(turned(place=1), arrays, {"j": 4}, {})


@pytest.mark.parametrize(
    "kernel, rule",
    [
        (
            turned(back=loops("j", Load(Value(9, "float32"), "row", Value(1, "int64")))),
            "before its use",
        ),
        (
            turned(back=loops("j", Const(OFFSET, 0), Load(INTO_VALUE, "row", OFFSET))),
            "and not both",
        ),
        (turned(size=8), "at most the array's 4 points"),
    ],
)
def test_rules_of_offsets(kernel, rule):
    with pytest.raises(KernelError, match=rule):
        verify(kernel)


def test_renamed_values_and_operands():
    block = substituted(Block(body=(BACK,)), {Value(1, "float32"): Value(7, "float32")}, {"o": "p"})
    (loop,) = block.body
    assert loop == loops("ij", Load(Value(7, "float32"), "tile"), Store("p", Value(7, "float32")))
