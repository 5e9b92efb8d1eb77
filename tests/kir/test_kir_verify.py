"""Every rule of the verifier has a kernel that breaks it."""

import re
from dataclasses import replace

import pytest

from gpuflow.kir.builder import Builder
from gpuflow.kir.nodes import (
    Apply,
    Axis,
    Block,
    Cast,
    Const,
    For,
    If,
    Kernel,
    Load,
    Mode,
    Operand,
    Reduce,
    Role,
    Select,
    Store,
    Stride,
    Value,
    While,
)
from gpuflow.kir.verify import KernelError, verify, verify_size_free

ZERO, UNIT, ANY = Stride.ZERO, Stride.UNIT, Stride.ANY
AXES = (Axis("i0", Role.PARALLEL), Axis("i1", Role.ROW))
OPERANDS = (
    Operand("x", "float32", Mode.IN, (ANY, UNIT)),
    Operand("h", "float16", Mode.IN, (ANY, UNIT)),
    Operand("t", "float32", Mode.INOUT, (ANY, UNIT)),
    Operand("at", "int64", Mode.INDEX, (ANY, UNIT)),
    Operand("n", "int64", Mode.SCALAR),
    Operand("o", "float32", Mode.OUT, (ANY, UNIT)),
)


def f32(number):
    return Value(number, "float32")


def i64(number):
    return Value(number, "int64")


def boolean(number):
    return Value(number, "bool")


def kernel_of(*body, axes=AXES, operands=OPERANDS, **more):
    return Kernel("broken", axes, operands, Block(body=tuple(body)), **more)


def with_operand(operand, *statements):
    return kernel_of(*statements, operands=(*OPERANDS, operand))


LOAD_X, LOAD_N = Load(f32(0), "x"), Load(i64(1), "n")
TRUE, ONE = Const(boolean(2), True), Const(i64(3), 1)
ADD = Block((f32(90), f32(91)), (Apply((f32(92),), "add", (f32(90), f32(91))),), (f32(92),))
SUM = Reduce((f32(10),), ("i1",), (f32(0),), ADD, Block((), (Load(f32(11), "x"),), (f32(11),)))
KEEP = Block((f32(20),), (), (f32(20),))
LOOP = While(
    (f32(30),),
    (f32(0),),
    Block((f32(31),), (Const(boolean(32), True),), (boolean(32),)),
    Block((f32(33),), (), (f32(33),)),
)
COUNTED = For(
    None, Block((i64(40), f32(41)), (), (f32(41),)), count=i64(3), outs=(f32(42),), init=(f32(0),)
)
BRANCH = If((f32(50),), boolean(2), Block((), (), (f32(0),)), Block((), (), (f32(0),)))
GOOD = (
    LOAD_X, LOAD_N, TRUE, ONE, SUM, LOOP, COUNTED, BRANCH,
    Load(f32(60), "x", i64(3), boolean(2)),
    Load(f32(61), "h"), Load(i64(62), "at"),
    Select(f32(63), boolean(2), f32(60), f32(61)), Cast(i64(64), f32(60)),
    For("i0", Block(body=(For("i1", Block(body=(Store("o", f32(60)), Store("t", f32(0)))),),))),
)  # fmt: skip


def in_loop(axis, *body):
    return For(axis, Block(body=tuple(body)))


def test_a_good_kernel_passes():
    verify(kernel_of(*GOOD))


OTHER_AXES = (Axis("i0", Role.PARALLEL), Axis("i1", Role.PARALLEL), Axis("i2", Role.VECTOR))
BROKEN = {
    # the head
    "axis names must differ": kernel_of(axes=(AXES[0], AXES[0])),
    "operand names must differ": kernel_of(operands=OPERANDS[:1] * 2),
    "index_bits must be 32 or 64": kernel_of(index_bits=16),
    "a segmented kernel must have exactly one axis": kernel_of(segmented=True),
    "PARALLEL axes must come before all others": kernel_of(axes=AXES[::-1]),
    "an exact extent must be positive": kernel_of(axes=(AXES[0], replace(AXES[1], exact=0))),
    "an operand's dtype must be a storage dtype": with_operand(
        Operand("z", "int4", Mode.IN, (ANY, UNIT))
    ),
    "a SCALAR operand must be real": with_operand(Operand("z", "complex64", Mode.SCALAR)),
    "component must be one of (None,) for float32": kernel_of(Load(f32(0), "x", component=0)),
    "component must be one of (0, 1) for complex64": with_operand(
        Operand("z", "complex64", Mode.IN, (ANY, UNIT)), Load(f32(0), "z")
    ),
    "an INDEX operand must be int64": with_operand(Operand("z", "int32", Mode.INDEX, (ANY, UNIT))),
    "a SCALAR operand must have no strides": with_operand(
        Operand("z", "int32", Mode.SCALAR, (ANY, ZERO))
    ),
    "an operand must have one stride class for each of the 2 axes": with_operand(
        Operand("z", "int32", Mode.IN, (ANY,))
    ),
    "UNIT must be on the innermost axis only": with_operand(
        Operand("z", "int32", Mode.IN, (UNIT, UNIT))
    ),
    "the body must have no params and no results": Kernel(
        "broken", AXES, OPERANDS, Block((f32(0),))
    ),
    # SSA
    "%0 must be defined once": kernel_of(LOAD_X, LOAD_X),
    "%7 must have a compute dtype": kernel_of(Const(Value(7, "float16"), 1.0)),
    "%5 must be defined before its use": kernel_of(Apply((f32(6),), "exp", (f32(5),))),
    "%11 must be defined before its use": kernel_of(LOAD_X, SUM, Store("o", f32(11))),
    "%0 must be used with the dtype of its definition": kernel_of(
        LOAD_X, Apply((i64(6),), "neg", (i64(0),))
    ),
    # flat statements
    "a constant of int8 must be a Python int in its range": kernel_of(Const(Value(0, "int8"), 128)),
    "a constant of float32 must be a Python float": kernel_of(Const(f32(0), 1)),
    "a constant of bool must be a Python bool": kernel_of(Const(boolean(0), 1)),
    "an OUT operand must not be loaded": kernel_of(Load(f32(0), "o")),
    "a Load of an INDEX or SCALAR operand must have no offset and no where": kernel_of(
        LOAD_N, Load(i64(9), "at", i64(1))
    ),
    "a Load must have the compute dtype of its operand (float16)": kernel_of(
        Load(Value(0, "float64"), "h")
    ),
    "a Store must have the compute dtype of its operand (float32)": kernel_of(
        LOAD_N, Store("o", i64(1))
    ),
    "a stored operand must be OUT, INOUT or WORK": kernel_of(LOAD_X, Store("x", f32(0))),
    "an accessed operand must exist": kernel_of(Load(f32(0), "y")),
    "an offset must be int64": kernel_of(LOAD_X, Load(f32(1), "x", offset=f32(0))),
    "where must be bool": kernel_of(LOAD_X, Load(f32(1), "x", where=f32(0))),
    "an INOUT operand must be accessed at equal indices": kernel_of(
        LOAD_N, Load(f32(0), "t"), Store("t", f32(0), i64(1))
    ),
    "fn must be a scalar function": kernel_of(LOAD_X, Apply((f32(1),), "nope", (f32(0),))),
    "[exp] must have 1 arguments": kernel_of(LOAD_N, Apply((i64(2),), "exp", (i64(1),))),
    "the results of exp must be ('float32',)": kernel_of(
        LOAD_X, Apply((Value(1, "float64"),), "exp", (f32(0),))
    ),
    "a Select must have one dtype on both sides": kernel_of(
        LOAD_X, LOAD_N, TRUE, Select(f32(9), boolean(2), f32(0), i64(1))
    ),
    "a predicate must be bool": kernel_of(LOAD_X, Select(f32(9), f32(0), f32(0), f32(0))),
    # reductions
    "a Reduce must have axes": kernel_of(LOAD_X, replace(SUM, axes=())),
    "a Reduce must have components": kernel_of(
        replace(SUM, outs=(), init=(), combine=Block(), body=Block())
    ),
    "a Reduce must not be over PARALLEL": kernel_of(LOAD_X, replace(SUM, axes=("i0",))),
    "a Reduce must have one dtype for each component": kernel_of(
        LOAD_X, LOAD_N, replace(SUM, init=(i64(1),))
    ),
    "a combine block must take n running and n new values": kernel_of(
        LOAD_X, replace(SUM, combine=KEEP)
    ),
    "a combine block must be flat": kernel_of(
        LOAD_X, TRUE, replace(SUM, combine=replace(ADD, body=(*ADD.body, BRANCH)))
    ),
    "a combine block must not load or store": kernel_of(
        LOAD_X, replace(SUM, combine=replace(ADD, body=(*ADD.body, Load(f32(93), "x"))))
    ),
    "%0 must be defined before its use, in this block": kernel_of(
        LOAD_X, replace(SUM, combine=replace(ADD, results=(f32(0),)))
    ),
    "a reduction must not loop over an axis": kernel_of(
        LOAD_X, replace(SUM, body=Block((), (in_loop("i1"),), (f32(0),)))
    ),
    # loops over axes
    "axis i9 must be an axis of the kernel": kernel_of(in_loop("i9")),
    "axis i1 must not be open already": kernel_of(in_loop("i1", in_loop("i1"))),
    "axis i1 must nest in the order of the axes": kernel_of(
        in_loop("i2", in_loop("i1")), axes=OTHER_AXES, operands=()
    ),
    "a PARALLEL loop must be directly in the body": kernel_of(
        TRUE, If((), boolean(2), Block(body=(in_loop("i0"),)), Block())
    ),
    "a For over an axis must have no count, carries or results": kernel_of(
        LOAD_X, For("i0", Block(), init=(f32(0),))
    ),
    # loops with carries, and branches
    "a For must have an axis or an int64 count": kernel_of(LOAD_X, replace(COUNTED, count=f32(0))),
    "the params of a counted For must be the int64 counter": kernel_of(
        LOAD_X, ONE, replace(COUNTED, body=KEEP)
    ),
    "the carries of a loop must keep their dtypes": kernel_of(
        LOAD_X, ONE, replace(COUNTED, outs=(i64(42),))
    ),
    "the cond of a While must give one bool": kernel_of(LOAD_X, replace(LOOP, cond=KEEP)),
    "the params of a While must be its carries": kernel_of(
        LOAD_X, replace(LOOP, body=Block((), (), (f32(0),)))
    ),
    "the blocks of an If must have no params": kernel_of(LOAD_X, TRUE, replace(BRANCH, then=KEEP)),
    "both blocks of an If must have the dtypes of its results": kernel_of(
        LOAD_X, TRUE, replace(BRANCH, orelse=Block())
    ),
    "a statement must be a node of kir.nodes": kernel_of(KEEP),
}


@pytest.mark.parametrize("rule", sorted(BROKEN))
def test_a_broken_rule_is_named(rule):
    with pytest.raises(KernelError, match=rf"^\[broken\] .*{re.escape(rule)}"):
        verify(BROKEN[rule])


def test_the_message_shows_the_statement():
    kernel = kernel_of(LOAD_X, Store("x", f32(0)))
    with pytest.raises(KernelError, match=r"got Store\(operand=x, value=%0:float32"):
        verify(kernel)


def test_a_reduction_may_stand_in_a_vector_loop():
    axes = (Axis("i0", Role.PARALLEL), Axis("i1", Role.REDUCE), Axis("i2", Role.VECTOR))
    operands = (Operand("x", "float32", Mode.IN, (ANY, ANY, UNIT)),)
    body = in_loop("i0", in_loop("i2", LOAD_X, SUM))
    verify(kernel_of(body, axes=axes, operands=operands))


def constant_kernel(dtype, value):
    build = Builder({})
    build.const(dtype, value)
    return Kernel("sized", (), (), build.finish())


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("bool", True),
        ("int64", 0),
        ("int32", -1),
        ("int64", 2),
        ("float32", 0.5),
        ("float64", float("inf")),
        ("float32", float("nan")),
        ("uint32", 0x3F800000),
        ("int32", -(2**31)),
        ("float32", 0.044715),
        ("float64", 1.4142135623730951),
        ("float32", 1e-20),
    ],
)
def test_constants_without_sizes_pass(dtype, value):
    verify_size_free(constant_kernel(dtype, value))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int64", 127), ("int32", 3), ("float32", 128.0), ("float32", 1 / 127), ("float64", 1e-4)],
)
def test_sizes_in_constants_are_refused(dtype, value):
    with pytest.raises(KernelError, match=r"\[sized\] a constant must not hold a size.*SCALAR"):
        verify_size_free(constant_kernel(dtype, value))


def test_constants_in_nested_blocks_are_seen():
    inner = Block(body=(Const(i64(5), 17),))
    with pytest.raises(KernelError, match="got 17"):
        verify_size_free(kernel_of(TRUE, If((), boolean(2), Block(), inner)))
