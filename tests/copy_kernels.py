"""A kernel that copies slices into a local array and from there to an output."""

from __future__ import annotations

from gpuflow.kir.nodes import (
    Apply,
    Axis,
    Block,
    Const,
    Copy,
    For,
    Kernel,
    Load,
    Local,
    Mode,
    Operand,
    Role,
    Statement,
    Store,
    Stride,
    Strip,
    Value,
)
from gpuflow.kir.scalar import compute_dtype

LANES = 32  # of a piece
ROWS = 40  # of the arrays
_STRIDES = (Stride.ANY,)


def slices(dtype: str, formula: str = "mul", mode: Mode = Mode.IN) -> Kernel:
    """``o[i, r * so] = x[i, place(r)]`` for ``n`` rows, by way of two arrays.

    Args:
        dtype: of the elements.
        formula: a function of integers: ``place(r) = formula(r, sx)``.
        mode: of x, for a kernel that is wrong.
    """
    scalars = [Operand(name, "int64", Mode.SCALAR, (Stride.ZERO,)) for name in ("n", "sx", "so")]
    operands = (
        Operand("x", dtype, mode, _STRIDES),
        Operand("o", dtype, Mode.OUT, _STRIDES),
        *scalars,
    )
    arrays = tuple(Local(name, dtype, (("i", LANES),), ROWS) for name in "ab")
    count, counter, pitch, at = (Value(k, "int64") for k in range(4))
    element = Value(4, compute_dtype(dtype))
    moved: tuple[Statement, ...] = (Load(element, "a", at), Store("b", element, at))
    row = (Const(pitch, LANES), Apply((at,), "mul", (counter, pitch)))
    turn = Block((counter,), (*row, For("i", Block(body=moved))))
    body = (
        Load(count, "n"),
        Copy("a", "x", count, _places(5, formula, "sx")),
        For(None, turn, count),
        Copy("o", "b", count, _places(8, "mul", "so")),
    )
    strip = Strip("i", LANES, Block(body=body))
    axes = (Axis("i", Role.PARALLEL),)
    return Kernel("slices", axes, operands, Block(body=(strip,)), locals=arrays)


def _places(first: int, formula: str, scalar: str) -> Block:
    row, step, place = (Value(first + k, "int64") for k in range(3))
    return Block((row,), (Load(step, scalar), Apply((place,), formula, (row, step))), (place,))
