"""KernelIR: one kernel as frozen data.

A kernel is a tree of blocks. A block is a flat list of statements in SSA form: every statement
defines fresh values, and a value is used only after its definition, in its own block or in a
block nested inside it. Loops and reductions own nested blocks.

Storage and compute types are separate. An operand has a storage dtype; a value has a compute dtype:

    storage      compute     stored as
    bool         bool        uint8 (0 or 1)
    float16      float32     16 bits
    bfloat16     float32     16 bits
    complex64    float32     two components, the real one first
    complex128   float64     the same
    any other    the same    itself

``Load`` widens and ``Store`` rounds. Values are real: a ``Load`` or ``Store`` of a complex element
accesses one component.

Kernels do not know sizes. An axis has a run-time extent unless ``exact`` is set, and an operand has
a run-time stride on each axis unless its stride class is a number. See docs/kernel_ir.md.

Code that visits statements must handle a new node: walk.py, rewrite.py, clone.py, rules.py,
verify.py, machine.py, text.py and targets/kernel_walk.py.

Tests: tests/kir/test_kir_builder_text.py, tests/kir/test_kir_verify.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import field
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from gpuflow.base.records import record

Memoized = TypeVar("Memoized")


class Role(Enum):
    """Dependences between the points of an axis; ``schedule`` maps roles to a target."""

    PARALLEL = "parallel"  # independent points, mapped to threads or the grid
    ROW = "row"  # points of one row: one worker, block or warp visits them all
    REDUCE = "reduce"  # points combined by a Reduce
    SERIAL = "serial"  # visited in order
    VECTOR = "vector"  # independent points kept inside one worker, innermost


class Stride(Enum):
    """Stride class of an operand along one axis, in elements."""

    ZERO = "0"  # the operand does not change along the axis
    UNIT = "1"  # contiguous; only ever on the innermost axis, and the one around an exact one
    ANY = "s"  # a run-time argument
    # Written into the text, by schedules.
    BACK = "-1"
    TWO = "2"
    THREE = "3"
    FOUR = "4"
    FIVE = "5"
    SIX = "6"
    SEVEN = "7"
    EIGHT = "8"

    @property
    def static_value(self) -> int | None:
        """The stride in elements; None for ANY, whose stride is an argument slot."""
        return None if self is Stride.ANY else int(self.value)


class Mode(Enum):
    """Access mode of a kernel's operand."""

    IN = "in"  # read only, never aliases an output
    OUT = "out"  # written only
    INOUT = "inout"  # read and written in place, at equal indices only
    WORK = "work"  # memory that each point has for itself: read and written anywhere in it
    INDEX = "index"  # no memory: a Load gives base + sum(axis index * stride) as int64
    SCALAR = "scalar"  # one value passed by value


@record
class Axis:
    """One collapsed loop axis.

    Attributes:
        name: unique in the kernel.
        role: the dependences between its points.
        exact: the extent, positive, if it is written into the text; None if it is an argument slot.
        is_short: whether the extent is a few vectors at most, so that a loop over the axis should
            take one at a time. A hint: kernels are correct for any extent.
    """

    name: str
    role: Role
    exact: int | None = None
    is_short: bool = False


@record
class Operand:
    """One array, index map or scalar that a kernel is given.

    Attributes:
        name: unique among the operands and local arrays of the kernel.
        dtype: a storage dtype; int64 for INDEX, a real one for SCALAR.
        mode: how the kernel accesses it.
        strides: one class per kernel axis, in the order of ``Kernel.axes``; of a SCALAR operand all
            are ZERO, or there are none.
    """

    name: str
    dtype: str
    mode: Mode
    strides: tuple[Stride, ...] = ()


@record
class Local:
    """An array that is private to one worker.

    It has an element for each point of a strip of its axes that ``Strip`` statements cut, or for
    each point of an exact axis. An element is undefined until it is stored, and again in each new
    strip.

    Attributes:
        name: unique among the operands and local arrays of the kernel.
        dtype: a storage dtype, of no complex numbers.
        axes: its axes from outermost to innermost, each with its capacity: the size of a strip, or
            all points.
        rows: a factor of its capacity along its one axis; if it is above 1, the offset of an access
            is relative to the first row.
    """

    name: str
    dtype: str
    axes: tuple[tuple[str, int], ...]
    rows: int = 1

    def cut_axes(self, kernel: Kernel) -> tuple[str, ...]:
        """The axes of which it has a strip; of the others it has all points."""
        exact = {axis.name: axis.exact for axis in kernel.axes}
        return tuple([axis for axis, size in self.axes if exact[axis] != size])


@record
class Value:
    """The result of a statement, or a param of a block.

    Attributes:
        number: the value number, unique in the kernel; also the hash, so that sets of values of one
            kernel are fast.
        dtype: a compute dtype.
    """

    number: int
    dtype: str

    def __hash__(self) -> int:
        return self.number


@record
class Block:
    """Statements in order.

    Attributes:
        params: values that the owning statement defines before each run of the block.
        body: the statements.
        results: values that the owner gets; visible at the end of the block.
    """

    params: tuple[Value, ...] = ()
    body: tuple[Statement, ...] = ()
    results: tuple[Value, ...] = ()


@record
class Const:
    """A constant written into the text. Sizes and user literals are SCALAR operands instead."""

    out: Value
    value: bool | int | float


@record
class Load:
    """Read ``operand`` at the current point of the axes, plus ``offset`` elements (int64).

    ``operand`` may be a Local, without ``where`` and ``component``: at the current point; of one
    with rows, ``offset`` elements from there; of one without, outside of loops over its one axis,
    ``offset`` elements from the strip's first point.

    If ``where`` (bool) is false nothing is read and the result is zero. ``component`` is 0 for the
    real and 1 for the imaginary part of a complex number, and None for all other elements.
    """

    out: Value
    operand: str
    offset: Value | None = None
    where: Value | None = None
    component: int | None = None


@record
class Store:
    """Write ``value``; all else as in Load. An OUT element or component is stored once."""

    operand: str
    value: Value
    offset: Value | None = None
    where: Value | None = None
    component: int | None = None


@record
class Apply:
    """A function of kir.scalar on values of one lane."""

    outs: tuple[Value, ...]
    fn: str
    args: tuple[Value, ...]


@record
class Select:
    """``on_true if predicate else on_false``; both sides are evaluated."""

    out: Value
    predicate: Value
    on_true: Value
    on_false: Value


@record
class Cast:
    """Convert to ``out.dtype``. Float to int truncates and saturates, nan gives 0; int wraps."""

    out: Value
    arg: Value


@record
class Reduce:
    """Combine ``body.results`` over all points of ``axes``.

    ``combine`` has 2n params (n running values, then n new ones) and n results; it is associative
    and commutative, and ``init`` are its neutral values. The order of combination is free.
    ``padded`` as in For.
    """

    outs: tuple[Value, ...]
    axes: tuple[str, ...]
    init: tuple[Value, ...]
    combine: Block
    body: Block
    padded: bool = False


@record
class For:
    """Run ``body`` for every point of ``axis``, or ``count`` times if ``axis`` is None.

    With ``axis`` there are no carries and no results: the body stores. With ``count`` (an int64
    value) ``body.params`` are the int64 counter and then the carries, its results the next carries.

    A ``padded`` loop over a strip of an axis may run to the full size of the strip even if the last
    one is shorter: it loads and stores local arrays only.

    A loop with ``count`` that ``is_long`` belongs to a program and may have any number of
    iterations: if kernels can be interrupted, it polls regularly. A While always does.
    """

    axis: str | None
    body: Block
    count: Value | None = None
    outs: tuple[Value, ...] = ()
    init: tuple[Value, ...] = ()
    padded: bool = False
    is_long: bool = False


@record
class Strip:
    """Run ``body`` for each strip of ``axis`` in order, each of at most ``size`` points.

    ``size`` is a power of two.

    Inside it, loops over the axis have the points of the strip. A Strip in another of the same axis
    cuts that one's strips. Loops over axes that are cut may nest in any order, and there may be
    several of them: all points of a strip belong to one worker.
    """

    axis: str
    size: int
    body: Block


@record
class Copy:
    """Copy elements between an operand and a local array, for all points of the array's axes.

    One of ``source`` and ``target`` is the array, with all axes cut and none open. The other one is
    in memory: IN as a source, OUT as a target, of the array's dtype or with such a ``component``.
    Of an array with rows the first ``count`` are copied. ``row_offsets`` then has the index of a
    row as its param, and as its result the offset (as for Load) of the operand for this row.
    """

    target: str
    source: str
    count: Value | None = None
    row_offsets: Block = Block()
    component: int | None = None


@record
class While:
    """Run ``body`` while ``cond`` (one bool) holds; carries are ``init``, then its results."""

    outs: tuple[Value, ...]
    init: tuple[Value, ...]
    cond: Block
    body: Block


@record
class If:
    """A real branch: only the selected block runs; both have results of the same dtypes."""

    outs: tuple[Value, ...]
    predicate: Value
    then: Block
    orelse: Block


Statement = Const | Load | Store | Apply | Select | Cast | Reduce | For | Strip | Copy | While | If


@record
class Kernel:
    """A complete kernel; ``kir.verify.verify`` checks its rules.

    Attributes:
        name: the name of the function, which is part of the text and so of the cache key.
        axes: its axes, ordered from outermost to innermost; PARALLEL ones come first, except in
            column kernels.
        operands: its operands, in the order of their argument slots.
        body: runs once, without params and results. Its PARALLEL loops are ``For`` statements,
            nested in axis order. The first PARALLEL axis is the one whose range a launch splits
            into chunks.
        segmented: whether it runs over a table of argument blocks instead of one; it then has one
            axis.
        index_bits: width of index arithmetic, 32 or 64.
        kind: the value of a ``fusion.space.KernelKind``: "map", "row", "column" or "full".
        locals: its local arrays.
        derived: cache of data that follows from the kernel alone, see ``memoized``; not compared.
    """

    name: str
    axes: tuple[Axis, ...]
    operands: tuple[Operand, ...]
    body: Block
    segmented: bool = False
    index_bits: int = 64
    kind: str = field(default="map")
    locals: tuple[Local, ...] = ()
    derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)


def memoized(kernel: Kernel, compute: Callable[..., Memoized], *arguments: Hashable) -> Memoized:
    """``compute(kernel, *arguments)``, computed once and cached with the kernel.

    Threads may compute it at the same time; all of them get the first stored value. The value must
    not be changed.

    Args:
        kernel: the kernel that determines the value.
        compute: a pure function of a module, the same object each time; with the arguments it is
            the key.
        arguments: further hashable inputs that determine the value.
    """
    key = (compute, *arguments) if arguments else compute
    try:
        return kernel.derived[key]
    except KeyError:
        return kernel.derived.setdefault(key, compute(kernel, *arguments))


class Argument(NamedTuple):
    """One 8-byte slot of a kernel's argument block.

    kind is "pointer" (operand), "base" (INDEX operand), "scalar" (operand), "extent" (axis) or
    "stride" (operand and axis). A pointer holds the address of the operand's first element.
    """

    kind: str
    operand: str = ""
    axis: str = ""


def arguments(kernel: Kernel) -> tuple[Argument, ...]:
    """The slots of the argument block of ``kernel``: the contract of printers and binding."""
    return memoized(kernel, _arguments)


def _arguments(kernel: Kernel) -> tuple[Argument, ...]:
    arguments_in_order = []
    kind_of_mode = {Mode.INDEX: "base", Mode.SCALAR: "scalar"}
    for operand in kernel.operands:
        arguments_in_order.append(Argument(kind_of_mode.get(operand.mode, "pointer"), operand.name))
    for axis in kernel.axes:
        if axis.exact is None:
            arguments_in_order.append(Argument("extent", axis=axis.name))
    for operand in kernel.operands:
        for axis, stride in zip(kernel.axes, operand.strides, strict=False):
            if stride is Stride.ANY:
                arguments_in_order.append(Argument("stride", operand.name, axis.name))
    return tuple(arguments_in_order)
