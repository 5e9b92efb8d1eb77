"""The rules of single statements, one function for each class; see ``kir.verify``.

A rule runs after the uses of its statement are checked, and before its blocks are. The text of a
rule says what must hold; ``require`` adds the statement.

Tests: tests/kir/test_kir_verify.py, tests/kir/test_strips.py, tests/kir/test_copies.py.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import field, replace

import numpy as np

from gpuflow.base.records import record
from gpuflow.kir import nodes
from gpuflow.kir.nodes import Block, Kernel, Local, Mode, Operand, Role, Value
from gpuflow.kir.scalar import COMPONENT_DTYPES, FUNCTIONS, compute_dtype, dtype_kind
from gpuflow.kir.walk import is_plain_access, owned_blocks, statements


class KernelError(RuntimeError):
    """A kernel breaks a rule of KernelIR, or its interpretation leaves an operand's memory."""


@record
class BlockContext:
    """The context of a block.

    Attributes:
        open_axes: axes of the loops and reductions around it, from the outermost.
        vector_axes: those of them that are VECTOR loops.
        strips: axes that are cut, each with the size of its strips, from the outermost.
        parallel_only: whether all owners are loops over PARALLEL axes.
        in_condition: whether it is inside the condition of a While: no stores.
        in_reduction: whether it is inside a reduction: no loops over axes.
        in_combine: whether it is a combine block: no loads.
    """

    open_axes: tuple[str, ...] = ()
    vector_axes: tuple[str, ...] = ()
    strips: tuple[tuple[str, int], ...] = ()
    parallel_only: bool = True
    in_condition: bool = False
    in_reduction: bool = False
    in_combine: bool = False

    @property
    def strip_sizes(self) -> dict[str, int]:
        """The most points in the current strip of each cut axis."""
        return dict(self.strips)  # of nested strips the innermost


@record(frozen=False)
class VerifierState:
    """The state of one verification.

    Attributes:
        kernel: the kernel.
        operands: its operands by name.
        defined_numbers: the numbers of all values that have been defined.
        dtype_of_visible: the dtype of each value that is visible in the current block.
        offset_of_inout: for each INOUT operand the offset of its first access.
        locals: its local arrays by name.
    """

    kernel: Kernel
    operands: dict[str, Operand]
    defined_numbers: set[int] = field(default_factory=set)
    dtype_of_visible: dict[int, str] = field(default_factory=dict)
    offset_of_inout: dict[str, Value | None] = field(default_factory=dict)
    locals: dict[str, Local] = field(default_factory=dict)

    def axis_position(self, name: str) -> int:
        return [axis.name for axis in self.kernel.axes].index(name)


def require(holds: bool, kernel: Kernel, node: object, rule: str) -> None:
    """Raise KernelError with a rule, and the node that breaks it, unless it holds."""
    if not holds:
        raise KernelError(f"[{kernel.name}] {rule}; got {_statement_text(node)}.")


def _statement_text(node: object) -> str:
    """A statement as short text, without its blocks."""
    fields = []
    for name, value in vars(node).items() if hasattr(node, "__dict__") else ():
        if not isinstance(value, Block):
            fields.append(f"{name}={_field_text(value)}")
    return f"{type(node).__name__}({', '.join(fields)})"


def _field_text(value: object) -> str:
    if isinstance(value, Value):
        return f"%{value.number}:{value.dtype}"
    if isinstance(value, tuple):
        return "(" + ", ".join(_field_text(item) for item in value) + ")"
    return str(getattr(value, "value", value))


def dtypes_of(values: Iterable[Value]) -> tuple[str, ...]:
    return tuple(value.dtype for value in values)


def _check_const(statement: nodes.Const, state: VerifierState, context: BlockContext) -> None:
    del context
    kind = dtype_kind(statement.out.dtype)
    value = statement.value
    expected = {"bool": bool, "float": float}.get(kind, int)
    rule = f"a constant of {statement.out.dtype} must be a Python {expected.__name__} in its range"
    is_valid = type(value) is expected
    if is_valid and kind in ("int", "uint"):
        bounds = np.iinfo(statement.out.dtype)
        is_valid = bounds.min <= value <= bounds.max
    require(is_valid, state.kernel, statement, rule)


def _check_load(statement: nodes.Load, state: VerifierState, context: BlockContext) -> None:
    kernel = state.kernel
    require(not context.in_combine, kernel, statement, "a combine block must not load or store")
    if statement.operand in state.locals:
        _check_local(statement, statement.out, state, context)
        return
    operand = _check_access(statement, state)
    require(operand.mode is not Mode.OUT, kernel, statement, "an OUT operand must not be loaded")
    if operand.mode in (Mode.INDEX, Mode.SCALAR):
        is_plain = statement.offset is None and statement.where is None
        rule = "a Load of an INDEX or SCALAR operand must have no offset and no where"
        require(is_plain, kernel, statement, rule)
    matches = statement.out.dtype == compute_dtype(operand.dtype)
    rule = f"a Load must have the compute dtype of its operand ({operand.dtype})"
    require(matches, kernel, statement, rule)


def _check_store(statement: nodes.Store, state: VerifierState, context: BlockContext) -> None:
    kernel = state.kernel
    require(not context.in_combine, kernel, statement, "a combine block must not load or store")
    require(not context.in_condition, kernel, statement, "a condition must not store")
    if statement.operand in state.locals:
        _check_local(statement, statement.value, state, context)
        return
    operand = _check_access(statement, state)
    writable = operand.mode in (Mode.OUT, Mode.INOUT, Mode.WORK)
    require(writable, kernel, statement, "a stored operand must be OUT, INOUT or WORK")
    matches = statement.value.dtype == compute_dtype(operand.dtype)
    rule = f"a Store must have the compute dtype of its operand ({operand.dtype})"
    require(matches, kernel, statement, rule)


def _check_local(
    statement: nodes.Load | nodes.Store, value: Value, state: VerifierState, context: BlockContext
) -> None:
    """Check an access of a local array: at the current point, of axes that are cut or exact.

    An offset is relative to the first point of the strip, or, with rows, to the current point.
    """
    kernel, local = state.kernel, state.locals[statement.operand]
    offset = statement.offset
    rule = "an access of a local array must have no where and component"
    require(is_plain_access(replace(statement, offset=None)), kernel, statement, rule)
    rule = f"an access of a local array must have its dtype ({local.dtype})"
    require(value.dtype == compute_dtype(local.dtype), kernel, statement, rule)
    strip_sizes, cut = context.strip_sizes, local.cut_axes(kernel)
    if offset is not None:
        require(offset.dtype == "int64", kernel, statement, "an offset must be int64")
        rule = "an array that is accessed with an offset must have one axis, which is cut"
        require(len(local.axes) == len(cut) == 1, kernel, statement, rule)
    has_rows = local.rows > 1
    rule = "an access of an array with rows must have an offset"
    require(offset is not None or not has_rows, kernel, statement, rule)
    for axis, size in local.axes:
        rule = f"axis {axis} of the array must be open, or there must be an offset, and not both"
        is_open = offset is None or has_rows
        require((axis in context.open_axes) == is_open, kernel, statement, rule)
        is_valid = axis not in cut or strip_sizes.get(axis, size + 1) <= size
        rule = f"a strip of axis {axis} must have at most the array's {size} points"
        require(is_valid, kernel, statement, rule)


def _check_strip(statement: nodes.Strip, state: VerifierState, context: BlockContext) -> None:
    kernel, axis = state.kernel, statement.axis
    require(not context.in_condition, kernel, statement, "a condition must not loop to store")
    require(not context.in_reduction, kernel, statement, "a reduction must not loop over an axis")
    body, size = statement.body, statement.size
    has_no_values = not (body.params or body.results)
    require(has_no_values, kernel, statement, "a Strip must have no carries or results")
    is_power_of_two = size > 0 and size & (size - 1) == 0
    require(is_power_of_two, kernel, statement, "the size of a Strip must be a power of two")
    exists = any(axis == other.name for other in kernel.axes)
    require(exists, kernel, statement, f"axis {axis} must be an axis of the kernel")
    is_closed = axis not in context.open_axes
    require(is_closed, kernel, statement, f"axis {axis} must not be open already")
    is_parallel = kernel.axes[state.axis_position(axis)].role is Role.PARALLEL
    rule = "a PARALLEL axis must be cut in the body or in PARALLEL loops"
    is_allowed = context.parallel_only or not is_parallel or axis in context.strip_sizes
    require(is_allowed, kernel, statement, rule)


def _check_copy(statement: nodes.Copy, state: VerifierState, context: BlockContext) -> None:
    kernel, names = state.kernel, (statement.source, statement.target)
    require(not context.in_condition, kernel, statement, "a condition must not store")
    rule = "a Copy must be between a local array and an operand"
    is_local = [name in state.locals for name in names]
    require(sorted(is_local) == [False, True], kernel, statement, rule)
    local, other = names if is_local[0] else names[::-1]
    array, operand = state.locals[local], state.operands.get(other)
    mode = Mode.OUT if is_local[0] else Mode.IN
    rule = "the operand of a Copy must be IN as its source, or OUT as its target"
    is_allowed = operand is not None and operand.mode is mode
    require(is_allowed, kernel, statement, rule)
    assert operand is not None
    rule = "both sides of a Copy must have one dtype, that of a complex number's component"
    dtype = COMPONENT_DTYPES.get(operand.dtype, operand.dtype)
    components = (0, 1) if operand.dtype in COMPONENT_DTYPES else (None,)
    matches = dtype == array.dtype and statement.component in components
    require(matches, kernel, statement, rule)
    strip_sizes = context.strip_sizes
    for axis, size in array.axes:
        rule = f"axis {axis} of the array must be cut, into strips that fit, and not be open"
        is_valid = axis not in context.open_axes and strip_sizes.get(axis, size + 1) <= size
        require(is_valid, kernel, statement, rule)
    has_rows = statement.count is not None
    rule = "a Copy must have a count and row_offsets if the array has rows, and else two axes"
    is_valid = len(array.axes) == (1 if has_rows else 2) and (array.rows > 1) == has_rows
    require(is_valid, kernel, statement, rule)
    expected = ("int64",) * has_rows
    row_offsets = statement.row_offsets
    matches = dtypes_of(row_offsets.params) == dtypes_of(row_offsets.results) == expected
    is_pure = all(_is_scalar_computation(s, state) for s in row_offsets.body)
    rule = "row_offsets must compute an int64 from an int64, without memory"
    require(matches and is_pure, kernel, statement, rule)


def _is_scalar_computation(statement: nodes.Statement, state: VerifierState) -> bool:
    """Whether a statement computes from values and SCALAR operands only."""
    if isinstance(statement, nodes.Load) and statement.operand in state.operands:
        return state.operands[statement.operand].mode is Mode.SCALAR
    return isinstance(statement, nodes.Const | nodes.Apply | nodes.Cast | nodes.Select)


def _check_access(statement: nodes.Load | nodes.Store, state: VerifierState) -> Operand:
    """Check an access of an operand, not of a local array; returns the operand."""
    kernel, name = state.kernel, statement.operand
    require(name in state.operands, kernel, statement, "an accessed operand must exist")
    operand = state.operands[name]
    offset, condition = statement.offset, statement.where
    int64 = offset is None or offset.dtype == "int64"
    require(int64, kernel, statement, "an offset must be int64")
    require(condition is None or condition.dtype == "bool", kernel, statement, "where must be bool")
    allowed = (0, 1) if operand.dtype in COMPONENT_DTYPES else (None,)
    rule = f"component must be one of {allowed} for {operand.dtype}"
    require(statement.component in allowed, kernel, statement, rule)
    if operand.mode is Mode.INOUT:
        first = state.offset_of_inout.setdefault(name, offset)
        rule = "an INOUT operand must be accessed at equal indices, so with one offset"
        require(first == offset, kernel, statement, rule)
    return operand


def _check_apply(statement: nodes.Apply, state: VerifierState, context: BlockContext) -> None:
    del context
    rule = "fn must be a scalar function"
    require(statement.fn in FUNCTIONS, state.kernel, statement, rule)
    try:
        result_dtypes = FUNCTIONS[statement.fn].results(dtypes_of(statement.args))
    except TypeError as error:
        text = _statement_text(statement)
        raise KernelError(f"[{state.kernel.name}] {error} In {text}.") from None
    rule = f"the results of {statement.fn} must be {result_dtypes}"
    require(dtypes_of(statement.outs) == result_dtypes, state.kernel, statement, rule)


def _check_select(statement: nodes.Select, state: VerifierState, context: BlockContext) -> None:
    del context
    _require_bool(statement.predicate, state, statement)
    operand_dtypes = {statement.out.dtype, statement.on_true.dtype, statement.on_false.dtype}
    rule = "a Select must have one dtype on both sides and in its result"
    require(len(operand_dtypes) == 1, state.kernel, statement, rule)


def _check_cast(statement: nodes.Cast, state: VerifierState, context: BlockContext) -> None:
    del statement, state, context  # every compute dtype converts to every other


def _check_reduce(statement: nodes.Reduce, state: VerifierState, context: BlockContext) -> None:
    kernel, expected = state.kernel, dtypes_of(statement.init)
    require(bool(statement.axes), kernel, statement, "a Reduce must have axes")
    require(bool(statement.init), kernel, statement, "a Reduce must have components")
    open_axes = context.open_axes
    for axis in statement.axes:
        # VECTOR lanes may have one running value each, so their loop may enclose the reduction.
        ordered_before = tuple(name for name in open_axes if name not in context.vector_axes)
        if kernel.kind == "column":
            ordered_before = ()  # a loop over columns encloses the reduction over rows
        _require_axis_order(axis, ordered_before, open_axes, state, statement, context.strip_sizes)
        role = kernel.axes[state.axis_position(axis)].role
        # A strip of a PARALLEL axis is free, too: all of it is one worker's.
        is_free = role is not Role.PARALLEL or axis in context.strip_sizes
        require(is_free, kernel, statement, "a Reduce must not be over PARALLEL")
        if statement.padded:
            _check_padded(statement, axis, state, context)
        open_axes = (*open_axes, axis)
    rule = "a Reduce must have one dtype for each component in init, body and outs"
    matches = dtypes_of(statement.body.results) == expected == dtypes_of(statement.outs)
    require(matches and not statement.body.params, kernel, statement, rule)
    combine = statement.combine
    rule = "a combine block must take n running and n new values and give n results"
    matches = dtypes_of(combine.params) == expected * 2 and dtypes_of(combine.results) == expected
    require(matches, kernel, statement, rule)
    has_blocks = any(owned_blocks(inner) for inner in combine.body)
    require(not has_blocks, kernel, statement, "a combine block must be flat")


def _check_for(statement: nodes.For, state: VerifierState, context: BlockContext) -> None:
    if statement.axis is not None:
        _check_axis_loop(statement, statement.axis, state, context)
        return
    kernel, carry_dtypes = state.kernel, dtypes_of(statement.init)
    has_count = statement.count is not None and statement.count.dtype == "int64"
    require(has_count, kernel, statement, "a For must have an axis or an int64 count")
    has_counter = dtypes_of(statement.body.params) == ("int64", *carry_dtypes)
    rule = "the params of a counted For must be the int64 counter and the carries"
    require(has_counter, kernel, statement, rule)
    _require_carries(statement.body, statement.outs, carry_dtypes, state, statement)


def _check_axis_loop(
    statement: nodes.For, axis: str, state: VerifierState, context: BlockContext
) -> None:
    kernel, body = state.kernel, statement.body
    has_no_values = not (statement.init or statement.outs or body.params or body.results)
    rule = "a For over an axis must have no count, carries or results"
    require(has_no_values and statement.count is None, kernel, statement, rule)
    require(not context.in_condition, kernel, statement, "a condition must not loop to store")
    require(not context.in_reduction, kernel, statement, "a reduction must not loop over an axis")
    axes = context.open_axes
    _require_axis_order(axis, axes, axes, state, statement, context.strip_sizes)
    is_parallel = kernel.axes[state.axis_position(axis)].role is Role.PARALLEL
    rule = "a PARALLEL loop must be directly in the body, in PARALLEL loops or in its Strip"
    is_allowed = context.parallel_only or not is_parallel or axis in context.strip_sizes
    require(is_allowed, kernel, statement, rule)
    if statement.padded:
        _check_padded(statement, axis, state, context)


def _check_padded(
    statement: nodes.For | nodes.Reduce, axis: str, state: VerifierState, context: BlockContext
) -> None:
    """Check a padded loop: points after the end of an axis exist in local arrays only."""
    memory = {o.name for o in state.kernel.operands if o.mode is not Mode.SCALAR}
    rule = "a padded loop must be over a strip of an axis, and access local arrays only"
    accesses = [s for s in statements(statement.body) if isinstance(s, nodes.Load | nodes.Store)]
    is_local = memory.isdisjoint([access.operand for access in accesses])
    require(axis in context.strip_sizes and is_local, state.kernel, statement, rule)


def _require_axis_order(
    axis: str,
    outer_axes: tuple[str, ...],
    open_axes: tuple[str, ...],
    state: VerifierState,
    node: object,
    strip_sizes: Container[str],
) -> None:
    """Require that ``axis`` exists, is not open, and comes after ``outer_axes``, or is cut."""
    exists = any(axis == other.name for other in state.kernel.axes)
    require(exists, state.kernel, node, f"axis {axis} must be an axis of the kernel")
    require(axis not in open_axes, state.kernel, node, f"axis {axis} must not be open already")
    position = state.axis_position(axis)
    # The loops of a column kernel nest the other way round: columns outside, rows inside.
    is_free = state.kernel.kind == "column" or axis in strip_sizes
    ordered = is_free or all(state.axis_position(other) < position for other in outer_axes)
    require(ordered, state.kernel, node, f"axis {axis} must nest in the order of the axes")


def _check_while(statement: nodes.While, state: VerifierState, context: BlockContext) -> None:
    del context
    carry_dtypes = dtypes_of(statement.init)
    rule = "the cond of a While must give one bool"
    require(dtypes_of(statement.cond.results) == ("bool",), state.kernel, statement, rule)
    rule = "the params of a While must be its carries"
    matches = dtypes_of(statement.cond.params) == carry_dtypes == dtypes_of(statement.body.params)
    require(matches, state.kernel, statement, rule)
    _require_carries(statement.body, statement.outs, carry_dtypes, state, statement)


def _require_carries(
    body: Block,
    outs: tuple[Value, ...],
    carry_dtypes: tuple[str, ...],
    state: VerifierState,
    node: object,
) -> None:
    matches = dtypes_of(body.results) == carry_dtypes == dtypes_of(outs)
    rule = "the carries of a loop must keep their dtypes in init, body and outs"
    require(matches, state.kernel, node, rule)


def _check_if(statement: nodes.If, state: VerifierState, context: BlockContext) -> None:
    del context
    _require_bool(statement.predicate, state, statement)
    has_no_values = not statement.then.params and not statement.orelse.params
    require(has_no_values, state.kernel, statement, "the blocks of an If must have no params")
    expected = dtypes_of(statement.outs)
    matches = dtypes_of(statement.then.results) == expected == dtypes_of(statement.orelse.results)
    rule = "both blocks of an If must have the dtypes of its results"
    require(matches, state.kernel, statement, rule)


def _require_bool(predicate: Value, state: VerifierState, node: object) -> None:
    require(predicate.dtype == "bool", state.kernel, node, "a predicate must be bool")


CHECKS = {
    nodes.Const: _check_const,
    nodes.Load: _check_load,
    nodes.Store: _check_store,
    nodes.Apply: _check_apply,
    nodes.Select: _check_select,
    nodes.Cast: _check_cast,
    nodes.Reduce: _check_reduce,
    nodes.For: _check_for,
    nodes.Strip: _check_strip,
    nodes.Copy: _check_copy,
    nodes.While: _check_while,
    nodes.If: _check_if,
}
