"""Making recipes: where the words of a kernel that was just lowered come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from gpuflow.compiler.fusion.space import Key, Program, Space
from gpuflow.compiler.lowering.access import Access, read_access, write_access
from gpuflow.compiler.lowering.index_sizes import ask_sizes
from gpuflow.compiler.lowering.lower import KernelCall, Lowered, Use
from gpuflow.compiler.lowering.recipes import Conditions, Recipe
from gpuflow.compiler.lowering.word_sources import Source, Sources, Symbols
from gpuflow.core.aval import storage_dtype
from gpuflow.core.jaxpr import Jaxpr, Literal, Var
from gpuflow.core.lowering import Indexed, TupleReduction, Update
from gpuflow.core.views import contiguous
from gpuflow.kir.nodes import Mode, arguments


class NoRecipeError(Exception):
    """A word of a kernel comes from something that recipes do not know."""


def make_recipe(
    program: Program, space: Space, lowered: Lowered, made: tuple[Use, KernelCall],
    symbols: Symbols, sources: Sources,
) -> Recipe | None:  # fmt: skip
    """The recipe of a group that was just lowered, or None; ``made`` is what came of it."""
    try:
        return _Maker(program, space, lowered, symbols, sources).recipe(*made)
    except NoRecipeError:
        return None


class _Maker:
    def __init__(
        self, program: Program, space: Space, lowered: Lowered, symbols: Symbols, sources: Sources
    ) -> None:
        self.program, self.space = program, space
        self.kernel, self.operands, self.axes = lowered.kernel, lowered.operands, lowered.axes
        self.sources = sources
        self.symbol_of = {size: k for k, size in enumerate(symbols.sizes)}
        self.equal: list[tuple[int, int]] = []
        self.repeats: list[tuple[int, int, tuple[bool, ...]]] = []
        self.strides: dict[str, dict[Key, Source]] = {}
        self.pointers: dict[str, Source] = {}
        self.traces: list[tuple[int, tuple[Any, ...]]] = []
        self.slots = {name: key for key, name in self.operands.names.items()}

    def recipe(self, use: Use, call: KernelCall) -> Recipe:
        for e in self.space.members:
            eqn = self.program.jaxpr.eqns[e]
            rule = eqn.primitive.lower
            if isinstance(rule, Update):
                raise NoRecipeError
            if isinstance(rule, Indexed):
                self._indexed(e)
            if isinstance(rule, TupleReduction):
                # Elements are told where they are along the axes that are reduced.
                iteration = self.program.iterations[e]
                assert iteration is not None
                keys = [self.space.classes[e, dim] for dim in iteration.reduced]
                self._counted({key: (1, ("constant", 1)) for key in keys})
            for k, atom in enumerate(eqn.inputs):
                if type(atom) is Var and self.program.producer.get(atom) not in self.space.members:
                    self._read(e, k, atom)
        for var in self.space.escaping:
            self._written(var)
        return Recipe(
            use,
            tuple(self.sources.number(self._word(argument)) for argument in arguments(use.kernel)),
            call.buffers,
            self._product(self._parallel()),
            self._product(self.space.order),
            Conditions(
                self._exact(),
                tuple(dict.fromkeys(self.equal)),
                tuple(dict.fromkeys(self._joined())),
                tuple(dict.fromkeys(self._units())),
                tuple(dict.fromkeys(self.repeats)),
                tuple(self.traces),
            ),
        )

    def _indexed(self, e: int) -> None:
        """Indices that an op counts in, and elements that it reads at its own index."""
        trace = ask_sizes(self.program.jaxpr, e, self.program.views).trace
        self.traces.append((e, trace))
        eqn = self.program.jaxpr.eqns[e]
        keys, shape = self.space.axes_of_output(self.program, e), eqn.outputs[0].aval.shape
        for what, *rest in trace:
            if what == "index":
                self._counted({keys[rest[0]]: (1, ("constant", 1))})
            elif what == "linear":
                strides = contiguous(shape).strides
                self._counted(
                    {
                        keys[d]: (strides[d], self._symbols(shape[d + 1 :]))
                        for d in range(rest[0], len(shape))
                    }
                )
            elif what == "element":
                operand, dims = rest
                atom = eqn.inputs[operand]
                assert type(atom) is Var
                self._element(e, operand, atom, [keys[d] for d in dims])

    def _counted(self, strides: Mapping[Key, tuple[int, Source]]) -> None:
        """Note where the strides of an index come from."""
        own = {key: pair for key, pair in strides.items() if key not in self.space.units}
        pairs = tuple(sorted((key, stride) for key, (stride, _) in own.items()))
        name = self.operands.names.get(Access(None, 0, pairs, "int64", Mode.INDEX))
        if name is not None:
            self.strides[name] = {key: source for key, (_, source) in own.items()}

    def _element(self, e: int, k: int, atom: Var, keys: Sequence[Key]) -> None:
        whole = read_access(self.program, self.space, e, k)
        view = self.program.place(atom)[1]
        place = self._place(atom)
        numbers, strides = [], {}
        for dim, key in enumerate(keys):
            if view.broadcast[dim] or key in self.space.units:
                continue
            numbers.append((key, view.strides[dim]))
            shape = atom.aval.shape
            strides[key] = self._stride(place, dim, shape)
        access = self.operands._placed(replace(whole, strides=tuple(sorted(numbers))))
        name = self.operands.names.get(access)
        if name is None:
            return
        if place is not None:
            self.repeats.append((*place, view.broadcast))
        self._enter(name, access, strides, place)

    def _place(self, atom: Var) -> tuple[int, int] | None:
        """The first equation and operand that read a view; None for what is no view."""
        if atom not in self.program.views:
            return None
        reader = self.program.readers[atom][0]
        return reader, self.program.jaxpr.eqns[reader].inputs.index(atom)

    def _stride(self, place: tuple[int, int] | None, dim: int, shape: Sequence[int]) -> Source:
        return self._symbols(shape[dim + 1 :]) if place is None else ("stride", *place, dim)

    def _symbols(self, sizes: Sequence[int]) -> Source:
        try:
            return ("product", *sorted(self.symbol_of[size] for size in sizes if size != 1))
        except KeyError:
            raise NoRecipeError from None

    def _size(self, keys: Sequence[Key]) -> Source:
        return self._symbols([self.space.sizes[key] for key in keys])

    def _product(self, keys: Sequence[Key]) -> int:
        return self.sources.number(self._size(keys))

    def _parallel(self) -> Sequence[Key]:
        roles = (axis.role.value for axis in self.kernel.axes)
        pairs = zip(roles, self.axes, strict=True)
        return next((keys for role, keys in pairs if role == "parallel"), ())

    def _read(self, e: int, k: int, atom: Var) -> None:
        access = self.operands._placed(read_access(self.program, self.space, e, k))
        name = self.operands.names.get(access)
        if name is None:
            return  # the kernel does not need it
        iteration = self.program.iterations[e]
        assert iteration is not None and access.buffer is not None
        place = self._place(atom)
        strides, shape = {}, atom.aval.shape
        for dim, axis in iteration.reads[k]:
            key = self.space.classes[e, axis]
            if key in dict(access.strides):
                strides[key] = self._stride(place, dim, shape)
        if place is not None:
            self.repeats.append((*place, self.program.views[atom][1].broadcast))
        self._enter(name, access, strides, place)

    def _written(self, var: Var) -> None:
        access = self.operands._placed(write_access(self.program, self.space, var))
        name = self.operands.names[access]
        keys = self.space.axes_of_output(self.program, self.program.producer[var])
        strides = {
            key: self._symbols(var.aval.shape[dim + 1 :])
            for dim, key in enumerate(keys)
            if key not in self.space.units
        }
        self._enter(name, access, strides, None)

    def _enter(
        self, name: str, access: Access, strides: dict[Key, Source],
        place: tuple[int, int] | None,
    ) -> None:  # fmt: skip
        """Note where an operand's address and strides come from; all its readers must agree."""
        assert access.buffer is not None
        itemsize = storage_dtype(access.buffer.aval.dtype).itemsize
        pointer = ("constant", 0) if place is None else ("offset", *place, itemsize)
        if name not in self.strides:
            self.strides[name], self.pointers[name] = strides, pointer
            return
        known = self.strides[name]
        if set(known) != set(strides):
            raise NoRecipeError
        for key, source in strides.items():
            self._must_equal(known[key], source)
        self._must_equal(self.pointers[name], pointer)

    def _must_equal(self, first: Source, second: Source) -> None:
        if first != second:
            self.equal.append((self.sources.number(first), self.sources.number(second)))

    def _word(self, argument: Any) -> Source:
        keys_of = {
            axis.name: keys for axis, keys in zip(self.kernel.axes, self.axes, strict=True)
        }
        if argument.kind == "extent":
            return self._size(keys_of[argument.axis])
        if argument.kind == "scalar":
            return self._scalar(argument.operand)
        access = self.operands.accesses[argument.operand]
        if argument.operand not in self.strides:
            raise NoRecipeError
        if argument.kind == "stride":
            key = keys_of[argument.axis][-1]
            return self.strides[argument.operand][key]
        return ("constant", 0) if access.mode is Mode.INDEX else self.pointers[argument.operand]

    def _scalar(self, name: str) -> Source:
        _, dtype, (position, number, *rest) = self.slots[name]
        if number == "size":
            return ("size", position, rest[0] - 1)
        jaxpr = self.program.jaxpr
        inputs = jaxpr.eqns[position].inputs
        if type(inputs[number]) is not Literal:
            raise NoRecipeError
        before = jaxpr.memo("literals before", lambda: _literals_before(jaxpr))
        own = sum(type(atom) is Literal for atom in inputs[:number])
        return ("part" if rest else "literal", before[position] + own, dtype, *rest)

    def _exact(self) -> tuple[tuple[int, int | None], ...]:
        if len(self.axes) < 2:
            return ()
        return ((self._product(self.axes[-1]), self.kernel.axes[-1].exact),)

    def _joined(self) -> list[tuple[int, int, int]]:
        """What has to hold for axes to be one, where it does not hold for all sizes anyway."""
        conditions = []
        for keys in self.axes:
            for outer, inner in pairwise(keys):
                for strides in self.strides.values():
                    if outer not in strides:
                        continue
                    a, b, n = strides[outer], strides[inner], self._size((inner,))
                    if b[0] == "product" and a == ("product", *sorted((*b[1:], *n[1:]))):
                        continue
                    numbers = [self.sources.number(source) for source in (a, b, n)]
                    conditions.append((numbers[0], numbers[1], numbers[2]))
        return conditions

    def _units(self) -> list[tuple[int, bool]]:
        if not self.axes:
            return []
        key = self.axes[-1][-1]
        found = (strides[key] for strides in self.strides.values() if key in strides)
        return [
            (self.sources.number(source), self._value(source) == 1)
            for source in found
            if source[0] == "stride"
        ]

    def _value(self, source: Source) -> int:
        _, e, k, dim = source
        atom = self.program.jaxpr.eqns[e].inputs[k]
        assert type(atom) is Var
        return self.program.views[atom][1].strides[dim]


def _literals_before(jaxpr: Jaxpr) -> list[int]:
    """For each equation how many literals the equations before it read."""
    counts = [sum(type(atom) is Literal for atom in eqn.inputs) for eqn in jaxpr.eqns]
    return list(accumulate(counts, initial=0))
