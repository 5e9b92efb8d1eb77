"""Convert a loop or branch with independent lanes to a lane program.

Which dimensions of its arrays are batch dimensions is guessed from their shapes. Each guess is an
``_Attempt``, which raises NotLanesError if the evaluator finds that lanes are not independent.

Tests: tests/compiler/test_lanes.py, tests/compiler/test_lane_maps.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from gpuflow.compiler.lanes.arrays import (
    REPEATED,
    SMALL,
    Array,
    ComputedArray,
    Element,
    LaneArray,
    MemoryArray,
    NotLanesError,
    check_small,
    is_computed,
    object_array,
)
from gpuflow.compiler.lanes.cost_model import operation_count, operation_limit
from gpuflow.compiler.lanes.evaluate import Evaluator, Unrounded
from gpuflow.compiler.lanes.folding import storage_of, values_of_elements
from gpuflow.compiler.lanes.points import computed_array
from gpuflow.compiler.lanes.program import LaneProgram, lane_program_p, make_lane_program
from gpuflow.core.aval import ShapedArray, storage_name
from gpuflow.core.jaxpr import Atom, Eqn, Literal, Var
from gpuflow.core.lowering import LaneForm, ProgramForm, ScanForm, WhileForm
from gpuflow.kir.builder import ComplexPair
from gpuflow.kir.nodes import Block, Mode, Operand, Value
from gpuflow.kir.rewrite import free_values

Shape = tuple[int, ...]
_NOTHING: Mapping[Var, Eqn] = {}


def may_be_lanes(eqn: Eqn) -> bool:
    """Whether ``conversion_attempts`` applies: a loop, or batched control flow with one in it."""
    rule = eqn.primitive.lower
    if eqn.effects:
        return False
    return rule.form is not None or (rule.lanes is not None and _has_loop(eqn))


def _has_loop(eqn: Eqn) -> bool:
    """Whether an equation is a loop, or a branch with a loop in it; other branches are selects."""
    form = eqn.primitive.lower.inner(eqn)
    if form is None or form.is_loop:
        return form is not None
    return any(_has_loop(inner) for program in form.programs for inner in program.jaxpr.eqns)


def lane_equation(
    eqn: Eqn, used: Sequence[bool], unrounded: Unrounded, definition: Mapping[Var, Eqn]
) -> Eqn | None:
    """The equation of the lane program that replaces a loop or branch; None if none does.

    Args:
        eqn: a loop or a branch.
        used: for each output whether it is read; the others are dropped.
        unrounded: see ``lane_loops``.
        definition: the defining equation of each variable of the enclosing program.
    """
    for attempt in conversion_attempts(eqn, unrounded, definition):
        try:
            return attempt.equation(used)
        except NotLanesError:
            continue
    return None


def rejection_reason(eqn: Eqn, unrounded: Unrounded) -> str | None:
    """The reason why a loop or branch is not part of a kernel, for ``explain``; None if it can be.

    Args:
        eqn: a loop or a branch.
        unrounded: see ``lane_loops``.
    """
    if eqn.effects:
        return "it has effects"
    if not may_be_lanes(eqn):
        return "it is no loop"
    reasons: list[str] = []
    for attempt in conversion_attempts(eqn, unrounded):
        try:
            attempt.equation([True] * len(eqn.outputs))
        except NotLanesError as error:
            reasons.append(str(error))
            continue
        return None
    return reasons[0] if reasons else "it carries nothing"


def conversion_attempts(
    eqn: Eqn, unrounded: Unrounded, definition: Mapping[Var, Eqn] = _NOTHING
) -> list[_Attempt]:
    """The conversions of a loop or branch to try, best first; args as of ``lane_equation``.

    ``may_be_lanes`` must hold for ``eqn``.
    """
    rule = eqn.primitive.lower
    if rule.lanes is not None:
        form = rule.lanes(eqn.params)
        kinds = []
        for k, atom in enumerate(eqn.inputs):
            lane_kinds = [number for number, lane in enumerate(form.lanes) if lane[k]]
            kinds.append((*lane_kinds, *[SMALL] * (atom.aval.ndim - len(lane_kinds))))
        return [_Attempt(eqn, form, form.sizes, kinds, unrounded, definition)]
    form = rule.form(eqn.params)
    parallel_form = iterations_as_lanes(form)
    return [
        _Attempt(
            eqn,
            parallel_form or form,
            lane_sizes,
            _operand_kinds(eqn, form, lane_sizes, uniform_consts, parallel_form is not None),
            unrounded,
            definition,
        )
        for lane_sizes in _candidate_lane_sizes(
            form, () if parallel_form is None else parallel_form.sizes
        )
        for uniform_consts in ((False, True) if lane_sizes else (False,))
    ]


def iterations_as_lanes(form: ScanForm | WhileForm) -> LaneForm | None:
    """A scan without carries as batched control flow over its iterations; else None."""
    if not form.is_parallel:
        return None
    num_xs = len(form.body.in_avals) - form.num_consts
    is_x = (*[False] * form.num_consts, *[True] * num_xs)
    return LaneForm(ProgramForm(form.body), (form.length,), (is_x,))


def _candidate_lane_sizes(form: ScanForm | WhileForm, iteration_sizes: Shape) -> list[Shape]:
    """Candidates for the sizes of batch dimensions, most dimensions first.

    They are leading dimensions that all outputs of the body share, after ``iteration_sizes``.

    Args:
        form: the loop.
        iteration_sizes: the trip count of a scan without carries; else nothing.
    """
    shapes = [aval.shape for aval in form.body.out_avals if aval.ndim]
    if iteration_sizes == (1,):
        return []
    prefix: Shape = shapes[0] if shapes else ()
    for shape in shapes[1:]:
        length = 0
        while length < min(len(prefix), len(shape)) and prefix[length] == shape[length]:
            length += 1
        prefix = prefix[:length]
    lengths = range(len(prefix), 0, -1)
    return [
        *[(*iteration_sizes, *prefix[:n]) for n in lengths if 1 not in prefix[:n]],
        iteration_sizes,
    ]


def _operand_kinds(
    eqn: Eqn,
    form: ScanForm | WhileForm,
    lane_sizes: Shape,
    uniform_consts: bool,
    first_is_iteration: bool,
) -> list[tuple[int, ...]]:
    """The kinds of the operands' dimensions, given the batch dimensions; see ``lanes/arrays.py``.

    Args:
        eqn, form: the loop.
        lane_sizes: sizes of the batch dimensions.
        uniform_consts: whether constants have no batch dimensions, whatever their shape.
        first_is_iteration: whether the first batch dimension is the iteration.
    """
    iteration_kinds, lane_sizes = (
        ([0], lane_sizes[1:]) if first_is_iteration else ([SMALL], lane_sizes)
    )
    num_consts, first_x = form.first_carry, form.first_carry + form.num_carry
    kinds = []
    for k, atom in enumerate(eqn.inputs):
        shape = atom.aval.shape
        skipped = int(k >= first_x)
        iteration_shape = shape[skipped:]
        first_kinds = iteration_kinds * skipped
        has_lanes = (
            bool(lane_sizes)
            and iteration_shape[: len(lane_sizes)] == lane_sizes
            and not (uniform_consts and k < num_consts)
        )
        lane_kinds = (
            range(int(first_is_iteration), int(first_is_iteration) + len(lane_sizes))
            if has_lanes
            else ()
        )
        kinds.append(
            (*first_kinds, *lane_kinds, *[SMALL] * (len(iteration_shape) - len(lane_kinds)))
        )
    return kinds


class _LaneOperands(NamedTuple):
    """The operands of a loop or branch, as a lane sees them.

    Attributes:
        arrays: for each operand of the loop its array.
        order: for each operand of the lane program that of the loop; those in memory come first.
        num_in_memory: count of those in memory; a lane gets the other ones as elements.
    """

    arrays: list[Array]
    order: list[int]
    num_in_memory: int


class _Attempt:
    """One attempt to convert a loop or branch, with given batch dimensions.

    Args:
        eqn: the loop or branch.
        form: its programs.
        lane_sizes: sizes of the batch dimensions.
        operand_kinds: for each operand the kinds of its dimensions, see ``lanes/arrays.py``.
        unrounded: see ``lane_loops``.
        definition: see ``lane_equation``.
    """

    def __init__(
        self,
        eqn: Eqn,
        form: ScanForm | WhileForm | LaneForm,
        lane_sizes: Shape,
        operand_kinds: Sequence[tuple[int, ...]],
        unrounded: Unrounded,
        definition: Mapping[Var, Eqn],
    ) -> None:
        self.definition = definition
        self.eqn, self.form, self.lane_sizes, self.operand_kinds = (
            eqn,
            form,
            lane_sizes,
            operand_kinds,
        )
        self.evaluator = Evaluator(lane_sizes, unrounded)

    def equation(self, used: Sequence[bool]) -> Eqn:
        """Run the evaluator, and build the equation of the lane program; call it once.

        Raises:
            NotLanesError: if the lanes are not independent, or the program is too large.
        """
        self._check_cost()
        eqn, evaluator = self.eqn, self.evaluator
        operands = self._lane_operands()
        outputs = [var for var, is_used in zip(eqn.outputs, used, strict=True) if is_used]
        output_index_of = {k: outputs.index(var) for k, var in enumerate(eqn.outputs) if used[k]}
        self.writes: list[tuple[int, ...] | None] = [None] * len(outputs)
        results: list[tuple[int, list[Element]]] = []
        for k, array in self._run(operands.arrays, output_index_of):
            elements = self._result_elements(output_index_of[k], array, eqn.outputs[k].aval)
            if elements is not None:
                results.append((output_index_of[k], elements))
        results.sort(key=lambda result: result[0])
        if not results:
            self._check_arrays_have_lanes(operands.order)
        flat_results = tuple(v for _, elements in results for v in values_of_elements(elements))
        params = {
            "program": self._lane_program(operands, flat_results),
            "sizes": self.lane_sizes,
            "lengths": tuple(evaluator.loop_lengths),
            "outs": tuple(var.aval for var in outputs),
        }
        inputs = tuple(eqn.inputs[k] for k in operands.order)
        return eqn.replace(
            primitive=lane_program_p, inputs=inputs, outputs=tuple(outputs), params=params
        )

    def _check_cost(self) -> None:
        """Raise NotLanesError if the text would be too long; programs of users must be kernels."""
        is_required = self.form.kernel is not None
        operations = 0 if is_required else operation_count(self.form, max(prod(self.lane_sizes), 1))
        limit = 0 if is_required else operation_limit(self.form)
        if operations > limit:
            raise NotLanesError(f"it takes some {operations} operations a lane, more than {limit}")

    def _lane_operands(self) -> _LaneOperands:
        """The operands as arrays of one lane."""
        eqn, evaluator = self.eqn, self.evaluator
        is_element = [
            type(atom) is Literal or not atom.aval.ndim or kinds == self._all_lanes()
            for atom, kinds in zip(eqn.inputs, self.operand_kinds, strict=True)
        ]
        counters = {k: self._counter(atom) for k, atom in enumerate(eqn.inputs) if atom.aval.ndim}
        order = [k for k in range(len(eqn.inputs)) if counters.get(k) is None]
        order.sort(key=lambda k: is_element[k])
        index_of = {k: index for index, k in enumerate(order)}
        arrays: list[Array] = []
        for k, (atom, kinds) in enumerate(zip(eqn.inputs, self.operand_kinds, strict=True)):
            storage, counter, shape = storage_of(atom.aval), counters.get(k), atom.aval.shape
            if counter is not None:
                arrays.append(counter)
            elif not is_element[k]:
                dims = tuple(range(atom.aval.ndim))
                arrays.append(MemoryArray(index_of[k], storage, shape, kinds, dims))
            else:
                element = evaluator.element(storage, index_of[k])
                arrays.append(LaneArray(shape, kinds, object_array([element], ())))
        num_in_memory = sum(not is_element[k] for k in order)
        return _LaneOperands(arrays, order, num_in_memory)

    def _check_arrays_have_lanes(self, order: Sequence[int]) -> None:
        """Raise NotLanesError if some batch dimension is that of no operand or stored output."""
        writes = [kinds for kinds in self.writes if kinds is not None]
        array_kinds = [*[self.operand_kinds[k] for k in order], *writes]
        if not {kind for kinds in array_kinds for kind in kinds}.issuperset(self._all_lanes()):
            raise NotLanesError("no array has its lanes")

    def _lane_program(self, operands: _LaneOperands, results: Sequence[Value]) -> LaneProgram:
        """The lane program of the emitted code, without params that it does not use."""
        evaluator = self.evaluator
        block = evaluator.builder.finish()
        used_values = {*free_values(block.body), *results}
        parameters = {
            source: value for source, value in evaluator.parameters.items() if value in used_values
        }
        whole = Block(tuple(parameters.values()), block.body, tuple(results))
        reads = tuple(self.operand_kinds[k] for k in operands.order[: operands.num_in_memory])
        return make_lane_program(whole, tuple(parameters), reads, tuple(self.writes))

    def _all_lanes(self) -> tuple[int, ...]:
        """The kinds of an array whose dimensions are all batch dimensions, in order."""
        return tuple(range(len(self.lane_sizes)))

    def _counter(self, atom: Atom) -> ComputedArray | None:
        """An operand that is a cheap function of its indices, such as an iota; None for others."""
        eqn = self.definition.get(atom) if type(atom) is Var else None
        if eqn is None or len(eqn.outputs) > 1:
            return None
        if not eqn.primitive.lower.cheap:
            return None
        if not eqn.inputs:
            return computed_array(self.evaluator, eqn, [])
        arrays: list[Array] = []
        for operand in eqn.inputs:
            array: Array | None
            if type(operand) is Literal and not operand.aval.ndim:
                array = self.evaluator.constant(operand.value, operand.aval)
            else:
                array = self._counter(operand)
            if array is None:
                return None
            arrays.append(array)
        return computed_array(self.evaluator, eqn, arrays) if is_computed(arrays) else None

    def _run(
        self, operands: list[Array], output_index_of: dict[int, int]
    ) -> list[tuple[int, Array]]:
        """Emit the loop or branch; returns the used outputs that it has not stored.

        Args:
            operands: the operands of the loop or branch.
            output_index_of: for each used output its index among the used ones.
        """
        evaluator, form = self.evaluator, self.form

        def store(k: int, index: Value, array: LaneArray) -> None:
            if k in output_index_of:
                self._store(output_index_of[k], array, self.eqn.outputs[k].aval, index)

        evaluator.store = store
        outs = form.in_lane(evaluator, operands)
        return [(k, array) for k, array in enumerate(outs) if k in output_index_of]

    # --- outputs ---

    def _result_elements(
        self, output_index: int, array: Array, aval: ShapedArray
    ) -> list[Element] | None:
        """The element of an output at the batch index, as a result; None if it is stored.

        It is a result if all its dimensions are batch dimensions in order, so that lane i has
        exactly element i.
        """
        array = self._with_resolved_broadcasts(self.evaluator.values_of(array))
        if array.dim_kinds == self._all_lanes():
            return array.flat()
        self._store(output_index, array, aval, None)
        return None

    def _with_resolved_broadcasts(self, array: LaneArray) -> LaneArray:
        """An array whose REPEATED dimensions become batch dimensions if possible, else SMALL."""
        kinds = list(array.dim_kinds)
        for d, kind in enumerate(kinds):
            if kind != REPEATED:
                continue
            unused_lanes = [
                lane
                for lane, size in enumerate(self.lane_sizes)
                if lane not in kinds and size == array.shape[d]
            ]
            kinds[d] = unused_lanes[0] if unused_lanes else SMALL
        sizes = [n for n, kind in zip(array.shape, kinds, strict=True) if kind == SMALL]
        check_small(sizes)
        small = [d for d, kind in enumerate(kinds) if kind == SMALL]
        index = tuple(slice(None) if array.dim_kinds[d] == SMALL else None for d in small)
        items = np.broadcast_to(array.items[index], sizes)
        return LaneArray(array.shape, tuple(kinds), items)

    def _store(
        self, output_index: int, array: LaneArray, aval: ShapedArray, iteration: Value | None
    ) -> None:
        """Store an output, or its slice of one iteration of a scan.

        Only the lanes at index 0 of batch dimensions that the array does not have store it.
        """
        evaluator, builder = self.evaluator, self.evaluator.builder
        array = self._with_resolved_broadcasts(array)
        missing_lanes = [
            lane for lane in range(len(self.lane_sizes)) if lane not in array.dim_kinds
        ]
        if missing_lanes and not prod(self.lane_sizes):
            raise NotLanesError("no lane would store what all of them have")
        zero = builder.const("int64", 0)
        is_storing_lane: Value | None = None
        for lane in missing_lanes:
            is_first = builder.apply("eq", evaluator.lane_index(lane), zero)
            is_storing_lane = (
                is_first
                if is_storing_lane is None
                else builder.apply("and", is_storing_lane, is_first)
            )
        num_leading = int(iteration is not None)
        storage, operand_name = storage_name(aval.dtype), f"y{output_index}"
        builder.declare(Operand(operand_name, storage, Mode.OUT))
        base: Value | None = None
        if iteration is not None:
            step = evaluator.parameter("int64", "out stride", output_index, 0)
            base = evaluator.add_scaled(None, iteration, step)
        self.writes[output_index] = (*[SMALL] * num_leading, *array.dim_kinds)
        for index in np.ndindex(*array.items.shape):
            offset = base
            for d, i in zip(array.small, index, strict=True):
                stride = evaluator.parameter("int64", "out stride", output_index, d + num_leading)
                offset = evaluator.add_scaled(offset, builder.const("int64", i), stride)
            element = array.items[index]
            if isinstance(element, ComplexPair):
                for component, value in enumerate((element.real, element.imag)):
                    builder.store(operand_name, value, offset, is_storing_lane, component)
            else:
                builder.store(
                    operand_name, builder.unrounded(element, storage), offset, is_storing_lane
                )
