"""Evaluator of lane programs: emits a jaxpr for one batch element as scalar KernelIR.

Operations on small arrays are unrolled to arithmetic on values. Loops and branches become While,
For and If. The class of an equation's ``lower`` calls the method of ``Evaluator`` for it
(``in_lane``). An op that no kernel supports, or data flow between batch elements, raises
NotLanesError.

Tests: tests/compiler/test_lanes.py, tests/test_fuzz_loops.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from gpuflow.compiler.lanes import ops, points
from gpuflow.compiler.lanes.arrays import (
    REPEATED,
    SMALL,
    Array,
    ComputedArray,
    Element,
    LaneArray,
    MemoryArray,
    NotLanesError,
    broadcast,
    check_small,
    common_kind,
    object_array,
    small_kinds,
    uniform_scalar,
    with_kinds,
)
from gpuflow.compiler.lanes.folding import (
    FoldingBuilder,
    elements_of_values,
    storage_of,
    values_of_elements,
)
from gpuflow.core.aval import ShapedArray, storage_name
from gpuflow.core.jaxpr import Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering import LaneForm, ScanForm, WhileForm
from gpuflow.kir.builder import ComplexPair
from gpuflow.kir.nodes import Mode, Operand, Value
from gpuflow.kir.scalar import COMPONENT_DTYPES, compute_dtype

MAX_UNROLLED = 16  # iterations of an inner scan whose slices are values
_MAX_EMISSIONS = 6  # emissions of one loop, until the kinds of its carries are a fixed point
# Returns the values of a program that kernels may hold with excess precision.
Unrounded = Callable[[Jaxpr], frozenset[Var]]
# ``(output, iteration, slice) -> None``: stores a slice of a result of the outermost scan.
Store = Callable[[int, Value, LaneArray], None]


class _KindsMismatchError(Exception):
    """Internal: carries of a loop, or results of branches, differ in kinds from the expected ones.

    ``_emit_to_fixed_point`` and ``branch`` catch it, and emit the loop or branch again.

    Args:
        arrays: arrays with the kinds to try next.
    """

    def __init__(self, arrays: list[LaneArray]) -> None:
        super().__init__()
        self.arrays = arrays


class Evaluator:
    """Emits the code of one lane program; use a new one for each attempt.

    Args:
        lane_sizes: sizes of the batch dimensions; "lane k" is the k-th of these dimensions.
        unrounded: returns the values of a program that may be held with excess precision.

    Attributes:
        builder: the builder of the emitted code.
        unrounded_vars: values of the programs so far that may be held with excess precision.
        parameters: params of the code, by their source (``LaneProgram.sources``).
        loop_lengths: sizes that are arguments: the lengths of loops.
        store: called with slices of the outermost scan's results as they are computed; None if
            nothing can be stored. Set it before the first program.
    """

    def __init__(self, lane_sizes: Sequence[int], unrounded: Unrounded) -> None:
        self.lane_sizes, self._unrounded_of = tuple(lane_sizes), unrounded
        self.unrounded_vars: set[Var] = set()
        self.builder = FoldingBuilder({})
        self.parameters: dict[tuple[Any, ...], Value] = {}
        self.loop_lengths: list[int] = []
        self.store: Store | None = None
        self._depth = 0

    # --- external values ---

    def parameter(self, dtype: str, *source: Any) -> Value:
        """The param with a source; the same value for equal sources."""
        if source not in self.parameters:
            (self.parameters[source],) = self.builder._new_values([dtype])
        return self.parameters[source]

    def element(self, dtype: str, operand: int) -> Element:
        """The operand's element at the batch index."""
        if dtype in COMPONENT_DTYPES:
            real = COMPONENT_DTYPES[dtype]
            return ComplexPair(*[self.parameter(real, "part", operand, k) for k in (0, 1)])
        return self.parameter(compute_dtype(dtype), "element", operand)

    def lane_index(self, lane: int) -> Value:
        """The index of the lane along a batch dimension; ops recognize it by identity."""
        return self.parameter("int64", "index", lane)

    def length_argument(self, value: int) -> Value:
        """A size that is an argument, so that the text does not depend on it."""
        self.loop_lengths.append(value)
        return self.parameter("int64", "number", len(self.loop_lengths) - 1)

    # --- memory ---

    def load(
        self,
        array: MemoryArray | ComputedArray,
        indices: Sequence[Value],
        where: Value | None = None,
    ) -> Element:
        """Load an element of an operand in memory, or of a computed value."""
        if isinstance(array, ComputedArray):
            element = array.element(indices)
            if where is None:
                return element
            return self.builder.select(where, element, self.builder.const_like(element, 0))
        offset = array.offset
        for d, kind, index in zip(array.dims, array.dim_kinds, indices, strict=True):
            if kind >= 0 and index != self.lane_index(kind):
                raise NotLanesError("it reads what belongs to other lanes")
            if kind < 0:  # the access of the kernel covers batch dimensions
                stride = self.parameter("int64", "stride", array.operand, d)
                offset = self.add_scaled(offset, index, stride)
        name = f"m{array.operand}"
        self.builder.declare(Operand(name, array.dtype, Mode.IN))
        if array.dtype in COMPONENT_DTYPES:
            return ComplexPair(*[self.builder.load(name, offset, where, k) for k in (0, 1)])
        return self.builder.load(name, offset, where)

    def add_scaled(self, offset: Value | None, index: Value, stride: Value) -> Value | None:
        """An offset plus an index times a stride, in elements and int64; an offset of None is 0."""
        if self.builder.static_value(index) == 0:
            return offset
        term = self.builder.apply("mul", index, stride)
        return term if offset is None else self.builder.apply("add", offset, term)

    def values_of(self, array: Array) -> LaneArray:
        """Load an array into values, if it is not there yet."""
        if isinstance(array, LaneArray):
            return array
        sizes = [n for n, kind in zip(array.shape, array.dim_kinds, strict=True) if kind == SMALL]
        check_small(sizes)
        elements = []
        for index in product(*map(range, sizes)):
            remaining = iter(index)
            indices = [
                self.builder.const("int64", next(remaining))
                if kind == SMALL
                else self.lane_index(kind)
                for kind in array.dim_kinds
            ]
            elements.append(self.load(array, indices))
        return LaneArray(array.shape, array.dim_kinds, object_array(elements, sizes))

    def slice_of(self, array: Array, index: Value, static_index: int | None) -> Array:
        """A slice along the first dimension, without that dimension.

        Args:
            array: the array, of rank 1 or more.
            index: an int64 index in bounds.
            static_index: the same index if it is static, else None.
        """
        if isinstance(array, ComputedArray):
            element = array.element
            return ComputedArray(
                array.shape[1:], lambda inner_indices: element((index, *inner_indices))
            )
        if isinstance(array, MemoryArray):
            if array.dim_kinds[0] != SMALL:
                raise NotLanesError("it goes over lanes one after the other")
            stride = self.parameter("int64", "stride", array.operand, array.dims[0])
            offset = self.add_scaled(array.offset, index, stride)
            return replace(
                array,
                shape=array.shape[1:],
                dim_kinds=array.dim_kinds[1:],
                dims=array.dims[1:],
                offset=offset,
            )
        if array.dim_kinds[0] >= 0:
            raise NotLanesError("it goes over lanes one after the other")
        if array.dim_kinds[0] == REPEATED:
            return LaneArray(array.shape[1:], array.dim_kinds[1:], array.items)
        if static_index is None:
            raise NotLanesError("it goes over values that it computes in a long loop")
        items = array.items[static_index]
        if not isinstance(items, np.ndarray):
            items = object_array([items], ())
        return LaneArray(array.shape[1:], array.dim_kinds[1:], items)

    # --- programs ---

    def run(
        self, jaxpr: Jaxpr, arguments: Sequence[Array], consts: Sequence[Any] = ()
    ) -> list[Array]:
        """Emit a program for some arguments; returns its outputs.

        Args:
            jaxpr: the program.
            arguments: for each input its array, of the shape of its aval.
            consts: values of the program's ``constvars``.
        """
        env: dict[Var, Array] = dict(zip(jaxpr.invars, arguments, strict=True))
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            env[var] = self.constant(value, var.aval)

        def read(atom: Any) -> Array:
            return self.constant(atom.value, atom.aval) if type(atom) is Literal else env[atom]

        self.unrounded_vars |= self._unrounded_of(jaxpr)
        self._depth += 1
        try:
            for eqn in jaxpr.eqns:
                results = self._equation(eqn, [read(atom) for atom in eqn.inputs])
                env.update(zip(eqn.outputs, results, strict=True))
        except NotLanesError as error:
            error.eqn = error.eqn or eqn
            raise
        finally:
            self._depth -= 1
        return [read(atom) for atom in jaxpr.outvars]

    def constant(self, value: Any, aval: ShapedArray) -> LaneArray:
        """A constant of the program as an array of values."""
        if not aval.shape:
            return uniform_scalar(self._const_element(value, aval))
        kinds = small_kinds(aval.shape)
        array = np.asarray(value)
        elements = [self._const_element(item, aval) for item in array.reshape(-1)]
        return LaneArray(aval.shape, kinds, object_array(elements, aval.shape))

    def _const_element(self, value: Any, aval: ShapedArray) -> Element:
        storage = storage_of(aval)
        item = np.asarray(value).reshape(())[()]
        if storage in COMPONENT_DTYPES:
            dtype = COMPONENT_DTYPES[storage]
            return ComplexPair(
                self.builder.const(dtype, float(item.real)),
                self.builder.const(dtype, float(item.imag)),
            )
        kind = bool if storage == "bool" else (float if "float" in storage else int)
        return self.builder.const(compute_dtype(storage), kind(item))

    def _equation(self, eqn: Eqn, operands: list[Array]) -> Sequence[Array]:
        rule = eqn.primitive.lower
        if eqn.effects:
            raise NotLanesError(f"{eqn.primitive.name} has effects")
        for var in eqn.outputs:
            storage_of(var.aval)
        return rule.in_lane(self, eqn, operands)

    def reject(self, eqn: Eqn) -> list[Array]:
        """Raise the error for an op that no kernel supports."""
        raise NotLanesError(
            f"{eqn.primitive.name} is no op of a kernel",
            "do it outside, and give its result to the kernel as an argument",
        )

    def pointwise(self, eqn: Eqn, operands: Sequence[Array]) -> list[Array]:
        """The outputs of an op that kernels compute pointwise."""
        return points.emit_pointwise(self, eqn, operands)

    def layout_op(self, eqn: Eqn, operand: Array) -> Array:
        """The output of a layout op."""
        return ops.layout(self, eqn, operand)

    def product(self, eqn: Eqn, operands: Sequence[Array]) -> list[Array]:
        """The output of a library call: a product of small matrices."""
        return [ops.product(self, eqn, [self.values_of(operand) for operand in operands])]

    def rounded(self, element: Element, var: Var) -> Element:
        """An element of a variable's value, rounded to its dtype."""
        if isinstance(element, ComplexPair) or var in self.unrounded_vars:
            return element
        return self.builder.round(element, storage_name(var.aval.dtype))

    # --- loops and branches ---

    def lane_form(self, form: LaneForm, operands: Sequence[Array]) -> list[Array]:
        """Batched control flow, whose batch dimensions are leading dimensions of its arrays.

        At the outermost level these are the batch dimensions of the lane program. At an inner level
        they must not be SMALL dimensions of its operands.
        """
        if self._depth and form.kernel is not None and form.sizes:
            raise NotLanesError(
                "it holds a kernel with a grid of its own",
                "call the function of that kernel, with one index",
            )
        kinds: list[int] = []
        is_program = form.is_program
        if is_program:
            kinds += range(len(form.sizes))
        for lane in form.lanes[len(kinds) :]:
            kind = REPEATED
            for k, is_mapped in enumerate(lane):
                if is_mapped:
                    num_earlier = sum(earlier_lane[k] for earlier_lane in form.lanes[: len(kinds)])
                    kind = common_kind(kind, operands[k].dim_kinds[num_earlier])
            if kind == SMALL:
                raise NotLanesError("it loops over a small mapped dimension")
            kinds.append(kind)
        inner: list[Array] = []
        for k, operand in enumerate(operands):
            own_lanes = [kind for kind, lane in zip(kinds, form.lanes, strict=True) if lane[k]]
            inner.append(self._of_one_lane(operand, own_lanes, is_program))
        if is_program:
            indices = [self._int32_lane_index(kind) for kind in kinds[len(kinds) - form.indices :]]
            inner[form.first_index : form.first_index] = indices
        results = form.form.in_lane(self, inner)
        outs: list[Array] = []
        for result in results:
            array = self.values_of(result)
            outs.append(
                LaneArray((*form.sizes, *array.shape), (*kinds, *array.dim_kinds), array.items)
            )
        return outs

    def _of_one_lane(
        self, operand: Array, batch_lanes: Sequence[int], keeps_on_demand: bool
    ) -> Array:
        """An operand of batched control flow without its leading batch dimensions.

        Args:
            operand: the operand.
            batch_lanes: the batch dimension of the lane program for each of these.
            keeps_on_demand: whether arrays that are read on demand stay so.
        """
        count = len(batch_lanes)
        if keeps_on_demand and isinstance(operand, ComputedArray):
            prefix = [self.lane_index(lane) for lane in batch_lanes]
            element = operand.element
            return ComputedArray(
                operand.shape[count:], lambda inner_indices: element((*prefix, *inner_indices))
            )
        if keeps_on_demand and isinstance(operand, MemoryArray):
            return replace(
                operand,
                shape=operand.shape[count:],
                dim_kinds=operand.dim_kinds[count:],
                dims=operand.dims[count:],
            )
        array = self.values_of(operand)
        for kind, lane in zip(array.dim_kinds, batch_lanes, strict=False):
            if kind not in (lane, REPEATED):
                raise NotLanesError("it loops over a small mapped dimension")
        return LaneArray(array.shape[count:], array.dim_kinds[count:], array.items)

    def _int32_lane_index(self, lane: int) -> LaneArray:
        """The index of the lane along a batch dimension, as int32."""
        index = self.builder.cast(self.lane_index(lane), "int32")
        return uniform_scalar(index)

    def _emit_to_fixed_point(
        self, init: Sequence[Array], emit: Callable[[list[LaneArray]], Sequence[Value]]
    ) -> list[Array]:
        """Emit a loop repeatedly, until the kinds of its carries are a fixed point.

        Args:
            init: initial values of the carries.
            emit: emits the loop for carries of given kinds; returns its results. A mismatch must be
                raised inside a block of the loop, because the builder then discards the block.
        """
        carry = [self.values_of(array) for array in init]
        for _ in range(_MAX_EMISSIONS):
            num_lengths = len(self.loop_lengths)
            try:
                return list(_arrays_of_values(emit(carry), carry))
            except _KindsMismatchError as mismatch:
                carry = [with_kinds(a, b) for a, b in zip(carry, mismatch.arrays, strict=True)]
                del self.loop_lengths[num_lengths:]
        raise NotLanesError("its carries change from iteration to iteration")

    def while_loop(self, form: WhileForm, operands: Sequence[Array]) -> list[Array]:
        """A while loop."""
        num_condition_consts = form.num_condition_consts
        first_carry = num_condition_consts + form.num_body_consts
        condition_consts = operands[:num_condition_consts]
        body_consts = operands[num_condition_consts:first_carry]

        def emit_iteration(carry: Sequence[LaneArray]) -> list[Array]:
            return self.run(form.body.jaxpr, [*body_consts, *carry], form.body.consts)

        def emit(carry: list[LaneArray]) -> Sequence[Value]:
            def condition(*values: Value) -> Value:
                arrays = _arrays_of_values(values, carry)
                (continues,) = self.run(
                    form.condition.jaxpr, [*condition_consts, *arrays], form.condition.consts
                )
                return _scalar(self.values_of(continues))

            def body(*values: Value) -> list[Value]:
                return self._flat_values(emit_iteration(_arrays_of_values(values, carry)), carry)

            return self.builder.while_loop(self._flat_values(carry, carry), condition, body)

        return self._emit_to_fixed_point(operands[first_carry:], emit)

    def _flat_values(self, arrays: Sequence[Array], template: Sequence[LaneArray]) -> list[Value]:
        """The values of arrays, broadcast to the SMALL dimensions of ``template``.

        Raises:
            _OtherKindsError: if an array has other kinds than ``template`` can hold.
        """
        common = [with_kinds(b, self.values_of(a)) for a, b in zip(arrays, template, strict=True)]
        if any(a.dim_kinds != b.dim_kinds for a, b in zip(common, template, strict=True)):
            raise _KindsMismatchError(common)
        values: list[Value] = []
        for array, target in zip(arrays, template, strict=True):
            value = self.values_of(array)
            sizes = target.items.shape
            index = tuple(
                (slice(None) if value.dim_kinds[d] == SMALL else None) for d in target.small
            )
            items = np.broadcast_to(value.items[index], sizes)
            values += values_of_elements(list(items.reshape(-1)))
        return values

    def scan(self, form: ScanForm, operands: Sequence[Array]) -> list[Array]:
        """A scan. The outermost one stores its slices of results; others unroll theirs."""
        store = None if self._depth else self.store
        num_consts, num_carry, length = form.num_consts, form.num_carry, form.length
        consts, init = operands[:num_consts], operands[num_consts : num_consts + num_carry]
        xs = operands[num_consts + num_carry :]
        num_slices = len(form.body.out_avals) - num_carry
        builder, jaxpr = self.builder, form.body

        def emit_iteration(
            carry: Sequence[LaneArray], index: Value, static_index: int | None = None
        ) -> list[Array]:
            x_slices = [self.slice_of(array, index, static_index) for array in xs]
            return self.run(jaxpr.jaxpr, [*consts, *carry, *x_slices], jaxpr.consts)

        if store is None and (num_slices or any(isinstance(x, LaneArray) for x in xs)):
            return self._unrolled_scan(form, init, emit_iteration)
        trip_count = self.length_argument(length)

        def emit(carry: list[LaneArray]) -> Sequence[Value]:
            def body(counter: Value, *values: Value) -> list[Value]:
                index = counter
                if form.reverse:
                    last = builder.apply("sub", trip_count, builder.const("int64", 1))
                    index = builder.apply("sub", last, counter)
                results = emit_iteration(_arrays_of_values(values, carry), index)
                for k, array in enumerate(results[num_carry:], num_carry):
                    assert store is not None
                    store(k, index, self.values_of(array))
                return self._flat_values(results[:num_carry], carry)

            return builder.for_count(
                trip_count, self._flat_values(carry, carry), body, is_long=True
            )

        return self._emit_to_fixed_point(init, emit)

    def _unrolled_scan(
        self,
        form: ScanForm,
        init: Sequence[Array],
        emit_iteration: Callable[[Sequence[LaneArray], Value, int], list[Array]],
    ) -> list[Array]:
        """A short scan, unrolled, whose slices are values."""
        if form.length > MAX_UNROLLED:
            raise NotLanesError(
                "an inner loop has slices of its own, and is long",
                f"let a scan of more than {MAX_UNROLLED} iterations return its carry alone, or "
                "let the grid have an index for each of its results",
            )
        carry = [self.values_of(array) for array in init]
        slices_of: dict[int, list[LaneArray]] = {}
        order = range(form.length)
        for iteration in reversed(order) if form.reverse else order:
            results = emit_iteration(carry, self.builder.const("int64", iteration), iteration)
            results = [self.values_of(array) for array in results]
            carry, slices_of[iteration] = results[: len(carry)], results[len(carry) :]
        ys = []
        for k, aval in enumerate(form.body.out_avals[len(carry) :]):
            rows = [slices_of[iteration][k] for iteration in order]
            if not rows:
                shape = (0, *aval.shape)
                ys.append(LaneArray(shape, small_kinds(shape), np.empty(shape, object)))
                continue
            kinds = rows[0].dim_kinds
            for row in rows[1:]:
                kinds = tuple(map(common_kind, kinds, row.dim_kinds))
            template = LaneArray(rows[0].shape, kinds, broadcast(rows[0], kinds))
            items = [broadcast(row, kinds).reshape(-1) for row in rows]
            elements = [element for row in items for element in row]
            check_small([len(elements)])
            shape = (form.length, *aval.shape)
            ys.append(
                LaneArray(
                    shape,
                    (SMALL, *kinds),
                    object_array(elements, (form.length, *template.items.shape)),
                )
            )
        return [*carry, *ys]

    def branch(self, branches: Sequence[Any], operands: Sequence[Array]) -> list[Array]:
        """One of several programs, selected by the first operand, an integer or bool scalar."""
        selector_operand, *arguments = operands
        selector = _scalar(self.values_of(selector_operand))
        template: list[LaneArray] | None = None

        def emit_branch(k: int) -> list[Value]:
            nonlocal template
            program = branches[k]
            outs = [self.values_of(x) for x in self.run(program.jaxpr, arguments, program.consts)]
            template = outs if template is None else template
            return self._flat_values(outs, template)

        def emit_from(k: int) -> list[Value]:
            if k == len(branches) - 1:
                return emit_branch(k)
            builder = self.builder
            branch_index = builder.const(selector.dtype, k)
            # An index out of range selects the nearest branch.
            is_selected = builder.apply("le" if k == 0 else "eq", selector, branch_index)
            then, orelse = lambda: emit_branch(k), lambda: emit_from(k + 1)
            return list(builder.if_(is_selected, then, orelse))

        for _ in range(_MAX_EMISSIONS):
            num_lengths = len(self.loop_lengths)
            try:
                values = emit_from(0)
                assert template is not None
                return list(_arrays_of_values(values, template))
            except _KindsMismatchError as mismatch:
                template = mismatch.arrays
                del self.loop_lengths[num_lengths:]
        raise NotLanesError("its branches differ")


def _scalar(array: LaneArray) -> Value:
    """The value of a scalar, which may be repeated along lanes."""
    if array.items.shape:
        raise NotLanesError("its condition is no single truth value for each lane")
    element = array.items[()]
    assert isinstance(element, Value)
    return element


def _arrays_of_values(values: Sequence[Value], template: Sequence[LaneArray]) -> list[LaneArray]:
    """The inverse of ``_flat_values``: arrays with the shapes and kinds of ``template``."""
    arrays, start = [], 0
    for array in template:
        elements = array.flat()
        count = len(values_of_elements(elements))
        arrays.append(array.with_items(elements_of_values(values[start : start + count], elements)))
        start += count
    return arrays
