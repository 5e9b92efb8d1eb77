"""Convert a loop or branch with independent lanes to a lane program.

Which dimensions of its arrays are batch dimensions is guessed from their shapes. Each guess is an
``_Attempt``, which raises NotLanesError if the evaluator finds that lanes are not independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow.compiler.lanes.arrays import (
    REPEATED,
    SMALL,
    Array,
    ComputedArray,
    LaneArray,
    MemoryArray,
    NotLanesError,
    check_small,
    is_computed,
    object_array,
)
from gpuflow.compiler.lanes.evaluate import Evaluator, Unrounded
from gpuflow.compiler.lanes.folding import flattened, storage_of
from gpuflow.compiler.lanes.points import computed
from gpuflow.compiler.lanes.program import LaneProgram, lane_program_p
from gpuflow.compiler.lanes.work import most_work, work
from gpuflow.core.aval import ShapedArray, storage_name
from gpuflow.core.jaxpr import Atom, Eqn, Literal, Var
from gpuflow.core.lowering import LaneForm, ProgramForm, ScanForm, WhileForm
from gpuflow.kir.builder import Pair
from gpuflow.kir.nodes import Block, Mode, Operand, Value
from gpuflow.kir.rewrite import taken

Shape = tuple[int, ...]
_NOTHING: Mapping[Var, Eqn] = {}


def may_be_lanes(eqn: Eqn) -> bool:
    """Whether ``attempts`` applies: it is a loop, or batched control flow with a loop in it."""
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
    for attempt in attempts(eqn, unrounded, definition):
        try:
            return attempt.equation(used)
        except NotLanesError:
            continue
    return None


def why_not(eqn: Eqn, unrounded: Unrounded) -> str | None:
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
    for attempt in attempts(eqn, unrounded):
        try:
            attempt.equation([True] * len(eqn.outputs))
        except NotLanesError as error:
            reasons.append(str(error))
            continue
        return None
    return reasons[0] if reasons else "it carries nothing"


def attempts(
    eqn: Eqn, unrounded: Unrounded, definition: Mapping[Var, Eqn] = _NOTHING
) -> list[_Attempt]:
    """The conversions of a loop or branch to try, best first; args as of ``lane_equation``."""
    rule = eqn.primitive.lower
    if rule.lanes is not None:
        form = rule.lanes(eqn.params)
        kinds = []
        for k, atom in enumerate(eqn.inputs):
            mapped = [number for number, lane in enumerate(form.lanes) if lane[k]]
            kinds.append((*mapped, *[SMALL] * (atom.aval.ndim - len(mapped))))
        return [_Attempt(eqn, form, form.sizes, kinds, unrounded, definition)]
    form = rule.form(eqn.params)
    iterations = iterations_as_lanes(form)
    return [
        _Attempt(
            eqn,
            iterations or form,
            lanes,
            _kinds(eqn, form, lanes, uniform_consts, iterations is not None),
            unrounded,
            definition,
        )
        for lanes in _candidates(form, () if iterations is None else iterations.sizes)
        for uniform_consts in ((False, True) if lanes else (False,))
    ]


def iterations_as_lanes(form: ScanForm | WhileForm) -> LaneForm | None:
    """A scan without carries as batched control flow over its iterations; else None."""
    if not form.is_parallel:
        return None
    num_xs = len(form.body.in_avals) - form.num_consts
    is_x = (*[False] * form.num_consts, *[True] * num_xs)
    return LaneForm(ProgramForm(form.body), (form.length,), (is_x,))


def _candidates(form: ScanForm | WhileForm, front: Shape) -> list[Shape]:
    """Candidates for the sizes of batch dimensions, most dimensions first.

    They are leading dimensions that all outputs of the body share, after ``front``: the iterations
    of a scan without carries, else nothing.
    """
    shapes = [aval.shape for aval in form.body.out_avals if aval.ndim]
    if front == (1,):
        return []
    prefix: Shape = shapes[0] if shapes else ()
    for shape in shapes[1:]:
        length = 0
        while length < min(len(prefix), len(shape)) and prefix[length] == shape[length]:
            length += 1
        prefix = prefix[:length]
    lengths = range(len(prefix), 0, -1)
    return [*[(*front, *prefix[:n]) for n in lengths if 1 not in prefix[:n]], front]


def _kinds(
    eqn: Eqn, form: ScanForm | WhileForm, lanes: Shape, uniform_consts: bool, by_iteration: bool
) -> list[tuple[int, ...]]:
    """The kinds of the operands' dimensions, given the batch dimensions.

    Args:
        eqn, form: the loop.
        lanes: sizes of the batch dimensions.
        tables: whether constants have no batch dimensions, whatever their shape.
        by_iteration: whether the first batch dimension is the iteration.
    """
    iteration_kinds, lanes = ([0], lanes[1:]) if by_iteration else ([SMALL], lanes)
    num_consts, first_x = form.first_carry, form.first_carry + form.num_carry
    kinds = []
    for k, atom in enumerate(eqn.inputs):
        shape = atom.aval.shape
        skipped = int(k >= first_x)
        rest = shape[skipped:]
        first_kinds = iteration_kinds * skipped
        is_lanes = (
            bool(lanes) and rest[: len(lanes)] == lanes and not (uniform_consts and k < num_consts)
        )
        of_lanes = range(int(by_iteration), int(by_iteration) + len(lanes)) if is_lanes else ()
        kinds.append((*first_kinds, *of_lanes, *[SMALL] * (len(rest) - len(of_lanes))))
    return kinds


class _Attempt:
    """One attempt to convert a loop or branch, with given batch dimensions.

    Args:
        eqn: the loop or branch.
        form: its programs.
        lanes: sizes of the batch dimensions.
        kinds: for each operand the kinds of its dimensions.
        unrounded: see ``lane_loops``.
        definition: see ``lane_equation``.
    """

    def __init__(
        self,
        eqn: Eqn,
        form: ScanForm | WhileForm | LaneForm,
        lanes: Shape,
        kinds: Sequence[tuple[int, ...]],
        unrounded: Unrounded,
        definition: Mapping[Var, Eqn],
    ) -> None:
        self.definition = definition
        self.eqn, self.form, self.lanes, self.kinds = eqn, form, lanes, kinds
        self.evaluator = Evaluator(lanes, unrounded)

    def equation(self, used: Sequence[bool]) -> Eqn:
        """Run the evaluator, and build the equation of the lane program; call it once.

        Raises:
            NotLanesError: if the lanes are not independent, or the program is too large.
        """
        eqn, evaluator = self.eqn, self.evaluator
        is_required = self.form.kernel is not None
        operations = 0 if is_required else work(self.form, max(prod(self.lanes), 1))
        limit = 0 if is_required else most_work(self.form)
        if operations > limit:
            raise NotLanesError(f"it takes some {operations} operations a lane, more than {limit}")
        every = tuple(range(len(self.lanes)))
        is_element = [
            type(atom) is Literal or not atom.aval.ndim or kinds == every
            for atom, kinds in zip(eqn.inputs, self.kinds, strict=True)
        ]
        counters = {k: self._counter(atom) for k, atom in enumerate(eqn.inputs) if atom.aval.ndim}
        order = [k for k in range(len(eqn.inputs)) if counters.get(k) is None]
        order.sort(key=lambda k: is_element[k])
        index_of = {k: number for number, k in enumerate(order)}
        operands: list[Array] = []
        for k, (atom, kinds) in enumerate(zip(eqn.inputs, self.kinds, strict=True)):
            storage, counter = storage_of(atom.aval), counters.get(k)
            if counter is not None:
                operands.append(counter)
            elif not is_element[k]:
                dims = tuple(range(atom.aval.ndim))
                operands.append(MemoryArray(index_of[k], storage, atom.aval.shape, kinds, dims))
            else:
                element = evaluator.element(storage, index_of[k])
                shape = atom.aval.shape
                operands.append(LaneArray(shape, kinds, object_array([element], ())))
        outputs = [var for var, is_used in zip(eqn.outputs, used, strict=True) if is_used]
        positions = {k: outputs.index(var) for k, var in enumerate(eqn.outputs) if used[k]}
        self.writes: list[tuple[int, ...] | None] = [None] * len(outputs)
        values = self._run(operands, positions)
        results = []
        for k, array in values:
            result = self._finished(positions[k], array, eqn.outputs[k].aval)
            if result is not None:
                results.append((positions[k], result))
        results.sort(key=lambda pair: pair[0])
        if not results:
            arrays = [*[self.kinds[k] for k in order], *[w for w in self.writes if w is not None]]
            if not {kind for kinds in arrays for kind in kinds}.issuperset(every):
                raise NotLanesError("no array has its lanes")
        block = evaluator.builder.finish()
        flat = tuple(v for _, elements in results for v in flattened(elements))
        taken_values = {*taken(block.body), *flat}
        parameters = {
            source: value for source, value in evaluator.parameters.items() if value in taken_values
        }
        whole = Block(tuple(parameters.values()), block.body, flat)
        reads = tuple(self.kinds[k] for k in order if not is_element[k])
        sources, writes = tuple(parameters), tuple(self.writes)
        text = repr((whole, sources, reads, writes))
        program = LaneProgram(whole, sources, reads, writes, text)
        params = {
            "program": program,
            "sizes": self.lanes,
            "lengths": tuple(evaluator.numbers),
            "outs": tuple(var.aval for var in outputs),
        }
        inputs = tuple(eqn.inputs[k] for k in order)
        return eqn.replace(
            primitive=lane_program_p, inputs=inputs, outputs=tuple(outputs), params=params
        )

    def _counter(self, atom: Atom) -> ComputedArray | None:
        """An operand that is a cheap function of its indices, such as an iota; None for others."""
        eqn = self.definition.get(atom) if type(atom) is Var else None
        if eqn is None or len(eqn.outputs) > 1:
            return None
        if not eqn.primitive.lower.cheap:
            return None
        if not eqn.inputs:
            return computed(self.evaluator, eqn, [])
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
        return computed(self.evaluator, eqn, arrays) if is_computed(arrays) else None

    def _run(self, operands: list[Array], positions: dict[int, int]) -> list[tuple[int, Array]]:
        """Emit the loop or branch; returns the used outputs that it has not stored."""
        evaluator, form = self.evaluator, self.form

        def store(k: int, index: Value, array: LaneArray) -> None:
            if k in positions:
                self._store(positions[k], array, self.eqn.outputs[k].aval, index)

        evaluator.store = store
        outs = form.in_lane(evaluator, operands)
        return [(k, array) for k, array in enumerate(outs) if k in positions]

    # --- outputs ---

    def _finished(self, position: int, array: Array, aval: ShapedArray) -> list[Any] | None:
        """The element of an output at the batch index, as a result; None if it is stored."""
        array = self._resolved(self.evaluator.values_of(array))
        if array.kinds == tuple(range(len(self.lanes))):
            return array.flat()
        self._store(position, array, aval, None)
        return None

    def _resolved(self, array: LaneArray) -> LaneArray:
        """An array whose REPEATED dimensions become batch dimensions if possible, else SMALL."""
        kinds = list(array.kinds)
        for d, kind in enumerate(kinds):
            if kind != REPEATED:
                continue
            free = [
                lane
                for lane, size in enumerate(self.lanes)
                if lane not in kinds and size == array.shape[d]
            ]
            kinds[d] = free[0] if free else SMALL
        sizes = [n for n, kind in zip(array.shape, kinds, strict=True) if kind == SMALL]
        check_small(sizes)
        small = [d for d, kind in enumerate(kinds) if kind == SMALL]
        index = tuple(slice(None) if array.kinds[d] == SMALL else None for d in small)
        items = np.broadcast_to(array.items[index], sizes)
        return LaneArray(array.shape, tuple(kinds), items)

    def _store(
        self, position: int, array: LaneArray, aval: ShapedArray, iteration: Value | None
    ) -> None:
        """Store an output, or its slice of one iteration of a scan.

        Only the lanes at index 0 of batch dimensions that the array does not have store it.
        """
        evaluator, builder = self.evaluator, self.evaluator.builder
        array = self._resolved(array)
        missing = [lane for lane in range(len(self.lanes)) if lane not in array.kinds]
        if missing and not prod(self.lanes):
            raise NotLanesError("no lane would store what all of them have")
        zero = builder.const("int64", 0)
        where: Value | None = None
        for lane in missing:
            is_first = builder.apply("eq", evaluator.lane_index(lane), zero)
            where = is_first if where is None else builder.apply("and", where, is_first)
        first = int(iteration is not None)
        storage, name = storage_name(aval.dtype), f"y{position}"
        builder.declare(Operand(name, storage, Mode.OUT))
        base: Value | None = None
        if iteration is not None:
            step = evaluator.parameter("int64", "out stride", position, 0)
            base = evaluator.sum(None, iteration, step)
        self.writes[position] = (*[SMALL] * first, *array.kinds)
        for index in np.ndindex(*array.items.shape):
            offset = base
            for d, i in zip(array.small, index, strict=True):
                stride = evaluator.parameter("int64", "out stride", position, d + first)
                offset = evaluator.sum(offset, builder.const("int64", i), stride)
            element = array.items[index]
            if isinstance(element, Pair):
                for component, value in enumerate((element.real, element.imag)):
                    builder.store(name, value, offset, where, component)
            else:
                builder.store(name, builder.unrounded(element, storage), offset, where)
