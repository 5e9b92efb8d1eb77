"""Making recipes: where the words of a kernel that was just lowered come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from gpuflow.compiler.access import Access, read_access, write_access
from gpuflow.compiler.donation import InPlace
from gpuflow.compiler.index_sizes import ask_sizes
from gpuflow.compiler.lower import Lowered
from gpuflow.compiler.recipes import Recipe, Source, Sources, Symbols
from gpuflow.compiler.space import Key, Program, Space
from gpuflow.core.aval import storage_dtype
from gpuflow.core.jaxpr import Literal, Var
from gpuflow.core.lowering import Indexed, Update
from gpuflow.core.views import contiguous
from gpuflow.kir.nodes import Mode, arguments


class NoRecipeError(Exception):
    """A word of a kernel comes from something that recipes do not know."""


def make_recipe(
    program: Program, space: Space, in_place: InPlace, lowered: Lowered,
    symbols: Symbols, sources: Sources,
) -> Recipe | None:  # fmt: skip
    """The recipe of a group that was just lowered, or None."""
    try:
        return _Maker(program, space, in_place, lowered, symbols, sources).recipe()
    except NoRecipeError:
        return None


class _Maker:
    def __init__(
        self, program: Program, space: Space, in_place: InPlace,
        lowered: Lowered, symbols: Symbols, sources: Sources,
    ) -> None:  # fmt: skip
        self.program, self.space, self.in_place = program, space, in_place
        self.call, self.operands, self.axes = lowered
        self.sources = sources
        self.symbol_of = {size: k for k, size in enumerate(symbols.sizes)}
        self.number_of = {var: k for k, var in enumerate(symbols.variables)}
        self.equal: list[tuple[int, int]] = []
        self.repeats: list[tuple[int, int, tuple[bool, ...]]] = []
        self.strides: dict[str, dict[Key, Source]] = {}
        self.pointers: dict[str, Source] = {}
        self.traces: list[tuple[int, tuple[Any, ...]]] = []
        self.slots = {name: key for key, name in self.operands.names.items()}

    def recipe(self) -> Recipe:
        for e in self.space.members:
            eqn = self.program.jaxpr.eqns[e]
            rule = eqn.primitive.lower
            if isinstance(rule, Update):
                raise NoRecipeError
            if isinstance(rule, Indexed):
                self._indexed(e)
            for k, atom in enumerate(eqn.inputs):
                if type(atom) is Var and self.program.producer.get(atom) not in self.space.members:
                    self._read(e, k, atom)
        for var in self.space.escaping:
            self._written(var)
        call = self.call
        number = self.number_of.__getitem__
        return Recipe(
            call.kernel,
            tuple(self.sources.number(self._word(argument)) for argument in arguments(call.kernel)),
            self._product(self._parallel()),
            self._product(self.space.order),
            tuple(map(number, call.reads)),
            tuple(map(number, call.writes)),
            tuple(map(number, call.overwrites)),
            tuple((number(out), number(var)) for out, var in self.in_place.buffer_of.items()),
            self._exact(),
            tuple(self.equal),
            tuple(self._joined()),
            tuple(self._units()),
            tuple(self.repeats),
            tuple(self.traces),
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
        is_view = atom in self.program.views
        numbers, strides = [], {}
        for dim, key in enumerate(keys):
            if view.broadcast[dim] or key in self.space.units:
                continue
            numbers.append((key, view.strides[dim]))
            shape = atom.aval.shape
            strides[key] = (
                ("stride", e, k, dim) if is_view else self._symbols(shape[dim + 1 :])
            )
        access = self.operands._placed(replace(whole, strides=tuple(sorted(numbers))))
        name = self.operands.names.get(access)
        if name is None:
            return
        if is_view:
            self.repeats.append((e, k, view.broadcast))
        self._enter(name, access, strides, (e, k) if is_view else (None, None))

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
        roles = (axis.role.value for axis in self.call.kernel.axes)
        pairs = zip(roles, self.axes, strict=True)
        return next((keys for role, keys in pairs if role == "parallel"), ())

    def _read(self, e: int, k: int, atom: Var) -> None:
        access = self.operands._placed(read_access(self.program, self.space, e, k))
        name = self.operands.names.get(access)
        if name is None:
            return  # the kernel does not need it
        iteration = self.program.iterations[e]
        assert iteration is not None and access.buffer is not None
        is_view = atom in self.program.views
        strides, shape = {}, atom.aval.shape
        for dim, axis in iteration.reads[k]:
            key = self.space.classes[e, axis]
            if key in dict(access.strides):
                own = ("stride", e, k, dim) if is_view else self._symbols(shape[dim + 1 :])
                strides[key] = own
        place = (e, k) if is_view else (None, None)
        if is_view:
            self.repeats.append((e, k, self.program.views[atom][1].broadcast))
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
        self._enter(name, access, strides, (None, None))

    def _enter(
        self, name: str, access: Access, strides: dict[Key, Source],
        place: tuple[int | None, int | None],
    ) -> None:  # fmt: skip
        """Note where an operand's address and strides come from; all its readers must agree."""
        assert access.buffer is not None
        itemsize = storage_dtype(access.buffer.aval.dtype).itemsize
        pointer = ("pointer", self.number_of[access.buffer], *place, itemsize)
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
            axis.name: keys for axis, keys in zip(self.call.kernel.axes, self.axes, strict=True)
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
        if type(self.program.jaxpr.eqns[position].inputs[number]) is not Literal:
            raise NoRecipeError
        return ("literal", position, number, dtype)

    def _exact(self) -> tuple[int, int | None] | None:
        if len(self.axes) < 2:
            return None
        return self._product(self.axes[-1]), self.call.kernel.axes[-1].exact

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
