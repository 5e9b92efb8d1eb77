"""Which kernels may read what they have overwritten, and which read what another worker has."""

import pytest

from gpuflow.kir.in_place import overwrite_hazards
from gpuflow.kir.nodes import (
    Apply,
    Axis,
    Block,
    Const,
    For,
    Kernel,
    Load,
    Mode,
    Operand,
    Reduce,
    Role,
    Store,
    Stride,
    Value,
    While,
)
from gpuflow.kir.verify import KernelError, verify

AXES = (Axis("i0", Role.PARALLEL), Axis("i1", Role.ROW))
FULL = Operand("u", "float32", Mode.INOUT, (Stride.ANY, Stride.UNIT))
OF_ROWS = Operand("v", "float32", Mode.INOUT, (Stride.ANY, Stride.ZERO))
OUT = Operand("o", "float32", Mode.OUT, (Stride.ANY, Stride.UNIT))


def f32(number):
    return Value(number, "float32")


def loop(axis, *body):
    return For(axis, Block(body=tuple(body)))


def total(number, start, operand, *after):
    """The sum of an operand over a row."""
    a, b, c, x = (f32(number + k) for k in range(1, 5))
    combine = Block((a, b), (Apply((c,), "add", (a, b)),), (c,))
    body = Block(body=(Load(x, operand), *after), results=(x,))
    return Reduce((f32(number),), ("i1",), (start,), combine, body)


def kernel(*body):
    start = Const(f32(0), 0.0)
    return Kernel("rows", AXES, (FULL, OF_ROWS, OUT), Block(body=(start, *body)), kind="row")


ZERO = f32(0)
SAFE = {
    "a pass reads, the last one stores": kernel(
        loop("i0", total(10, ZERO, "u"), loop("i1", Load(f32(1), "u"), Store("u", f32(10))))
    ),
    "stored in the turn that reads it": kernel(
        loop("i0", total(10, ZERO, "u", Store("u", ZERO)), Store("v", f32(10)))
    ),
    "a value for each row is read in a pass and stored after it": kernel(
        loop("i0", total(10, ZERO, "v"), Store("v", f32(10)))
    ),
    "only stored": kernel(loop("i0", loop("i1", Store("u", ZERO)), Store("v", ZERO))),
    "only read": kernel(loop("i0", loop("i1", Load(f32(1), "u"), Store("o", f32(1))))),
}
AFTER = "an operand must not be loaded after it is stored in place"
EARLY = {
    "the next pass reads what one has stored": (
        AFTER,
        kernel(loop("i0", total(10, ZERO, "u", Store("u", ZERO)), total(20, ZERO, "u"))),
    ),
    "a row reads its value after storing it": (
        AFTER,
        kernel(loop("i0", Store("v", ZERO), loop("i1", Load(f32(1), "v")))),
    ),
    "the same turn reads what it has stored": (
        AFTER,
        kernel(loop("i0", loop("i1", Store("u", ZERO), Load(f32(1), "u")))),
    ),
    "the next turn reads what this one has stored": (
        "every loop around a store in place must move the operand",
        kernel(loop("i0", loop("i1", Load(f32(1), "v"), Store("v", f32(1))))),
    ),
    "a loop that runs again reads what it has stored": (
        "every loop around a store in place must move the operand",
        kernel(
            loop(
                "i0",
                While(
                    (f32(30),),
                    (ZERO,),
                    Block((f32(31),), (Const(Value(32, "bool"), False),), (Value(32, "bool"),)),
                    Block((f32(33),), (Load(f32(34), "v"), Store("v", f32(34))), (f32(33),)),
                ),
            )
        ),
    ),
    "another worker has stored it": (
        "all accesses in place must be in the loops that move the operand",
        kernel(loop("i0", total(10, ZERO, "u")), loop("i0", loop("i1", Store("u", ZERO)))),
    ),
    "the first element is read by all, and stored by one": (
        "all accesses in place must be in the loops that move the operand",
        kernel(loop("i0", Load(f32(1), "u"), loop("i1", Store("u", f32(1))))),
    ),
}


@pytest.mark.parametrize("name", SAFE)
def test_safe(name):
    verify(SAFE[name])
    assert overwrite_hazards(SAFE[name]) == []


@pytest.mark.parametrize("name", EARLY)
def test_early(name):
    rule, broken = EARLY[name]
    (early,) = overwrite_hazards(broken)
    assert early.rule == rule and early.operand in "uv"
    if rule == AFTER:
        verify(broken)  # what a worker has stored itself, it may keep there
        return
    with pytest.raises(KernelError, match=rule):
        verify(broken)
