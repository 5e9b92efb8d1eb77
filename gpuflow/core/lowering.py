"""The lowering classes: the ways in which an op may reach a kernel.

``Primitive.lower`` is an instance of one of these. The compiler dispatches on the class, never on
the op. Bodies emit KernelIR through a ``Builder``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuflow.base.records import record


@record
class Elementwise:
    """One output element from the operands' elements at the same index.

    Operands have the output's shape, sizes of 1 that repeat, or rank 0.

    Attributes:
        body: the name of a function in kir.scalar, or
            ``(builder, values, in_avals, out_aval, params) -> value or tuple of values``.
        cheap: cheap enough to be computed again in each kernel that wants it.
        image: ``(eqn, map, build) -> atom``, the image of the output under a linear map of integer
            arrays, made from images of operands, or None where it cannot; see ops/linear_maps.py.
    """

    body: str | Callable[..., Any]
    cheap: bool = False
    image: Callable[..., Any] | None = None


@record
class Reduction:
    """Combine over ``params["axes"]``.

    Attributes:
        combine: a commutative, associative function of kir.scalar.
        init: ``dtype -> neutral element``.
    """

    combine: str
    init: Callable[[Any], Any]


@record
class TupleReduction:
    """Combine several values for each element over the one axis of ``params["axes"]``.

    Attributes:
        element: ``(builder, value, index, params) -> values``; the index along the axis is int64.
        init: ``(builder, in_aval, params) -> neutral values``.
        combine: ``(builder, *running, *new) -> values``, associative and commutative.
        result: ``(builder, values, out_aval) -> value``.
    """

    element: Callable[..., Any]
    init: Callable[..., Any]
    combine: Callable[..., Any]
    result: Callable[..., Any]


@record
class Layout:
    """A rearrangement without arithmetic.

    Attributes:
        view: ``(operand_view, out_aval, **params) -> View``, or None where no view exists.
        links: ``(in_aval, out_aval, **params) -> [(operand dim, output dim), ...]`` of dimensions
            that are the same axis, or None: the op needs its operand in memory. Operand
            dimensions that are not named must have size 1.
        sliced: as in Indexed.
    """

    view: Callable[..., Any]
    links: Callable[..., list[tuple[int, int]] | None]
    sliced: Callable[..., Any] | None = None


@record
class Indexed:
    """A map that computes for itself which elements of its operands to load.

    Attributes:
        body: ``(context, in_avals, out_aval, params) -> value or tuple of values``. The context
            offers ``builder``, ``index(dim)``, ``linear_index()``, ``size(number)`` and
            ``load(operand, indices, where=None)``, ``element(operand, dims)``; see
            compiler/emit.py.
        in_memory: how many leading operands it chooses elements of; None: all. The others it reads
            at the output's index along its first dimensions, so that its kernel may compute them.
        cheap: as in Elementwise; for ops without array operands.
        linear: it asks for the linear index over all output dimensions and for nothing else that
            depends on an index, so that its axes may collapse.
        sliced: ``(eqn, bounds, cut, definition, build) -> atom``, a slice of the output made
            directly, or None where it cannot or that would not be less. Bounds are (start, limit,
            stride) of each dimension; ``cut(atom, bounds)`` slices an operand.
        summed: as in Library.
        broadcast: ``(eqn, shape, dims, build) -> atom``, the output broadcast, made directly.
        converted: ``(eqn, dtype, build) -> atom``, the output in another dtype, made directly.
    """

    body: Callable[..., Any]
    in_memory: int | None = None
    cheap: bool = False
    linear: bool = False
    sliced: Callable[..., Any] | None = None
    summed: Callable[..., Any] | None = None
    broadcast: Callable[..., Any] | None = None
    converted: Callable[..., Any] | None = None


@record
class Update:
    """Elements of the first operand combined with others, in its own memory where that is free.

    The operands are the array; places (int64), the row-major elements at which windows start;
    inside (bool), which windows count; and the windows, of shape (*places' shape, *window).

    Attributes:
        combine: ``params -> name``, a function of kir.scalar, or None: elements are replaced.
        window: ``params -> dims``, the array's dimensions along which windows extend.
        repeats: ``params -> bool``: elements may be updated more than once, and are in order.
    """

    combine: Callable[[dict[str, Any]], str | None]
    window: Callable[[dict[str, Any]], tuple[int, ...]]
    repeats: Callable[[dict[str, Any]], bool]


Dims = tuple[int, ...]


@record
class Product:
    """Which dimensions of two operands make a stack of matrix products.

    The result is row-major with dimensions batch, rows, columns. Sums are made in the operands'
    dtype, which is the result's.

    Attributes:
        left: the left operand's dimensions: batch, rows, depth.
        right: the right operand's dimensions: batch, depth, columns.
        reduced: the user allows float32 operands to be rounded to tensorfloat32, where that is
            faster.
    """

    left: tuple[Dims, Dims, Dims]
    right: tuple[Dims, Dims, Dims]
    reduced: bool = False


Roles = tuple[Dims, Dims, Dims, Dims]


@record
class Convolution:
    """Which dimensions of two operands make a stack of convolutions, and how the right one slides.

    Each place of the result's space sums ``left[place * stride + tap * right dilation - low]``
    times ``right[tap]`` over taps and depth; the left operand has zeros in holes and margins.

    Attributes:
        left, right: the operand's dimensions: batch, free, depth, space.
        out: the result's: batch, free in left, free in right, space. It is row-major.
        strides: how far the right operand moves, in each dimension of space.
        padding: (low, high) zeros around the left operand; negative ones cut.
        left_dilation, right_dilation: how far elements are apart.
    """

    left: Roles
    right: Roles
    out: Roles
    strides: Dims
    padding: tuple[tuple[int, int], ...]
    left_dilation: Dims
    right_dilation: Dims


@record
class Library:
    """A call of ``impl`` on whole arrays (GEMM, FFT, sort, ...).

    Attributes:
        call: ``(xp, out_arrays, *arrays, **params) -> None`` writing into given outputs; None:
            call ``impl`` and copy its result. NumPy's warnings are off.
        prepare: ``(in_avals, out_avals, params) -> (xp, out_arrays, *arrays) -> None``, in place of
            ``call``: what follows from the types is done once.
        flops: ``(in_avals, out_avals, params) -> int``.
        product: ``(in_avals, out_avals, params) -> Product``, or None: the call as products of
            matrices, for platforms with a GEMM of their own.
        convolution: ``(in_avals, out_avals, params) -> Convolution``, or None: the same for
            platforms with convolutions of their own.
        transposed: ``(eqn, permutation, build) -> atom``, the output with permuted dimensions made
            directly, or None where it cannot.
        summed: ``(eqn, axes, build) -> atom``, the output summed over axes made directly, or None
            where it cannot.
    """

    call: Callable[..., None] | None = None
    prepare: Callable[..., Callable[..., None]] | None = None
    flops: Callable[..., int] | None = None
    product: Callable[..., Product | None] | None = None
    convolution: Callable[..., Convolution | None] | None = None
    transposed: Callable[..., Any] | None = None
    summed: Callable[..., Any] | None = None


@record
class Inline:
    """An op that is its inner jaxpr; the compiler inlines it.

    Attributes:
        jaxpr: ``params -> ClosedJaxpr``.
    """

    jaxpr: Callable[[dict[str, Any]], Any]


@record
class Barrier:
    """Each output is its operand, where it lies: no step runs, and nothing is copied.

    Whatever reads an output runs after all operands were computed, and no pass looks through.
    """


@record
class HostCall:
    """A call of Python on the host, in a step of its own; ``impl`` makes it."""


@record
class Handwritten:
    """A kernel from kernels/. ``kernel`` names it; ``arguments`` maps avals to its launch."""

    kernel: str
    arguments: Callable[..., Any]


@record
class ScanForm:
    """A loop of known length.

    Attributes:
        body: ``(*consts, *carry, *x) -> (*carry, *y)``.
        num_consts, num_carry: how many of its inputs are which.
        length: the number of iterations.
        reverse: whether it starts at the last element.
    """

    body: Any
    num_consts: int
    num_carry: int
    length: int
    reverse: bool


@record
class WhileForm:
    """A loop as long as ``condition`` holds.

    Attributes:
        condition: ``(*condition consts, *carry) -> (bool scalar,)``.
        body: ``(*body consts, *carry) -> (*carry,)``.
        num_condition_consts, num_body_consts: how many of the operands are which, in this order.
    """

    condition: Any
    body: Any
    num_condition_consts: int
    num_body_consts: int


@record
class Loop:
    """While, for and scan: a step that runs compiled bodies.

    Attributes:
        form: ``params -> ScanForm or WhileForm``.
    """

    form: Callable[[dict[str, Any]], ScanForm | WhileForm]


@record
class Branch:
    """Cond and switch: a step that runs one of several compiled programs.

    Attributes:
        branches: ``params -> programs``; the first operand is the number of the one to run.
    """

    branches: Callable[[dict[str, Any]], tuple[Any, ...]]
