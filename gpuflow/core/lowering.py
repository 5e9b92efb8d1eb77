"""The lowering classes: the ways in which an op may reach a kernel.

``Primitive.lower`` is an instance of one of these. The compiler dispatches on the class, never on
the op. Bodies emit KernelIR through a ``Builder``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base.records import record
from gpuflow.kir.nodes import Kernel


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
        pair: the body where an operand or the output is complex, in the second form; complex values
            are ``kir.builder.Pair``. None: kernels hold the op for real numbers only.
        holds: ``(*in_avals, out_aval) -> bool``, whether kernels hold the op for these; None: they
            do for all dtypes that they have.
        continuous: of a body in the second form: floats that it gives differ little where those
            that it is given do, and it takes floats that are no numbers of their dtype.
    """

    body: str | Callable[..., Any]
    cheap: bool = False
    image: Callable[..., Any] | None = None
    pair: Callable[..., Any] | None = None
    holds: Callable[..., bool] | None = None
    continuous: bool = False


@record
class Reduction:
    """Combine over ``params["axes"]``.

    Attributes:
        combine: a commutative, associative function of kir.scalar.
        init: ``dtype -> neutral element``.
        by_parts: complex numbers are combined by combining their parts.
    """

    combine: str
    init: Callable[[Any], Any]
    by_parts: bool = False


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
        steps: ``(in_aval, out_aval, **params) -> steps``, of an op that takes every so many
            elements of each dimension from some place on; negative ones run backwards. None: its
            views follow the links, or are of what lies row-major, and do so again.
        sliced: as in Indexed.
        apart: as in Indexed, where links say less.
    """

    view: Callable[..., Any]
    links: Callable[..., list[tuple[int, int]] | None]
    steps: Callable[..., Sequence[int]] | None = None
    sliced: Callable[..., Any] | None = None
    apart: Callable[..., Any] | None = None


@record
class Indexed:
    """A map that computes for itself which elements of its operands to load.

    Attributes:
        body: ``(context, in_avals, out_aval, params) -> value or tuple of values``. The context
            offers ``builder``, ``index(dim)``, ``linear_index()``, ``number(k)`` and
            ``border(dim, k)``, ``load(operand, indices, where=None)``, ``element(operand, dims)``;
            see compiler/lowering/emit.py. A kernel serves all sizes, so a body may branch on ranks,
            dtypes, params that are no ``size_params``, and on which sizes are 0, 1 or equal: on
            nothing else of its avals.
        numbers: ``(in_avals, params) -> numbers``, ints that follow from sizes; a kernel gets those
            that the body asks for when it runs. None: there are none.
        in_memory: how many leading operands it chooses elements of; None: all. The others it reads
            at the output's index along its first dimensions, so that its kernel may compute them.
        cheap: as in Elementwise; for ops without array operands.
        moves: it only chooses elements and selects between them, so that kernels hold it for
            complex numbers too.
        linear: it asks for the linear index over all output dimensions and for nothing else that
            depends on an index, so that its axes may collapse.
        sliced: ``(eqn, bounds, cut, definition, build) -> atom``, a slice of the output made
            directly, or None where it cannot or that would not be less. Bounds are (start, limit,
            stride) of each dimension; ``cut(atom, bounds)`` slices an operand.
        summed: as in Library.
        broadcast: ``(eqn, shape, dims, build) -> atom``, the output broadcast, made directly.
        converted: ``(eqn, dtype, build) -> atom``, the output in another dtype, made directly.
        apart: ``(in_avals, out_aval, params) -> [(operand dim, output dim), ...]`` for each
            operand: dimensions of equal sizes along which the op does the same at each index, and
            asks for nothing else, so that devices may do it apart. None: nothing is known.
            Dimensions "of the output" behind its last one are summed over: outputs for parts of
            them add up. The same lists for outputs behind the first one follow.
    """

    body: Callable[..., Any]
    numbers: Callable[..., Sequence[int]] | None = None
    in_memory: int | None = None
    cheap: bool = False
    moves: bool = False
    linear: bool = False
    sliced: Callable[..., Any] | None = None
    summed: Callable[..., Any] | None = None
    broadcast: Callable[..., Any] | None = None
    converted: Callable[..., Any] | None = None
    apart: Callable[..., Any] | None = None


@record
class Update:
    """Elements of the first operand combined with others, in its own memory where that is free.

    The operands are the array; places (int64), the row-major elements at which windows start;
    inside (bool), which windows count; and the windows, of shape (*places' shape, *window).

    Attributes:
        combine: ``params -> name``, a function of kir.scalar, or None: elements are replaced.
        window: ``params -> dims``, the array's dimensions along which windows extend.
        repeats: ``params -> bool``: elements may be updated more than once, and are in order.
        on_gpu: as ``Primitive.simplify``, for platforms of GPUs and before it.
        with_atomics: the same before that, where users allow sums to differ from run to run.
    """

    combine: Callable[[dict[str, Any]], str | None]
    window: Callable[[dict[str, Any]], tuple[int, ...]]
    repeats: Callable[[dict[str, Any]], bool]
    on_gpu: Callable[..., Any] | None = None
    with_atomics: Callable[..., Any] | None = None


Dims = tuple[int, ...]


@record
class Product:
    """Which dimensions of two operands make a stack of matrix products.

    The result is row-major with dimensions batch, rows, columns. Sums are made in the operands'
    dtype, which is the result's.

    Attributes:
        left: the left operand's dimensions: batch, rows, depth.
        right: the right operand's dimensions: batch, depth, columns.
        reduced: float32 and complex64 operands may be rounded to TF32, where that is faster.
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
        reduced: as for ``Product``.
    """

    left: Roles
    right: Roles
    out: Roles
    strides: Dims
    padding: tuple[tuple[int, int], ...]
    left_dilation: Dims
    right_dilation: Dims
    reduced: bool = False


@record
class Triangular:
    """Systems with triangular matrices: op(A) X = B, or X op(A) = B; operands are A and B.

    Attributes:
        left_side: whether op(A) stands on the left of X.
        lower: whether A is lower triangular.
        transpose, conjugate: what op does; it conjugates only where it transposes.
        unit_diagonal: the diagonal is taken to be ones.
    """

    left_side: bool
    lower: bool
    transpose: bool
    conjugate: bool
    unit_diagonal: bool


@record
class Launch:
    """One launch of a kernel that was written by hand.

    Attributes:
        kernel: what to run.
        words: its argument block; for an address the bytes from the start of its array.
        arrays: for each operand of the kernel the number of its array, or None: it has no memory.
            Arrays are the op's operands, then its outputs, then the workspace.
        extent: of the axis that threads share.
        points: how many elements it visits.
    """

    kernel: Kernel
    words: tuple[int, ...]
    arrays: tuple[int | None, ...]
    extent: int
    points: int


@record
class Launches:
    """Launches that do the work of a library call, one after the other.

    What they compute depends on the types of the operands, never on the number of threads.

    Attributes:
        launches: in order.
        workspace: the bytes of memory that they need besides.
        kept: owns memory whose addresses stand in words.
    """

    launches: tuple[Launch, ...]
    workspace: int = 0
    kept: tuple[Any, ...] = ()


@record
class Scan:
    """Running values of row-major rows, (outer, length, inner): each row along its length.

    ``combine`` is "add", "mul", "max", "min" or "logaddexp"; with ``reverse`` from the end.
    """

    combine: str
    outer: int
    length: int
    inner: int
    reverse: bool


@record
class Sort:
    """Rows of row-major arrays, (outer, length, inner), in the order of some of them.

    Attributes:
        keys: how many operands, the first ones, are keys; the first one is primary.
        descending: keys fall; equal ones keep their order all the same.
        total_order: floats are ordered by sign and magnitude alone; else all nan are equal and
            come last, and zeros are equal.
        kept: elements of each row that are wanted. The outputs are those of the operands, and of
            their positions if there is one output more.
    """

    outer: int
    length: int
    inner: int
    keys: int
    kept: int
    descending: bool = False
    total_order: bool = False


@record
class Runs:
    """Rows, (count, width), combined where they belong to one place.

    Operands are places, int64; whether each counts, bool; and rows. Outputs are places that count
    no more than once, whether they do, and what is to be combined with the element there.

    Attributes:
        combine: as for ``Scan``, or None: the last row of a place counts.
        limit: places are below it.
    """

    combine: str | None
    count: int
    width: int
    limit: int


@record
class AtomicSums:
    """Rows added to an array in any order, by additions that do not disturb each other.

    Operands are the array, unless it is fresh; places, int64, the elements at which windows start;
    whether each counts, bool; and rows, a window each. The output is the array.

    Attributes:
        size: elements of the array.
        is_fresh: the array is zeros, and no operand.
        count: rows.
        window: (size, elements from one to the next) of each dimension of a window, at most three.
    """

    size: int
    is_fresh: bool
    count: int
    window: tuple[tuple[int, int], ...]


@record
class Attention:
    """Fused attention, or its gradients; see kernels/attention.py.

    Operands are query, key and value; for gradients dout, sums and dots; then, where they are,
    bias, mask, query_lengths and key_lengths. Outputs are out and sums; or dquery, dkey and dvalue.

    Attributes:
        batch, queries, keys, heads, key_heads, size: of query and key.
        scale: of the products of queries and keys.
        causal: queries see keys up to their own place.
        window: how many keys to the left and to the right of their place queries see, or None.
        bias, mask: the shape, in which 1 may stand for any size, or None.
        query_lengths, key_lengths: whether there are such.
        gradient: which of both.
        reduced: as for ``Product``.
    """

    batch: int
    queries: int
    keys: int
    heads: int
    key_heads: int
    size: int
    scale: float
    causal: bool
    window: tuple[int, int] | None
    bias: tuple[int, ...] | None
    mask: tuple[int, ...] | None
    query_lengths: bool
    key_lengths: bool
    gradient: bool
    reduced: bool = False


@record
class Matrices:
    """A batch of matrices of at most 32 rows and columns, decomposed or solved.

    Attributes:
        what: "lu", "cholesky", "triangular", "qr", "eigh" or "eig", with the op's operands and
            outputs. All but "eig" are of real matrices.
        count, rows, columns: of the first operand.
        sides: right-hand sides of each.
        params: of the op.
    """

    what: str
    count: int
    rows: int
    columns: int
    sides: int
    params: dict[str, Any]


Block = Scan | Sort | Runs | AtomicSums | Matrices | Attention | Convolution


@record
class Begun:
    """The parts of a call that may run beside what comes behind it.

    Attributes:
        begin: a primitive with the operand and params of the call, and its result, which may not
            be read yet.
        end: a primitive of the operand and that result; it gives a number when both may be used.
        barrier: optimization_barrier, behind which the result is read.
        joined: ``(build, operands, params) -> outputs``: several calls on operands of one dtype
            as one.
        small: the most bytes of an operand whose call is worth joining.
    """

    begin: Any
    end: Any
    barrier: Any
    joined: Callable[..., Any]
    small: int


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
        blocks: ``(in_avals, out_avals, params) -> Scan, Sort, Runs, AtomicSums, Matrices,
            Attention or Convolution``, or None: what GPUs have handwritten kernels for.
        on_gpu: as ``Primitive.simplify``, for platforms of GPUs and before it.
        on_cpu: the same for other platforms.
        triangular: ``params -> Triangular``, or None: the call as triangular systems, for platforms
            with a BLAS of their own.
        lu: the call is an LU decomposition, for platforms with a LAPACK of their own. Outputs are
            factors, pivots and the permutation, both int32.
        kernels: ``(views, out_avals, params) -> Launches``, or None: the call as kernels written by
            hand, for platforms that run them; views say how the operands lie.
        summed: ``(eqn, axes, build) -> atom``, the output summed over axes made directly, or None
            where it cannot.
        begun: how it runs beside other calls; see compiler/passes/overlap.py.
        apart: as in Indexed.
    """

    call: Callable[..., None] | None = None
    prepare: Callable[..., Callable[..., None]] | None = None
    flops: Callable[..., int] | None = None
    product: Callable[..., Product | None] | None = None
    convolution: Callable[..., Convolution | None] | None = None
    triangular: Callable[..., Triangular | None] | None = None
    lu: bool = False
    kernels: Callable[..., Launches | None] | None = None
    blocks: Callable[..., Block | None] | None = None
    on_gpu: Callable[..., Any] | None = None
    on_cpu: Callable[..., Any] | None = None
    transposed: Callable[..., Any] | None = None
    summed: Callable[..., Any] | None = None
    begun: Begun | None = None
    apart: Callable[..., Any] | None = None


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
class Distributed:
    """A program of one memory that runs in several at once; see parallel/mapping/shard_map_call.py.

    No plan holds it: what runs programs over several memories takes it apart.
    """


@record
class HostCall:
    """A call of Python on the host, in a step of its own; ``impl`` makes it."""


class OnHost(Exception):
    """Raised by an op's code for arrays of a device: this call is one for the host.

    The call then runs there, with NumPy, and the user is told once; other calls of the op stay.

    Args:
        which: the calls that are meant, behind the op's name, as "with pivoting"; "": all.
        why: what is missing.
    """

    def __init__(self, which: str, why: str) -> None:
        super().__init__(why)
        self.which = which


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
