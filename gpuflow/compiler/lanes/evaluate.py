"""From a program to the statements of one of its lanes.

The equations of a program are emitted for one batch element, scalar by scalar: computations between
elements of a small array become arithmetic on values, loops and branches become While, For and If.
Equations are handled by the class of their ``lower``; an unknown class, or communication between
batch elements, ends the attempt with NotLanesError.
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
    joined_kind,
    object_array,
    small_kinds,
    uniform,
    with_kinds,
)
from gpuflow.compiler.lanes.folding import FoldingBuilder, flattened, joined, storage_of
from gpuflow.core.aval import ShapedArray, storage_name
from gpuflow.core.jaxpr import Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering import LaneForm, ScanForm, WhileForm
from gpuflow.kir.builder import Pair
from gpuflow.kir.nodes import Mode, Operand, Value
from gpuflow.kir.scalar import PARTS, compute_dtype

MOST_UNROLLED = 16  # turns of a scan inside of another loop whose slices are values
_MOST_ROUNDS = 6
Unrounded = Callable[[Jaxpr], frozenset[Var]]
Store = Callable[[int, Value, LaneArray], None]


class _OtherKindsError(Exception):
    """A loop's carries, or results of branches, have unexpected kinds of dimensions.

    Args:
        arrays: with the kinds that hold all.
    """

    def __init__(self, arrays: list[LaneArray]) -> None:
        super().__init__()
        self.arrays = arrays


class Evaluator:
    """Emits programs of one lane.

    Args:
        lanes: the sizes of the lanes' dimensions.
        unrounded: of a program, the values that may be held with more precision than their dtype.

    Attributes:
        builder: the emitted code so far.
        parameters: values that are passed in, with their meaning.
        numbers: that are passed at run time: the lengths of loops.
        store: ``(output, turn, slice) -> None``, where the outermost loop is a scan, stores the
            slices of its results as they are computed.
    """

    def __init__(self, lanes: Sequence[int], unrounded: Unrounded) -> None:
        self.lanes, self._unrounded_of = tuple(lanes), unrounded
        self.unrounded: set[Var] = set()
        self.builder = FoldingBuilder({})
        self.parameters: dict[tuple[Any, ...], Value] = {}
        self.numbers: list[int] = []
        self.store: Store | None = None
        self._depth = 0

    # --- what comes from outside ---

    def parameter(self, dtype: str, *source: Any) -> Value:
        """The value of an external parameter, the same for the same source."""
        if source not in self.parameters:
            (self.parameters[source],) = self.builder._fresh([dtype])
        return self.parameters[source]

    def element(self, dtype: str, operand: int) -> Element:
        """The operand's element at the lane's index."""
        if dtype in PARTS:
            return Pair(*[self.parameter(PARTS[dtype], "part", operand, k) for k in (0, 1)])
        return self.parameter(compute_dtype(dtype), "element", operand)

    def lane_index(self, lane: int) -> Value:
        """The index of the point along a batch dimension; ops recognize it by identity."""
        return self.parameter("int64", "index", lane)

    def number(self, value: int) -> Value:
        """A number that is passed at run time."""
        self.numbers.append(value)
        return self.parameter("int64", "number", len(self.numbers) - 1)

    # --- memory ---

    def load(
        self, array: MemoryArray | ComputedArray, indices: Sequence[Value],
        where: Value | None = None,
    ) -> Element:  # fmt: skip
        """Load an element of an operand in memory, or of a computed value."""
        if isinstance(array, ComputedArray):
            element = array.element(indices)
            if where is None:
                return element
            return self.builder.select(where, element, self.builder.number(element, 0))
        offset = array.offset
        for d, kind, index in zip(array.dims, array.kinds, indices, strict=True):
            if kind >= 0 and index != self.lane_index(kind):
                raise NotLanesError("it reads what belongs to other lanes")
            if kind < 0:  # the kernel's loops go along the others
                stride = self.parameter("int64", "stride", array.number, d)
                offset = self.sum(offset, index, stride)
        name = f"m{array.number}"
        self.builder.declare(Operand(name, array.dtype, Mode.IN))
        if array.dtype in PARTS:
            return Pair(*[self.builder.load(name, offset, where, part) for part in (0, 1)])
        return self.builder.load(name, offset, where)

    def sum(self, offset: Value | None, index: Value, stride: Value) -> Value | None:
        """An offset with an index times a stride added; None is 0."""
        if self.builder.known(index) == 0:
            return offset
        term = self.builder.apply("mul", index, stride)
        return term if offset is None else self.builder.apply("add", offset, term)

    def values_of(self, array: Array) -> LaneArray:
        """An array as values; one in memory is read."""
        if isinstance(array, LaneArray):
            return array
        sizes = [n for n, kind in zip(array.shape, array.kinds, strict=True) if kind == SMALL]
        check_small(sizes)
        elements = []
        for place in product(*map(range, sizes)):
            rest = iter(place)
            indices = [
                self.builder.const("int64", next(rest)) if kind == SMALL else self.lane_index(kind)
                for kind in array.kinds
            ]
            elements.append(self.load(array, indices))
        return LaneArray(array.shape, array.kinds, object_array(elements, sizes))

    def slice_of(self, array: Array, index: Value, place: int | None) -> Array:
        """One slice along the first dimension; ``place`` is the index where it is known."""
        if isinstance(array, ComputedArray):
            element = array.element
            return ComputedArray(array.shape[1:], lambda rest: element((index, *rest)))
        if isinstance(array, MemoryArray):
            if array.kinds[0] != SMALL:
                raise NotLanesError("it goes over lanes one after the other")
            stride = self.parameter("int64", "stride", array.number, array.dims[0])
            offset = self.sum(array.offset, index, stride)
            return replace(
                array, shape=array.shape[1:], kinds=array.kinds[1:], dims=array.dims[1:],
                offset=offset,
            )  # fmt: skip
        if array.kinds[0] >= 0:
            raise NotLanesError("it goes over lanes one after the other")
        if array.kinds[0] == REPEATED:
            return LaneArray(array.shape[1:], array.kinds[1:], array.items)
        if place is None:
            raise NotLanesError("it goes over values that it computes in a long loop")
        items = array.items[place]
        if not isinstance(items, np.ndarray):
            items = object_array([items], ())
        return LaneArray(array.shape[1:], array.kinds[1:], items)

    # --- programs ---

    def run(
        self, jaxpr: Jaxpr, arguments: Sequence[Array], consts: Sequence[Any] = ()
    ) -> list[Array]:
        """Emit a program."""
        env: dict[Var, Array] = dict(zip(jaxpr.invars, arguments, strict=True))
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            env[var] = self.constant(value, var.aval)

        def read(atom: Any) -> Array:
            return self.constant(atom.value, atom.aval) if type(atom) is Literal else env[atom]

        self.unrounded |= self._unrounded_of(jaxpr)
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
        """An array that is written into the program."""
        if not aval.shape:
            return uniform(self._number(value, aval))
        kinds = small_kinds(aval.shape)
        array = np.asarray(value)
        elements = [self._number(item, aval) for item in array.reshape(-1)]
        return LaneArray(aval.shape, kinds, object_array(elements, aval.shape))

    def _number(self, value: Any, aval: ShapedArray) -> Element:
        storage = storage_of(aval)
        item = np.asarray(value).reshape(())[()]
        if storage in PARTS:
            dtype = PARTS[storage]
            return Pair(
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

    def refused(self, eqn: Eqn) -> list[Array]:
        """Of an op that no kernel holds, the error."""
        raise NotLanesError(
            f"{eqn.primitive.name} is no op of a kernel",
            "do it outside, and give its result to the kernel as an argument",
        )

    def points(self, eqn: Eqn, operands: Sequence[Array]) -> list[Array]:
        """The outputs of an op that kernels compute point by point."""
        return points.emitted(self, eqn, operands)

    def rearranged(self, eqn: Eqn, operand: Array) -> Array:
        """The output of a rearrangement."""
        return ops.layout(self, eqn, operand)

    def product(self, eqn: Eqn, operands: Sequence[Array]) -> list[Array]:
        """The outputs of a library call: products of small matrices."""
        return [ops.product(self, eqn, [self.values_of(operand) for operand in operands])]

    def rounded(self, element: Element, var: Var) -> Element:
        """An element of a variable's value, rounded to its dtype."""
        if isinstance(element, Pair) or var in self.unrounded:
            return element
        return self.builder.round(element, storage_name(var.aval.dtype))

    # --- loops and branches ---

    def lane_form(self, form: LaneForm, operands: Sequence[Array]) -> list[Array]:
        """Batched control flow: batch dimensions are leading dimensions."""
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
                    before = sum(other[k] for other in form.lanes[: len(kinds)])
                    kind = joined_kind(kind, operands[k].kinds[before])
            if kind == SMALL:
                raise NotLanesError("it loops over a small mapped dimension")
            kinds.append(kind)
        inner: list[Array] = []
        for k, operand in enumerate(operands):
            own = [kind for kind, lane in zip(kinds, form.lanes, strict=True) if lane[k]]
            inner.append(self._of_one_lane(operand, own, is_program))
        if is_program:
            indices = [self._index(kind) for kind in kinds[len(kinds) - form.indices :]]
            inner[form.first_index : form.first_index] = indices
        results = form.form.in_lane(self, inner)
        outs: list[Array] = []
        for result in results:
            array = self.values_of(result)
            outs.append(
                LaneArray((*form.sizes, *array.shape), (*kinds, *array.kinds), array.items)
            )
        return outs

    def _of_one_lane(self, operand: Array, own: Sequence[int], in_memory: bool) -> Array:
        """An operand without the first dimensions, which are those of lanes.

        Args:
            operand: of control flow that each lane has for itself.
            own: the lanes that these dimensions are.
            in_memory: values in memory, or computed ones, are read on demand.
        """
        count = len(own)
        if in_memory and isinstance(operand, ComputedArray):
            place = [self.lane_index(lane) for lane in own]
            element = operand.element
            return ComputedArray(operand.shape[count:], lambda rest: element((*place, *rest)))
        if in_memory and isinstance(operand, MemoryArray):
            return replace(
                operand, shape=operand.shape[count:], kinds=operand.kinds[count:],
                dims=operand.dims[count:],
            )  # fmt: skip
        array = self.values_of(operand)
        for kind, lane in zip(array.kinds, own, strict=False):
            if kind not in (lane, REPEATED):
                raise NotLanesError("it loops over a small mapped dimension")
        return LaneArray(array.shape[count:], array.kinds[count:], array.items)

    def _index(self, lane: int) -> LaneArray:
        """The index of the point along lanes, as programs count."""
        index = self.builder.cast(self.lane_index(lane), "int32")
        return uniform(index)

    def _settled(
        self, init: Sequence[Array], emit: Callable[[list[LaneArray]], Sequence[Value]]
    ) -> list[Array]:
        """Emit a loop whose carries keep their kinds; it is emitted again with those they get.

        Args:
            init: initial values of the carries.
            emit: the loop with such carries; its results.
        """
        carry = [self.values_of(array) for array in init]
        for _ in range(_MOST_ROUNDS):
            count = len(self.numbers)
            try:
                return list(_restored(emit(carry), carry))
            except _OtherKindsError as other:
                carry = [with_kinds(a, b) for a, b in zip(carry, other.arrays, strict=True)]
                del self.numbers[count:]
        raise NotLanesError("its carries change from turn to turn")

    def while_loop(self, form: WhileForm, operands: Sequence[Array]) -> list[Array]:
        """A loop as long as its condition holds."""
        first, second = form.num_condition_consts, form.num_body_consts
        test, consts = operands[:first], operands[first : first + second]

        def step(carry: Sequence[LaneArray]) -> list[Array]:
            return self.run(form.body.jaxpr, [*consts, *carry], form.body.consts)

        def emit(carry: list[LaneArray]) -> Sequence[Value]:
            def condition(*values: Value) -> Value:
                arrays = _restored(values, carry)
                (going,) = self.run(form.condition.jaxpr, [*test, *arrays], form.condition.consts)
                return _scalar(self.values_of(going))

            def body(*values: Value) -> list[Value]:
                return self._flat(step(_restored(values, carry)), carry)

            return self.builder.while_loop(self._flat(carry, carry), condition, body)

        return self._settled(operands[first + second :], emit)

    def _flat(self, arrays: Sequence[Array], like: Sequence[LaneArray]) -> list[Value]:
        """The values of arrays, with elements for each small dimension of others.

        Raises:
            _OtherKindsError: the others need more of them.
        """
        merged = [with_kinds(b, self.values_of(a)) for a, b in zip(arrays, like, strict=True)]
        if any(a.kinds != b.kinds for a, b in zip(merged, like, strict=True)):
            raise _OtherKindsError(merged)
        values: list[Value] = []
        for array, wanted in zip(arrays, like, strict=True):
            have = self.values_of(array)
            sizes = wanted.items.shape
            index = tuple(
                (slice(None) if have.kinds[d] == SMALL else None)
                for d in wanted.small
            )
            items = np.broadcast_to(have.items[index], sizes)
            values += flattened(list(items.reshape(-1)))
        return values

    def scan(self, form: ScanForm, operands: Sequence[Array]) -> list[Array]:
        """A loop of known length; the outermost one stores its slices of results."""
        store = None if self._depth else self.store
        first, count, length = form.num_consts, form.num_carry, form.length
        consts, init = operands[:first], operands[first : first + count]
        xs = operands[first + count :]
        slices = len(form.body.out_avals) - count
        builder, jaxpr = self.builder, form.body

        def step(carry: Sequence[LaneArray], index: Value, place: int | None = None) -> list[Array]:
            x = [self.slice_of(array, index, place) for array in xs]
            return self.run(jaxpr.jaxpr, [*consts, *carry, *x], jaxpr.consts)

        if store is None and (slices or any(isinstance(x, LaneArray) for x in xs)):
            return self._unrolled(form, init, step)
        turns = self.number(length)

        def emit(carry: list[LaneArray]) -> Sequence[Value]:
            def body(counter: Value, *values: Value) -> list[Value]:
                index = counter
                if form.reverse:
                    last = builder.apply("sub", turns, builder.const("int64", 1))
                    index = builder.apply("sub", last, counter)
                results = step(_restored(values, carry), index)
                for k, array in enumerate(results[count:], count):
                    assert store is not None
                    store(k, index, self.values_of(array))
                return self._flat(results[:count], carry)

            return builder.for_count(turns, self._flat(carry, carry), body, is_long=True)

        return self._settled(init, emit)

    def _unrolled(
        self, form: ScanForm, init: Sequence[Array],
        step: Callable[[Sequence[LaneArray], Value, int], list[Array]],
    ) -> list[Array]:  # fmt: skip
        """A short scan, turn by turn, with its slices as values."""
        if form.length > MOST_UNROLLED:
            raise NotLanesError(
                "an inner loop has slices of its own, and is long",
                f"let a scan of more than {MOST_UNROLLED} turns return its carry alone, or let the "
                "grid have an index for each of its results",
            )
        carry = [self.values_of(array) for array in init]
        turns: dict[int, list[LaneArray]] = {}
        order = range(form.length)
        for place in reversed(order) if form.reverse else order:
            results = step(carry, self.builder.const("int64", place), place)
            results = [self.values_of(array) for array in results]
            carry, turns[place] = results[: len(carry)], results[len(carry) :]
        ys = []
        for k, aval in enumerate(form.body.out_avals[len(carry) :]):
            rows = [turns[place][k] for place in order]
            if not rows:
                shape = (0, *aval.shape)
                ys.append(LaneArray(shape, small_kinds(shape), np.empty(shape, object)))
                continue
            kinds = rows[0].kinds
            for row in rows[1:]:
                kinds = tuple(map(joined_kind, kinds, row.kinds))
            like = LaneArray(rows[0].shape, kinds, broadcast(rows[0], kinds))
            items = [broadcast(row, kinds).reshape(-1) for row in rows]
            elements = [element for row in items for element in row]
            check_small([len(elements)])
            shape = (form.length, *aval.shape)
            ys.append(
                LaneArray(
                    shape, (SMALL, *kinds),
                    object_array(elements, (form.length, *like.items.shape)),
                )
            )  # fmt: skip
        return [*carry, *ys]

    def branch(self, branches: Sequence[Any], operands: Sequence[Array]) -> list[Array]:
        """One of several programs, chosen by the first operand."""
        index, *rest = operands
        which = _scalar(self.values_of(index))
        like: list[LaneArray] | None = None

        def results(number: int) -> list[Value]:
            nonlocal like
            program = branches[number]
            outs = [self.values_of(x) for x in self.run(program.jaxpr, rest, program.consts)]
            like = outs if like is None else like
            return self._flat(outs, like)

        def chosen(number: int) -> list[Value]:
            if number == len(branches) - 1:
                return results(number)
            builder = self.builder
            at = builder.const(which.dtype, number)
            # An index out of range chooses the nearest branch.
            is_it = builder.apply("le" if number == 0 else "eq", which, at)
            then, orelse = lambda: results(number), lambda: chosen(number + 1)
            return list(builder.if_(is_it, then, orelse))

        for _ in range(_MOST_ROUNDS):
            count = len(self.numbers)
            try:
                values = chosen(0)
                assert like is not None
                return list(_restored(values, like))
            except _OtherKindsError as other:
                like = other.arrays
                del self.numbers[count:]
        raise NotLanesError("its branches differ")


def _scalar(array: LaneArray) -> Value:
    """The value of a single number, whichever lanes repeat it."""
    if array.items.shape:
        raise NotLanesError("its condition is no single truth value for each lane")
    element = array.items[()]
    assert isinstance(element, Value)
    return element


def _restored(values: Sequence[Value], like: Sequence[LaneArray]) -> list[LaneArray]:
    """Arrays made of values, in the form of others."""
    arrays, place = [], 0
    for array in like:
        elements = array.flat()
        count = len(flattened(elements))
        arrays.append(array.with_items(joined(values[place : place + count], elements)))
        place += count
    return arrays

