"""What draws of steps share: the values so far, with their types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

from fuzzing.programs import INTEGERS, Program, Step
from hypothesis import strategies as st

MAX_VALUE = 1e3  # values that may get larger than this are brought back by tanh
MAX_ELEMENTS = 4000


@dataclass(frozen=True)
class Type:
    """What is known of a value: ``bound`` limits its magnitude, unless it is inf or nan."""

    shape: tuple[int, ...]
    dtype: str
    exact: bool
    bound: float

    @property
    def is_float(self) -> bool:
        return "float" in self.dtype

    @property
    def is_complex(self) -> bool:
        return self.dtype == "complex64"

    @property
    def is_integer(self) -> bool:
        return self.dtype in INTEGERS

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def plain(self) -> tuple[list[int], str]:
        """Shape and dtype, as params hold them."""
        return list(self.shape), self.dtype


@dataclass(frozen=True)
class Options:
    """What programs may contain.

    Attributes:
        control: how deep loops, branches and mapped functions are nested; 0: there are none.
        reverse: only what has a reverse-mode derivative.
        forward: only what has a forward-mode derivative.
        smooth: only what finite differences can be taken of.
        nested: derivatives of programs are steps too, which the NumPy reference does not know.
        most_elements: of a value.
    """

    control: int = 0
    reverse: bool = False
    forward: bool = False
    smooth: bool = False
    nested: bool = False
    most_elements: int = MAX_ELEMENTS


def pick(draw: Any, choices: Sequence[Any]) -> Any:
    """One of several; hypothesis's own strategy for that is checked anew whenever it is made."""
    return choices[draw(_positions(len(choices)))]


@cache
def _positions(count: int) -> Any:
    return st.integers(0, count - 1)


class Maker:
    """Adds steps. A draw is a function of a Maker that adds some, or none where nothing fits."""

    def __init__(
        self, draw: Any, sizes: Sequence[int], inputs: Sequence[Type], options: Options
    ) -> None:
        self.draw, self.sizes, self.options = draw, list(sizes), options
        self.inputs, self.types = list(inputs), list(inputs)
        self.steps: list[Step] = []

    def inner(self, inputs: Sequence[Type], reverse: bool = False, forward: bool = False) -> Maker:
        """A Maker for a program that a step holds, and may differentiate."""
        mine = self.options
        options = replace(
            mine,
            control=mine.control - 1,
            reverse=mine.reverse or reverse,
            forward=mine.forward or forward,
        )
        return Maker(self.draw, self.sizes, inputs, options)

    def program(self, outputs: Sequence[int]) -> Program:
        """The program of the steps so far."""
        inputs = tuple((t.shape, t.dtype) for t in self.inputs)
        return Program(inputs, tuple(self.steps), tuple(outputs))

    # --- choices ---------------------------------------------------------------------------

    def pick(self, choices: Sequence[Any]) -> Any:
        return pick(self.draw, choices)

    def chance(self) -> bool:
        return self.pick([True, False])

    def find(self, accepts: Callable[[Type], bool] = lambda t: True) -> int | None:
        """A value of an accepted type; later ones are as likely as all earlier ones together."""
        accepted = [k for k, t in enumerate(self.types) if accepts(t)]
        if not accepted:
            return None
        return self.pick([*accepted, *accepted[-3:], *accepted[-1:]])

    def some(self, least: int, most: int, accepts: Callable[[Type], bool]) -> list[int]:
        """Several accepted values, or fewer where there are none."""
        numbers = [self.find(accepts) for _ in range(self.pick(range(least, most + 1)))]
        return [k for k in numbers if k is not None]

    def axes(self, rank: int) -> list[int]:
        """Some dimensions, most of the time all but few."""
        return [d for d in range(rank) if self.pick([True, True, False])]

    def partner(self, k: int) -> int:
        """A value that an elementwise op takes together with value ``k``."""
        t = self.types[k]

        def fits(u: Type) -> bool:
            if u.dtype != t.dtype:
                return False
            if len(u.shape) != len(t.shape):
                return not u.shape
            return all(a == b or a == 1 for a, b in zip(u.shape, t.shape, strict=True))

        number = self.find(fits)
        assert number is not None
        return number

    # --- steps -----------------------------------------------------------------------------

    def add(
        self,
        op: str,
        args: Sequence[int],
        shape: Sequence[int],
        dtype: str,
        exact: bool,
        bound: float = 1.0,
        /,
        **params: Any,
    ) -> int:
        """Add a step with one result; its number."""
        exact = exact and all(self.types[k].exact for k in args)
        self.steps.append(Step(op, tuple(args), params, exact))
        self.types.append(Type(tuple(shape), dtype, exact, bound))
        number = len(self.types) - 1
        if bound > MAX_VALUE and "float" in dtype:
            return self.add("tanh", [number], shape, dtype, False)
        if bound > MAX_VALUE and dtype == "complex64":
            return self.add("mul_number", [number], shape, dtype, False, 1.0, value=1e-3)
        return number

    def add_many(
        self, op: str, args: Sequence[int], types: Sequence[Type], /, **params: Any
    ) -> None:
        """Add a step with several results, whose bounds are small."""
        self.steps.append(Step(op, tuple(args), params, tuple(t.exact for t in types)))
        self.types += types

    def layout(self, op: str, k: int, shape: Sequence[int], /, **params: Any) -> int | None:
        """Add a step that moves elements of value ``k``, unless too many come out."""
        t = self.types[k]
        if prod(shape) > self.options.most_elements:
            return None
        return self.add(op, [k], shape, t.dtype, True, t.bound, **params)

    def bring(self, k: int, most: float) -> int:
        """Value ``k`` with a magnitude of at most ``most``, which is at least 2."""
        t = self.types[k]
        if t.bound <= most or not (t.is_float or t.is_complex):
            return k
        if t.is_complex:
            factor = most / t.bound
            return self.add("mul_number", [k], t.shape, t.dtype, False, most, value=factor)
        if t.exact and not self.options.smooth:
            return self.add("clamp", [k], t.shape, t.dtype, True, 2)
        return self.add("tanh", [k], t.shape, t.dtype, False, 1)

    def match(self, wanted: Type) -> int:
        """A value of that shape and dtype, exact if it must be, and no larger than allowed."""

        def fits(t: Type) -> bool:
            return t.dtype == wanted.dtype and (t.exact or not wanted.exact)

        k = self.find(lambda t: fits(t) and t.shape == wanted.shape)
        if k is not None:
            return self.bring(k, wanted.bound)
        k = self.find(lambda t: fits(t) and t.size == wanted.size)
        if k is not None:
            shape = list(wanted.shape)
            k = self.add(
                "reshape", [k], shape, wanted.dtype, True, self.types[k].bound, new_sizes=shape
            )
            return self.bring(k, wanted.bound)
        k = self.find(lambda t: fits(t) and not t.shape)
        if k is None:
            k = self.constant(wanted.dtype)
        shape = list(wanted.shape)
        k = self.add(
            "broadcast_in_dim",
            [k],
            shape,
            wanted.dtype,
            True,
            self.types[k].bound,
            shape=shape,
            broadcast_dimensions=[],
        )
        return self.bring(k, wanted.bound)

    def constant(self, dtype: str) -> int:
        """A scalar."""
        value = self.chance() if dtype == "bool" else self.pick([0, 1, 2])
        return self.add("full", [], (), dtype, True, 2, dtype=dtype, shape=[], value=value)

    def exact_scalar(self, dtype: str) -> int:
        """An exact scalar of dtype bool or int32, made of what there is."""
        k = self.find(lambda t: t.exact and t.dtype == dtype and not t.shape)
        if k is not None:
            return k
        k = self.find(lambda t: t.exact and t.dtype == dtype)
        if k is None and dtype == "bool":
            number = self.exact_scalar("int32")
            limit = self.add("full", [], (), "int32", True, 2, dtype="int32", shape=[], value=1)
            return self.add(self.pick(["lt", "ge"]), [number, limit], (), "bool", True)
        if k is None:
            return self.constant(dtype)
        axes = list(range(len(self.types[k].shape)))
        op = "reduce_or" if dtype == "bool" else self.pick(["reduce_max", "reduce_sum"])
        return self.add(op, [k], (), dtype, True, axes=axes)
