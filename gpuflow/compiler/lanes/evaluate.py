"""From a program to the statements of one of its lanes.

The equations of a program are emitted for one lane, element by element: what goes on between
elements of a small array becomes arithmetic of values, loops and branches become While, For and If.
An equation is understood by the class of its ``lower``; one that is not, or that lets lanes see
each other, ends the attempt with NotLanesError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from gpuflow.base.dtypes import is_complex
from gpuflow.base.records import record
from gpuflow.compiler.lanes.arrays import (
    REPEATED,
    SMALL,
    Element,
    LaneArray,
    NotLanesError,
    check_small,
    joined_kind,
    mapped,
    object_array,
    small_kinds,
    uniform,
    viewed,
)
from gpuflow.compiler.lanes.folding import FoldingBuilder, flattened, joined
from gpuflow.core import views
from gpuflow.core.aval import ShapedArray, storage_dtype, storage_name
from gpuflow.core.blocks import Product
from gpuflow.core.jaxpr import Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering import (
    Branch,
    Elementwise,
    Indexed,
    Inline,
    LaneForm,
    Layout,
    Library,
    Loop,
    Reduction,
    ScanForm,
    TupleReduction,
    WhileForm,
    block_of,
)
from gpuflow.kir.builder import Pair
from gpuflow.kir.nodes import Mode, Operand, Value
from gpuflow.kir.scalar import COMPUTE_DTYPES, NARROW_DTYPES, PARTS, compute_dtype

MOST_UNROLLED = 16  # turns of a scan inside of another loop whose slices are values
_MOST_ROUNDS = 6


@record(eq=False)
class MemoryArray:
    """An operand that is read from memory when it is wanted.

    Attributes:
        number: of the operand.
        dtype: storage.
        shape: of what is left of it.
        kinds: as of a LaneArray; SMALL for all dimensions that are none of lanes.
        dims: the operand's dimensions that are left.
        offset: elements from its start; None: none.
    """

    number: int
    dtype: str
    shape: tuple[int, ...]
    kinds: tuple[int, ...]
    dims: tuple[int, ...]
    offset: Value | None = None


Array = LaneArray | MemoryArray


@record(eq=False)
class Stored:
    """Where a scan's slices of results go: into memory, as they are made."""

    store: Callable[[int, Value, LaneArray], None]


class Evaluator:
    """Emits programs of one lane.

    Args:
        lanes: the sizes of the lanes' dimensions.

    Attributes:
        builder: what has been emitted.
        parameters: values that are given from outside, with what they are.
        numbers: that are passed at run time: the lengths of loops.
    """

    def __init__(self, lanes: Sequence[int]) -> None:
        self.lanes = tuple(lanes)
        self.builder = FoldingBuilder({})
        self.parameters: dict[tuple[Any, ...], Value] = {}
        self.numbers: list[int] = []
        self._emitted = 0

    # --- what comes from outside ---

    def parameter(self, dtype: str, *source: Any) -> Value:
        """The value that stands for something outside, the same for the same source."""
        if source not in self.parameters:
            (self.parameters[source],) = self.builder._fresh([dtype])
        return self.parameters[source]

    def element(self, dtype: str, operand: int) -> Element:
        """The operand's element at the lane's index."""
        if dtype in PARTS:
            return Pair(*[self.parameter(PARTS[dtype], "part", operand, k) for k in (0, 1)])
        return self.parameter(compute_dtype(dtype), "element", operand)

    def lane_index(self, lane: int) -> Value:
        """The index of the point along a dimension of lanes; ops tell it by its identity."""
        return self.parameter("int64", "index", lane)

    def number(self, value: int) -> Value:
        """A number that is passed at run time."""
        self.numbers.append(value)
        return self.parameter("int64", "number", len(self.numbers) - 1)

    # --- memory ---

    def load(
        self, array: MemoryArray, indices: Sequence[Value], where: Value | None = None
    ) -> Element:
        """An element of an operand in memory."""
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

    def run(self, jaxpr: Jaxpr, arguments: Sequence[Array], consts: Sequence[Any] = ()) -> list[Array]:
        """Emit a program."""
        env: dict[Var, Array] = dict(zip(jaxpr.invars, arguments, strict=True))
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            env[var] = self._constant(value, var.aval)

        def read(atom: Any) -> Array:
            return self._constant(atom.value, atom.aval) if type(atom) is Literal else env[atom]

        for eqn in jaxpr.eqns:
            results = self._equation(eqn, [read(atom) for atom in eqn.inputs])
            env.update(zip(eqn.outputs, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _constant(self, value: Any, aval: ShapedArray) -> LaneArray:
        if not aval.shape:
            return uniform(self._number(value, aval))
        kinds = small_kinds(aval.shape)
        array = np.asarray(value)
        elements = [self._number(item, aval) for item in array.reshape(-1)]
        return LaneArray(aval.shape, kinds, object_array(elements, aval.shape))

    def _number(self, value: Any, aval: ShapedArray) -> Element:
        storage = _storage(aval)
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
            _storage(var.aval)
        if isinstance(rule, Inline):
            form = None if rule.lanes is None else rule.lanes(eqn.params)
            if form is not None:
                return self.lane_form(form, operands)
            inner = rule.jaxpr(eqn.params)
            return self.run(inner.jaxpr, operands, inner.consts)
        if isinstance(rule, Loop):
            return self.loop(rule.form(eqn.params), operands)
        if isinstance(rule, Branch):
            return self.branch(rule.branches(eqn.params), operands)
        if isinstance(rule, Indexed):
            return self._indexed(eqn, rule, operands)
        arrays = [self.values_of(operand) for operand in operands]
        if isinstance(rule, Elementwise):
            return self._elementwise(eqn, rule, arrays)
        if isinstance(rule, Layout):
            return [self._layout(eqn, rule, arrays[0])]
        if isinstance(rule, Reduction):
            return [self._reduction(eqn, rule, arrays[0])]
        if isinstance(rule, TupleReduction):
            return [self._tuple_reduction(eqn, rule, arrays[0])]
        if isinstance(rule, Library):
            return [self._product(eqn, arrays)]
        raise NotLanesError(f"{eqn.primitive.name} is no op of a kernel")

    def _rounded(self, element: Element, aval: ShapedArray) -> Element:
        if isinstance(element, Pair):
            return element
        return self.builder.round(element, storage_name(aval.dtype))

    # --- ops ---

    def _elementwise(
        self, eqn: Eqn, rule: Elementwise, arrays: Sequence[LaneArray]
    ) -> list[LaneArray]:
        ins, out = [atom.aval for atom in eqn.inputs], eqn.outputs[0].aval
        if rule.holds is not None and not rule.holds(*ins, out):
            raise NotLanesError(f"kernels do not hold {eqn.primitive.name} of these")
        complex_ = any(is_complex(atom.aval.dtype) for atom in (*eqn.inputs, *eqn.outputs))
        body = rule.pair if complex_ else rule.body
        if body is None:
            raise NotLanesError(f"kernels do not hold {eqn.primitive.name} of complex numbers")
        kinds, expanded = mapped(lambda: None, arrays, out.shape)
        sizes = tuple(n for n, kind in zip(out.shape, kinds, strict=True) if kind == SMALL)
        check_small(sizes)
        results: list[list[Element]] = [[] for _ in eqn.outputs]
        for index in np.ndindex(*sizes):
            values = [items[index] for items in expanded]
            if isinstance(body, str):
                emitted = self.builder.apply(body, *values)
            else:
                emitted = body(self.builder, values, ins, out, eqn.params)
            parts = (emitted,) if isinstance(emitted, Element) else emitted
            for result, var, part in zip(results, eqn.outputs, parts, strict=True):
                result.append(self._rounded(part, var.aval))
        return [LaneArray(out.shape, kinds, object_array(result, sizes)) for result in results]

    def _layout(self, eqn: Eqn, rule: Layout, array: LaneArray) -> LaneArray:
        out = eqn.outputs[0].aval
        view = rule.view(views.contiguous(array.shape), out, **eqn.params)
        if view is None:
            raise NotLanesError(f"{eqn.primitive.name} copies")
        return viewed(array, out.shape, view)

    def _reduced(self, array: LaneArray, axes: Sequence[int]) -> tuple[LaneArray, np.ndarray]:
        """The shape of a reduction, with items (kept..., reduced)."""
        for d in axes:
            if array.kinds[d] >= 0:
                raise NotLanesError("it reduces over lanes")
        kinds = tuple(
            SMALL if d in axes else kind for d, kind in enumerate(array.kinds)
        )
        sizes = [n for n, kind in zip(array.shape, kinds, strict=True) if kind == SMALL]
        check_small(sizes)
        index = tuple(
            slice(None) if array.kinds[d] == SMALL else None
            for d, kind in enumerate(kinds) if kind == SMALL
        )
        items = np.broadcast_to(array.items[index], sizes)
        small = [d for d, kind in enumerate(kinds) if kind == SMALL]
        kept = [k for k, d in enumerate(small) if d not in axes]
        gone = [k for k, d in enumerate(small) if d in axes]
        count = prod(sizes[k] for k in gone)
        items = items.transpose((*kept, *gone)).reshape((*[sizes[k] for k in kept], count))
        dims = [d for d in range(len(array.shape)) if d not in axes]
        shape = tuple(array.shape[d] for d in dims)
        like = LaneArray(shape, tuple(kinds[d] for d in dims), items[..., :0])
        return like, items

    def _reduction(self, eqn: Eqn, rule: Reduction, array: LaneArray) -> LaneArray:
        like, items = self._reduced(array, tuple(eqn.params["axes"]))
        dtype = eqn.inputs[0].aval.dtype
        storage = _storage(eqn.inputs[0].aval)
        start = self.builder.const(compute_dtype(storage), rule.init(storage_dtype(dtype)))
        if storage in PARTS and not rule.by_parts:
            raise NotLanesError(f"kernels do not hold {eqn.primitive.name} of complex numbers")

        def total(elements: Sequence[Element]) -> Element:
            if storage in PARTS:
                parts = zip(*[(e.real, e.imag) for e in elements], strict=True)
                sums = [_fold(self.builder, rule.combine, start, part) for part in parts]
                return Pair(*sums) if sums else Pair(start, start)
            return _fold(self.builder, rule.combine, start, elements)

        sizes, out = items.shape[:-1], eqn.outputs[0].aval
        elements = [self._rounded(total(list(items[i])), out) for i in np.ndindex(*sizes)]
        return LaneArray(like.shape, like.kinds, object_array(elements, sizes))

    def _tuple_reduction(
        self, eqn: Eqn, rule: TupleReduction, array: LaneArray
    ) -> LaneArray:
        like, items = self._reduced(array, tuple(eqn.params["axes"]))
        builder, in_aval, out = self.builder, eqn.inputs[0].aval, eqn.outputs[0].aval
        elements = []
        for index in np.ndindex(*items.shape[:-1]):
            running = list(rule.init(builder, in_aval, eqn.params))
            for place, element in enumerate(items[index]):
                new = rule.element(builder, element, builder.const("int64", place), eqn.params)
                running = list(rule.combine(builder, *running, *new))
            elements.append(self._rounded(rule.result(builder, running, out), out))
        return LaneArray(like.shape, like.kinds, object_array(elements, items.shape[:-1]))

    def _product(self, eqn: Eqn, arrays: Sequence[LaneArray]) -> LaneArray:
        """A product of small matrices, in the order of its sums."""
        block = block_of(eqn)
        out = eqn.outputs[0].aval
        if not isinstance(block, Product) or is_complex(out.dtype):
            raise NotLanesError(f"{eqn.primitive.name} is a call of a library")
        left, right = arrays
        batch, rows, depth = block.left
        right_batch, right_depth, columns = block.right
        for array, dims in ((left, depth), (right, right_depth)):
            if any(array.kinds[d] >= 0 for d in dims):
                raise NotLanesError("it sums over lanes")
        sources = [
            *zip(batch, right_batch, strict=True),
            *[(d, None) for d in rows], *[(None, d) for d in columns],
        ]  # fmt: skip
        kinds, sizes = [], []
        for a, b in sources:
            kind = REPEATED
            for array, d in ((left, a), (right, b)):
                if d is not None:
                    kind = joined_kind(kind, array.kinds[d])
            kinds.append(kind)
            if kind == SMALL:
                sizes.append(left.shape[a] if a is not None else right.shape[b])
        depths = [left.shape[d] for d in depth]
        check_small([*sizes, *depths])
        storage = storage_name(out.dtype)
        dtype = compute_dtype(storage)
        start = self.builder.const(dtype, 0)
        elements = []
        for index in product(*map(range, sizes)):
            rest, place = iter(index), []
            for kind in kinds:
                place.append(next(rest) if kind == SMALL else 0)
            total: Value | None = None
            for deep in product(*map(range, depths)):
                at_left, at_right = dict(zip(depth, deep, strict=True)), dict(
                    zip(right_depth, deep, strict=True)
                )
                for (a, b), i in zip(sources, place, strict=True):
                    if a is not None:
                        at_left[a] = i
                    if b is not None:
                        at_right[b] = i
                x = self.builder.cast(_item(left, at_left), dtype)
                y = self.builder.cast(_item(right, at_right), dtype)
                term = self.builder.apply("mul", x, y)
                total = term if total is None else self.builder.apply("add", total, term)
            elements.append(self._rounded(start if total is None else total, out))
        return LaneArray(out.shape, tuple(kinds), object_array(elements, sizes))

    def _indexed(self, eqn: Eqn, rule: Indexed, operands: Sequence[Array]) -> list[LaneArray]:
        out, avals = eqn.outputs[0].aval, [atom.aval for atom in eqn.inputs]
        if any(is_complex(a.aval.dtype) for a in (*eqn.inputs, *eqn.outputs)) and not rule.moves:
            raise NotLanesError(f"kernels do not hold {eqn.primitive.name} of complex numbers")
        kinds = self._indexed_kinds(eqn, rule, operands)
        sizes = tuple(n for n, kind in zip(out.shape, kinds, strict=True) if kind == SMALL)
        check_small(sizes)
        results: list[list[Element]] = [[] for _ in eqn.outputs]
        for index in np.ndindex(*sizes):
            context = _Context(self, eqn, rule, operands, kinds, index)
            emitted = rule.body(context, avals, out, eqn.params)
            parts = (emitted,) if isinstance(emitted, Element) else emitted
            for result, var, part in zip(results, eqn.outputs, parts, strict=True):
                result.append(self._rounded(part, var.aval))
        return [LaneArray(out.shape, kinds, object_array(result, sizes)) for result in results]

    def _indexed_kinds(
        self, eqn: Eqn, rule: Indexed, operands: Sequence[Array]
    ) -> tuple[int, ...]:
        """The kinds of an output's dimensions: those along which operands are lanes are, too."""
        out, avals = eqn.outputs[0].aval, [atom.aval for atom in eqn.inputs]
        links = None
        if rule.apart is not None:
            links = rule.apart(avals, out, eqn.params)
        if links is None:
            in_memory = len(operands) if rule.in_memory is None else rule.in_memory
            links = [
                [] if k < in_memory else [(d, d) for d in range(aval.ndim)]
                for k, aval in enumerate(avals)
            ]
        kinds = [SMALL] * out.ndim
        for array, pairs in zip(operands, links, strict=False):
            for d, axis in pairs:
                if axis < out.ndim and array.kinds[d] >= 0:
                    if kinds[axis] not in (SMALL, array.kinds[d]):
                        raise NotLanesError("it mixes lanes")
                    kinds[axis] = array.kinds[d]
        return tuple(kinds)

    # --- loops and branches ---

    def lane_form(self, form: LaneForm, operands: Sequence[Array]) -> list[Array]:
        """Control flow of which each lane has its own: dimensions of lanes stand in front."""
        kinds: list[int] = []
        for lane in form.lanes:
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
            count = sum(lane[k] for lane in form.lanes)
            if isinstance(operand, MemoryArray):
                operand = self.values_of(operand)
            inner.append(
                LaneArray(operand.shape[count:], operand.kinds[count:], operand.items)
            )
        if isinstance(form.form, WhileForm):
            results = self.loop(form.form, inner)
        else:
            results = self.branch(form.form, inner)
        outs: list[Array] = []
        for result in results:
            array = self.values_of(result)
            outs.append(
                LaneArray((*form.sizes, *array.shape), (*kinds, *array.kinds), array.items)
            )
        return outs

    def loop(
        self, form: ScanForm | WhileForm, operands: Sequence[Array], stored: Stored | None = None
    ) -> list[Array]:
        """A loop; a scan's slices of results go where ``stored`` says."""
        if isinstance(form, WhileForm):
            return self._while(form, operands)
        return self._scan(form, operands, stored)

    def _carried(
        self, init: Sequence[Array], step: Callable[[list[LaneArray]], Sequence[Array]]
    ) -> list[LaneArray]:
        """The initial carries with the kinds that they have after any number of steps."""
        carry = [self.values_of(array) for array in init]
        for _ in range(_MOST_ROUNDS):
            results = self._tried(carry, step)
            merged = [_with_kinds(a, b) for a, b in zip(carry, results, strict=True)]
            if all(a.kinds == b.kinds for a, b in zip(merged, carry, strict=True)):
                return carry
            carry = merged
        raise NotLanesError("its carries change from turn to turn")

    def _tried(
        self, carry: Sequence[LaneArray], step: Callable[[list[LaneArray]], Sequence[Array]]
    ) -> list[LaneArray]:
        """What a step gives, with nothing emitted."""
        builder = self.builder
        depth, numbers = len(builder._scopes), len(self.numbers)
        results: list[LaneArray] = []

        def body() -> None:
            fresh = [self._fresh_like(array) for array in carry]
            results.extend(self.values_of(array) for array in step(fresh))

        builder._block((), body)
        assert len(builder._scopes) == depth
        del self.numbers[numbers:]
        return results

    def _fresh_like(self, array: LaneArray) -> LaneArray:
        elements = array.flat()
        values = self.builder._fresh([v.dtype for v in flattened(elements)])
        return array.with_items(joined(values, elements))

    def _while(self, form: WhileForm, operands: Sequence[Array]) -> list[Array]:
        first, second = form.num_condition_consts, form.num_body_consts
        test, consts = operands[:first], operands[first : first + second]

        def step(carry: Sequence[LaneArray]) -> list[Array]:
            return self.run(form.body.jaxpr, [*consts, *carry], form.body.consts)

        carry = self._carried(operands[first + second :], step)

        def condition(*values: Value) -> Value:
            arrays = _restored(values, carry)
            (going,) = self.run(form.condition.jaxpr, [*test, *arrays], form.condition.consts)
            return _scalar(self.values_of(going))

        def body(*values: Value) -> list[Value]:
            return self._flat(step(_restored(values, carry)), carry)

        results = self.builder.while_loop(self._flat(carry, carry), condition, body)
        return list(_restored(results, carry))

    def _flat(self, arrays: Sequence[Array], like: Sequence[LaneArray]) -> list[Value]:
        """The values of arrays, with elements for each small dimension of others."""
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

    def _scan(
        self, form: ScanForm, operands: Sequence[Array], stored: Stored | None
    ) -> list[Array]:
        first, count, length = form.num_consts, form.num_carry, form.length
        consts, init, xs = operands[:first], operands[first : first + count], operands[first + count :]
        slices = len(form.body.out_avals) - count
        builder, jaxpr = self.builder, form.body

        def step(carry: Sequence[LaneArray], index: Value, place: int | None = None) -> list[Array]:
            x = [self.slice_of(array, index, place) for array in xs]
            return self.run(jaxpr.jaxpr, [*consts, *carry, *x], jaxpr.consts)

        if stored is None and (slices or any(isinstance(x, LaneArray) for x in xs)):
            return self._unrolled(form, init, step)
        zero = builder.const("int64", 0)
        carry = self._carried(init, lambda values: step(values, zero)[:count])
        turns = self.number(length)

        def body(counter: Value, *values: Value) -> list[Value]:
            index = counter
            if form.reverse:
                last = builder.apply("sub", turns, builder.const("int64", 1))
                index = builder.apply("sub", last, counter)
            results = step(_restored(values, carry), index)
            for k, array in enumerate(results[count:]):
                assert stored is not None
                stored.store(k, index, self.values_of(array))
            return self._flat(results[:count], carry)

        results = builder.for_count(turns, self._flat(carry, carry), body)
        return list(_restored(results, carry))

    def _unrolled(
        self, form: ScanForm, init: Sequence[Array],
        step: Callable[[Sequence[LaneArray], Value, int], list[Array]],
    ) -> list[Array]:  # fmt: skip
        """A short scan, turn by turn, with its slices as values."""
        if form.length > MOST_UNROLLED:
            raise NotLanesError("an inner loop has slices of its own, and is long")
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
                ys.append(LaneArray((0, *aval.shape), small_kinds((0, *aval.shape)), np.empty((0, *aval.shape), object)))
                continue
            kinds = rows[0].kinds
            for row in rows[1:]:
                kinds = tuple(map(joined_kind, kinds, row.kinds))
            like = _with_kinds_as(rows[0], kinds)
            items = [_broadcast(row, kinds).reshape(-1) for row in rows]
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
        arrays = [
            self.values_of(x) if isinstance(x, LaneArray) else x for x in rest
        ]
        results = [self._tried([], lambda _, b=b: self.run(b.jaxpr, arrays, b.consts)) for b in branches]
        like = results[0]
        for other in results[1:]:
            like = [_with_kinds(a, b) for a, b in zip(like, other, strict=True)]

        def chosen(number: int) -> list[Value]:
            if number == len(branches) - 1:
                program = branches[number]
                return self._flat(self.run(program.jaxpr, arrays, program.consts), like)
            builder = self.builder
            at = builder.const(which.dtype, number)
            # An index out of range chooses the nearest branch.
            fn = "le" if number == 0 else "eq"

            def then() -> list[Value]:
                program = branches[number]
                return self._flat(self.run(program.jaxpr, arrays, program.consts), like)

            return list(builder.if_(builder.apply(fn, which, at), then, lambda: chosen(number + 1)))

        return list(_restored(chosen(0), like))


class _Context:
    """What the body of an ``Indexed`` op may ask for, see compiler/lowering/emit.py."""

    def __init__(
        self, evaluator: Evaluator, eqn: Eqn, rule: Indexed, operands: Sequence[Array],
        kinds: Sequence[int], place: tuple[int, ...],
    ) -> None:  # fmt: skip
        self._of, self._eqn, self._rule, self._operands = evaluator, eqn, rule, operands
        self._kinds = tuple(kinds)
        rest = iter(place)
        self._place = [next(rest) if kind == SMALL else None for kind in kinds]
        self.builder = evaluator.builder

    def index(self, dim: int) -> Value:
        kind, place = self._kinds[dim], self._place[dim]
        return self.builder.const("int64", place) if place is not None else self._of.lane_index(kind)

    def linear_index(self, first_dim: int = 0) -> Value:
        shape = self._eqn.outputs[0].aval.shape
        if any(kind >= 0 for kind in self._kinds[first_dim:]):
            raise NotLanesError("it counts over lanes")
        strides = views.contiguous(shape[first_dim:]).strides
        places = zip(self._place[first_dim:], strides, strict=True)
        return self.builder.const("int64", sum((p or 0) * s for p, s in places))

    def number(self, k: int) -> Value:
        assert self._rule.numbers is not None
        avals = [atom.aval for atom in self._eqn.inputs]
        numbers = self._rule.numbers([*avals], self._eqn.params)
        return self.builder.const("int64", int(numbers[k]))

    def border(self, dim: int, k: int) -> Value:
        del dim
        return self.number(k)

    def load(
        self, operand: int, indices: Sequence[Value], where: Value | None = None
    ) -> Element:
        array = self._operands[operand]
        if isinstance(array, MemoryArray):
            return self._of.load(array, list(indices), where)
        builder, choices = self.builder, []
        for d, (kind, index) in enumerate(zip(array.kinds, indices, strict=True)):
            if kind >= 0:
                if index != self._of.lane_index(kind):
                    raise NotLanesError("it reads what belongs to other lanes")
            elif kind == SMALL:
                known = builder.known(index)
                choices.append((index, [known] if known is not None else range(array.shape[d])))
        known_where = None if where is None else builder.known(where)
        dtype = storage_name(self._eqn.inputs[operand].aval.dtype)
        if known_where == 0 or not array.items.size:
            return _zero(builder, dtype)

        def pick(level: int, place: tuple[int, ...]) -> Element:
            if level == len(choices):
                return array.items[place]
            index, candidates = choices[level]
            inside = [k for k in candidates if 0 <= k < array.items.shape[level]]
            if not inside:
                return _zero(builder, dtype)
            *others, last = inside
            result = pick(level + 1, (*place, last))
            for k in reversed(others):
                is_it = builder.apply("eq", index, builder.const(index.dtype, k))
                result = builder.select(is_it, pick(level + 1, (*place, k)), result)
            return result

        element = pick(0, ())
        if where is None or known_where:
            return element
        return builder.select(where, element, _zero(builder, dtype))

    def element(self, operand: int, dims: Sequence[int]) -> Element:
        return self.load(operand, [self.index(d) for d in dims])


def _zero(builder: FoldingBuilder, dtype: str) -> Element:
    if dtype in PARTS:
        zero = builder.const(PARTS[dtype], 0.0)
        return Pair(zero, zero)
    kind = bool if dtype == "bool" else (float if "float" in dtype else int)
    return builder.const(compute_dtype(dtype), kind(0))


def _storage(aval: ShapedArray) -> str:
    name = storage_name(aval.dtype)
    if name not in (*COMPUTE_DTYPES, *NARROW_DTYPES, *PARTS):
        raise NotLanesError(f"kernels do not hold {aval.dtype}")
    return name


def _fold(builder: FoldingBuilder, fn: str, start: Value, elements: Sequence[Value]) -> Value:
    if not elements:
        return start
    total = elements[0]
    for element in elements[1:]:
        total = builder.apply(fn, total, element)
    return total


def _item(array: LaneArray, at: dict[int, int]) -> Value:
    return array.items[tuple(at[d] for d in array.small)]


def _scalar(array: LaneArray) -> Value:
    """The value of a single number, whichever lanes repeat it."""
    if array.items.shape:
        raise NotLanesError("its condition is no single truth value for each lane")
    element = array.items[()]
    assert isinstance(element, Value)
    return element


def _with_kinds_as(array: LaneArray, kinds: tuple[int, ...]) -> LaneArray:
    return LaneArray(array.shape, kinds, _broadcast(array, kinds))


def _broadcast(array: LaneArray, kinds: Sequence[int]) -> np.ndarray:
    """The items along all dimensions that are small in ``kinds``."""
    small = [d for d, kind in enumerate(kinds) if kind == SMALL]
    sizes = [array.shape[d] for d in small]
    check_small(sizes)
    index = tuple(slice(None) if array.kinds[d] == SMALL else None for d in small)
    return np.broadcast_to(array.items[index], sizes)


def _with_kinds(array: LaneArray, other: LaneArray) -> LaneArray:
    """An array with the dimensions that it has together with another of its shape."""
    kinds = tuple(map(joined_kind, array.kinds, other.kinds))
    return array if kinds == array.kinds else _with_kinds_as(array, kinds)


def _restored(values: Sequence[Value], like: Sequence[LaneArray]) -> list[LaneArray]:
    """Arrays made of values, in the form of others."""
    arrays, place = [], 0
    for array in like:
        elements = array.flat()
        count = len(flattened(elements))
        arrays.append(array.with_items(joined(values[place : place + count], elements)))
        place += count
    return arrays
