"""The builder, and the canonical text of what it builds."""

from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from gpuflow.kir import nodes
from gpuflow.kir.builder import Builder, simple_combine
from gpuflow.kir.nodes import Axis, Block, Kernel, Mode, Operand, Role, Stride, Value
from gpuflow.kir.text import kernel_key, kernel_text, short_dtype
from gpuflow.kir.verify import verify

ZERO, UNIT, ANY = Stride.ZERO, Stride.UNIT, Stride.ANY


def table(*operands):
    return {operand.name: operand for operand in operands}


def softmax():
    operands = (
        Operand("x", "float32", Mode.IN, (ANY, UNIT)),
        Operand("o", "float32", Mode.OUT, (ANY, UNIT)),
    )
    build = Builder(table(*operands), ("i0", "i1"))

    def shifted():
        return build.apply("exp", build.apply("sub", build.load("x"), largest))

    with build.for_axis("i0"):
        low = build.const("float32", -np.inf)
        largest = build.reduce("i1", low, "max", lambda: build.load("x"))
        total = build.reduce("i1", build.const("float32", 0), "add", shifted)
        with build.for_axis("i1"):
            build.store("o", build.apply("div", shifted(), total))
    axes = (Axis("i0", Role.PARALLEL), Axis("i1", Role.ROW))
    return Kernel("row_softmax", axes, operands, build.finish(), kind="row")


def collatz():
    """One lane loop in a map, with a branch, a masked load, an index map and a scalar."""
    operands = (
        Operand("x", "bfloat16", Mode.IN, (ZERO,)),
        Operand("at", "int64", Mode.INDEX, (UNIT,)),
        Operand("limit", "int64", Mode.SCALAR),
        Operand("o", "int64", Mode.INOUT, (UNIT,)),
    )
    build = Builder(table(*operands), ("i0",))
    with build.for_axis("i0"):
        one, two = build.const("int64", 1), build.const("int64", 2)
        index = build.load("at")
        inside = build.apply("lt", index, build.load("limit"))
        element = build.cast(build.load("x", offset=index, where=inside), "int64")

        def step(value, count):
            even = build.apply("eq", build.apply("rem", value, two), build.const("int64", 0))
            half = lambda: build.apply("div", value, two)  # noqa: E731
            odd = lambda: build.apply("add", build.apply("mul", value, element), one)  # noqa: E731
            (value,) = build.if_(even, half, odd)
            return value, build.apply("add", count, one)

        ends = build.while_loop((index, one), lambda v, n: build.apply("gt", v, one), step)
        tripled = build.for_count(two, (ends[1],), lambda i, c: build.apply("add", c, i))
        build.store("o", tripled[0])
    axes = (Axis("i0", Role.PARALLEL),)
    return Kernel("collatz", axes, operands, build.finish(), segmented=True, index_bits=32)


def argmax():
    operands = (
        Operand("x", "float64", Mode.IN, (UNIT,)),
        Operand("at", "int64", Mode.INDEX, (UNIT,)),
        Operand("o", "int32", Mode.OUT, (ZERO,)),
    )
    build = Builder(table(*operands), ("i0",))

    def larger(value, index, new_value, new_index):
        take = build.apply("gt", new_value, value)
        return build.select(take, new_value, value), build.select(take, new_index, index)

    init = (build.const("float64", -np.inf), build.const("int64", 0))
    outs = build.reduce(("i0",), init, larger, lambda: (build.load("x"), build.load("at")))
    build.store("o", build.cast(outs[1], "int32"))
    return Kernel("argmax", (Axis("i0", Role.REDUCE, 16),), operands, build.finish(), kind="full")


DOCUMENT = Path(__file__).parents[2] / "docs" / "kernel_ir.md"

SOFTMAX = """\
kernel row_softmax(x: f32 in [i0:s, i1:1], o: f32 out [i0:s, i1:1]) kind=row index=64
  axes i0 parallel, i1 row
  for i0:
    %0: f32 = const -inf
    %1: f32 = reduce i1 (%0) { %2: f32 = load x; yield %2 } combine max
    %3: f32 = const 0.0
    %4: f32 = reduce i1 (%3) {{BODY}} combine add
    for i1:
      %8: f32 = load x
      %9: f32 = sub %8 %1
      %10: f32 = exp %9
      %11: f32 = div %10 %4
      store o %11
""".replace("{BODY}", " %5: f32 = load x; %6: f32 = sub %5 %1; %7: f32 = exp %6; yield %7 ")

COLLATZ = """\
kernel collatz(x: bf16 in [i0:0], at: index [i0:1], limit: i64 scalar, o: i64 inout [i0:1]) \
kind=map index=32 segmented
  axes i0 parallel
  for i0:
    %0: i64 = const 1
    %1: i64 = const 2
    %2: i64 = load at
    %3: i64 = load limit
    %4: bool = lt %2 %3
    %5: f32 = load x at %2 where %4
    %6: i64 = cast %5
    %7: i64, %8: i64 = while (%2 %0) cond (%9: i64, %10: i64) { %11: bool = gt %9 %0; yield %11 } \
do (%12: i64, %13: i64) {
      %14: i64 = rem %12 %1
      %15: i64 = const 0
      %16: bool = eq %14 %15
      %17: i64 = if %16 { %18: i64 = div %12 %1; yield %18 } else \
{ %19: i64 = mul %12 %6; %20: i64 = add %19 %0; yield %20 }
      %21: i64 = add %13 %0
      yield %17 %21
    }
    %22: i64 = for %1 (%8) do (%23: i64, %24: i64) { %25: i64 = add %24 %23; yield %25 }
    store o %22
"""

ARGMAX = """\
kernel argmax(x: f64 in [i0:1], at: index [i0:1], o: i32 out [i0:0]) kind=full index=64
  axes i0 reduce=16
  %0: f64 = const -inf
  %1: i64 = const 0
  %2: f64, %3: i64 = reduce i0 (%0 %1) { %4: f64 = load x; %5: i64 = load at; yield %4 %5 } \
combine (%6: f64, %7: i64, %8: f64, %9: i64) \
{ %10: bool = gt %8 %6; %11: f64 = select %10 %8 %6; %12: i64 = select %10 %9 %7; yield %11 %12 }
  %13: i32 = cast %3
  store o %13
"""

GOLDEN = [(softmax, SOFTMAX), (collatz, COLLATZ), (argmax, ARGMAX)]


@pytest.mark.parametrize(("make", "text"), GOLDEN)
def test_text_is_as_written_here(make, text):
    kernel = make()
    verify(kernel)
    assert kernel_text(kernel) == text


def test_the_document_shows_the_text_that_is_printed():
    assert f"```\n{SOFTMAX}```" in DOCUMENT.read_text()


def renumber(node, number):
    """The same tree with other value numbers."""
    if isinstance(node, Value):
        return Value(number(node.number), node.dtype)
    if isinstance(node, tuple):
        return tuple(renumber(item, number) for item in node)
    if not is_dataclass(node):
        return node
    changed = {f.name: renumber(getattr(node, f.name), number) for f in fields(node)}
    return replace(node, **changed)


@pytest.mark.parametrize("make", [softmax, collatz, argmax])
def test_text_does_not_depend_on_numbers(make):
    kernel = make()
    other = replace(kernel, body=renumber(kernel.body, lambda number: 1000 - 7 * number))
    verify(other)
    assert other != kernel
    assert kernel_text(other) == kernel_text(kernel)
    assert kernel_key(other) == kernel_key(kernel)


def test_text_holds_all_that_matters_to_code():
    kernel = softmax()
    x, o = kernel.operands
    i0, i1 = kernel.axes
    variants = [
        kernel,
        replace(kernel, name="other"),
        replace(kernel, kind="map"),
        replace(kernel, index_bits=32),
        replace(kernel, segmented=True),
        replace(kernel, axes=(i0, replace(i1, exact=8))),
        replace(kernel, axes=(i0, replace(i1, exact=16))),
        replace(kernel, axes=(i0, replace(i1, role=Role.REDUCE))),
        replace(kernel, operands=(replace(x, strides=(ANY, ANY)), o)),
        replace(kernel, operands=(replace(x, strides=(ZERO, UNIT)), o)),
        replace(kernel, operands=(replace(x, dtype="float16"), o)),
        replace(kernel, operands=(replace(x, dtype="bfloat16"), o)),
        replace(kernel, operands=(x, replace(o, mode=Mode.INOUT))),
    ]
    assert len({kernel_key(variant) for variant in variants}) == len(variants)


def test_constants_are_told_apart():
    texts = set()
    for value in (0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 0.1, 1 + 2.0**-23):
        build = Builder({})
        build.const("float32", value)
        texts.add(kernel_text(Kernel("c", (), (), build.finish())))
    assert len(texts) == 8


def test_a_float32_constant_is_rounded_once():
    build = Builder({})
    first = build.const("float32", 0.1)
    assert build.const("float32", float(np.float32(0.1))) is first
    (statement,) = build.finish().body
    assert statement.value == float(np.float32(0.1))
    assert build.const("float32", -0.0) is not build.const("float32", 0.0)
    assert build.const("bool", True) is not build.const("int32", 1)


def test_short_names():
    names = ("float32", "bfloat16", "int8", "uint64", "bool", "float8_e4m3fn")
    wanted = ["f32", "bf16", "i8", "u64", "bool", "f8_e4m3fn"]
    assert [short_dtype(name) for name in names] == wanted


def test_identical_statements_are_emitted_once_per_scope():
    scale = Operand("scale", "float32", Mode.SCALAR)
    row = Operand("row", "float32", Mode.IN, (ANY, ZERO))
    x = Operand("x", "float32", Mode.IN, (ANY, UNIT))
    inplace = Operand("t", "float32", Mode.INOUT, (ANY, UNIT))
    build = Builder(table(scale, row, x, inplace), ("i0", "i1"))
    outer_scale = build.load("scale")
    with build.for_axis("i0"):
        outer_row, outer_x = build.load("row"), build.load("x")
        doubled = build.apply("mul", outer_row, outer_scale)
        with build.for_axis("i1"):
            assert build.load("scale") is outer_scale
            assert build.load("row") is outer_row
            assert build.load("x") is not outer_x
            assert build.load("x") is build.load("x")
            assert build.load("t") is not build.load("t")
            assert build.apply("mul", outer_row, outer_scale) is doubled
            inner = build.apply("neg", outer_row)
            assert build.cast(inner, "float32") is inner
            assert build.cast(inner, "int32") is build.cast(inner, "int32")
        assert build.apply("neg", outer_row) is not inner


def test_a_combine_block_is_closed():
    x = Operand("x", "float32", Mode.IN, (UNIT,))
    build = Builder(table(x), ("i0",))
    zero = build.const("float32", 0)

    def combine(running, new):
        return build.apply("add", build.apply("add", running, new), build.const("float32", 0))

    build.reduce("i0", zero, combine, lambda: build.load("x"))
    kernel = Kernel("closed", (Axis("i0", Role.REDUCE),), (x,), build.finish())
    verify(kernel)
    reduce = kernel.body.body[-1]
    assert isinstance(reduce.combine.body[1], nodes.Const)
    assert simple_combine(reduce.combine) is None


def test_simple_combine():
    a, b, c = (Value(number, "int32") for number in range(3))
    block = Block((a, b), (nodes.Apply((c,), "add", (a, b)),), (c,))
    assert simple_combine(block) == "add"
    swapped = replace(block, body=(nodes.Apply((c,), "add", (b, a)),))
    assert simple_combine(swapped) == "add"
    squares = replace(block, body=(nodes.Apply((c,), "add", (b, b)),))
    assert simple_combine(squares) is None
    assert simple_combine(replace(block, results=(a,))) is None


def test_results_come_as_they_were_asked_for():
    build = Builder({})
    word = build.const("uint32", 7)
    pair = build.apply("threefry2x32", word, word, word, word)
    assert [value.dtype for value in pair] == ["uint32", "uint32"]
    assert build.if_(build.const("bool", True), lambda: None, lambda: None) == ()


def test_wrong_use_of_the_builder_is_explained():
    build = Builder({"x": Operand("x", "int32", Mode.IN)})
    with pytest.raises(KeyError, match=r"operand must be one of.*got 'y'"):
        build.load("y")
    with pytest.raises(KeyError, match="fn must be a scalar function; got 'nope'"):
        build.apply("nope", build.load("x"))
    with pytest.raises(TypeError, match=r"\[exp\] must have 1 argument"):
        build.apply("exp", build.load("x"))
    with build.for_axis("i0"), pytest.raises(RuntimeError, match="outside all loops"):
        build.finish()


def test_a_failed_loop_leaves_no_trace():
    build = Builder({})
    with pytest.raises(ZeroDivisionError), build.for_axis("i0"):
        build.const("int32", 1 // 0)
    assert build.finish() == Block()
