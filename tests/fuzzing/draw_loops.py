"""The hypothesis strategy that draws loop programs (loops.py).

No value grows: floats stay below FLOAT_BOUND and integers below INT_BOUND, and what a loop gives to
its next iteration moves no more than the largest move of what it was computed from. So rounding
errors add up over iterations and are not multiplied, however loops are nested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Any

from fuzzing.loops import Block, Input, Kind, LoopProgram, Statement
from fuzzing.maker import pick
from hypothesis import strategies as st

FLOAT_BOUND, INT_BOUND = 4.0, 40.0
MAX_SLOPE = 4.0
PREDICATE, INTEGER = Kind((), "bool"), Kind((), "int32")


@dataclass(frozen=True)
class Options:
    """What a program may hold.

    Args:
        floats: dtypes of floats.
        vmapped: lanes by vmap; else whole arrays, whose elements loop together.
        reverse: only what has a reverse-mode derivative.
        draws: random numbers.
        sizes: of lane axes to choose from.
        depth: of loops and branches in each other.
    """

    floats: tuple[str, ...] = ("float32",)
    vmapped: bool = True
    reverse: bool = False
    draws: bool = False
    sizes: tuple[tuple[int, ...], ...] = ()
    depth: int = 3


@dataclass(frozen=True)
class Fact:
    """What is known of a value: its kind, how large it is, how much it moves with its operands."""

    kind: Kind
    bound: float
    slope: float = 0.0


class Writer:
    """Writes the statements of one block; ``facts`` are of all values in sight."""

    def __init__(self, draw: Any, options: Options, facts: dict[int, Fact], count: list[int]):
        self.draw, self.options, self.facts, self.count = draw, options, facts, count
        self.statements: list[Statement] = []
        self.stacks: list[int] = []  # of wide rows or of none, which are results only
        self.first = count[0]  # what is numbered above it is of this block

    def pick(self, choices: Sequence[Any]) -> Any:
        return pick(self.draw, choices)

    def chance(self) -> bool:
        return self.draw(st.booleans())

    # --- values ----------------------------------------------------------------------------

    def new(self, fact: Fact) -> int:
        self.count[0] += 1
        self.facts[self.count[0]] = fact
        return self.count[0]

    def among(self, fits: Callable[[Fact], bool]) -> list[int]:
        return [k for k, fact in self.facts.items() if fits(fact) and k not in self.stacks]

    def find(self, fits: Callable[[Fact], bool]) -> int | None:
        """A value, more likely one of this block than one from outside."""
        some = self.among(fits)
        here = [k for k in some if k > self.first]
        if here and self.draw(st.integers(0, 3)):
            some = [*here, *here[-3:]]
        return self.pick(some) if some else None

    def add(self, op: str, args: Sequence[int], fact: Fact, **params: Any) -> int:
        """A statement of one result, and another that brings the result back into bounds."""
        wide = any(self.facts[k].kind.wide for k in args)
        fact = replace(fact, kind=replace(fact.kind, wide=wide))
        out = self.new(fact)
        self.statements.append(Statement(op, tuple(args), (out,), (fact.kind,), params))
        if fact.kind.is_float:
            return self.scaled(out, max(fact.bound / FLOAT_BOUND, fact.slope / MAX_SLOPE))
        if fact.kind.dtype == "int32" and fact.bound > INT_BOUND:
            if self.chance():
                by = self.pick([3, 5, 8])
                return self.add("mod", [out], replace(fact, bound=by), by=by)
            return self.add("clip", [out], replace(fact, bound=9.0), low=-9, high=7)
        return out

    def scaled(self, k: int, over: float) -> int:
        """The value, divided by a power of two that is at least ``over``."""
        if over <= 1:
            return k
        by = 2.0 ** -ceil(log2(over))
        fact = self.facts[k]
        fact = replace(fact, bound=fact.bound * by, slope=fact.slope * by)
        return self.add("scale", [k], fact, by=by)

    def constant(self, dtype: str) -> int:
        if dtype == "bool":
            return self.add("constant", [], Fact(PREDICATE, 1), value=self.chance())
        if dtype == "int32":
            return self.add("constant", [], Fact(INTEGER, 4), value=self.pick([0, 1, 2, 3, -1]))
        value = self.pick([0.5, 1.0, -0.25, 0.75])
        return self.add("constant", [], Fact(Kind((), dtype), 1), value=value)

    def like(self, kind: Kind) -> int:
        """A value that can be made one of ``kind`` by broadcasting."""
        shapes = ((), kind.shape)

        def fits(fact: Fact) -> bool:
            k = fact.kind
            return k.dtype == kind.dtype and k.shape in shapes and (kind.wide or not k.wide)

        k = self.find(fits)
        return self.constant(kind.dtype) if k is None else k

    def partner(self, k: int) -> int:
        """An operand for an op of two, of any shape that broadcasts."""
        kind = self.facts[k].kind
        wide = not self.options.vmapped and (kind.wide or not kind.shape)
        return self.like(replace(kind, wide=wide))

    def index(self, narrow: bool) -> int:
        def fits(fact: Fact) -> bool:
            return (
                fact.kind.dtype == "int32"
                and not fact.kind.shape
                and not (narrow and fact.kind.wide)
            )

        k = self.find(fits)
        return self.constant("int32") if k is None else k

    def small(self, float_: bool) -> int | None:
        """A scalar or short vector of numbers."""

        def fits(fact: Fact) -> bool:
            number = fact.kind.is_float if float_ else fact.kind.dtype == "int32"
            return number and len(fact.kind.shape) < 2

        return self.find(fits)

    # --- blocks ----------------------------------------------------------------------------

    def inner(self) -> Writer:
        """A writer of a block that sees all that is in sight, each thing as a unit of moving."""
        facts = {
            k: replace(f, slope=min(1.0, f.slope))
            for k, f in self.facts.items()
            if k not in self.stacks
        }
        return Writer(self.draw, self.options, facts, self.count)

    def param(self, kind: Kind) -> int:
        bound = FLOAT_BOUND if kind.is_float else INT_BOUND
        return self.new(Fact(kind, bound, float(kind.is_float)))

    def result(self, kind: Kind) -> int:
        """A value for a result of that kind, which moves no more than what it is made of."""
        k = self.like(kind)
        if kind.is_float and self.chance() and self.facts[k].kind.shape == kind.shape:
            other = self.like(kind)
            a, b = self.facts[k], self.facts[other]
            fact = Fact(a.kind, a.bound + b.bound, a.slope + b.slope)
            k = self.add("add", [k, other], fact)
        return self.scaled(k, self.facts[k].slope)

    def finish(self, params: Sequence[int], results: Sequence[int]) -> Block:
        return Block(tuple(params), tuple(self.statements), tuple(results))

    def bind(
        self,
        op: str,
        args: Sequence[int],
        kinds: Sequence[Kind],
        blocks: Sequence[Block],
        **params: Any,
    ) -> list[int]:
        """A statement of blocks; its results move as much as anything in sight may."""
        outs = []
        for kind in kinds:
            bound = FLOAT_BOUND if kind.is_float else INT_BOUND
            outs.append(self.new(Fact(kind, bound, MAX_SLOPE * kind.is_float)))
        self.statements.append(
            Statement(op, tuple(args), tuple(outs), tuple(kinds), params, tuple(blocks))
        )
        return outs


# --- statements of numbers -----------------------------------------------------------------


def unary(w: Writer) -> None:
    k = w.small(True)
    if k is None:
        return
    f, op = w.facts[k], w.pick(["neg", "sin", "tanh", "exp"])
    if op == "neg":
        w.add("neg", [k], f)
        return
    if op == "exp":
        k = w.add("tanh", [k], replace(f, bound=1.0))
        w.add("exp", [k], Fact(f.kind, 2.72, 2.72 * f.slope))
        return
    w.add(op, [k], replace(f, bound=1.0))


def binary(w: Writer) -> None:
    k = w.small(w.pick([True, True, False]))
    if k is None:
        return
    other = w.partner(k)
    a, b = w.facts[k], w.facts[other]
    op = w.pick(["add", "sub", "mul", "min", "max"])
    if w.chance():
        k, other = other, k
    if op == "mul":
        fact = Fact(a.kind, a.bound * b.bound, a.slope * b.bound + b.slope * a.bound)
    elif op in ("add", "sub"):
        fact = Fact(a.kind, a.bound + b.bound, a.slope + b.slope)
    else:
        fact = Fact(a.kind, max(a.bound, b.bound), max(a.slope, b.slope))
    w.add(op, [k, other], fact)


def integer(w: Writer) -> None:
    k = w.small(False)
    if k is None:
        return
    kind, op = w.facts[k].kind, w.pick(["mod", "div", "abs", "neg"])
    if op == "mod":
        w.add("mod", [k], Fact(kind, 7), by=w.pick([2, 3, 7]))
    elif op == "div":
        w.add("div", [k], Fact(kind, INT_BOUND), by=w.pick([2, 3]))
    else:
        w.add(op, [k], w.facts[k])


def compare(w: Writer) -> None:
    if w.draw(st.integers(0, 4)) == 0:
        k = w.small(True)
        if k is not None:
            kind = replace(w.facts[k].kind, dtype="bool")
            w.add("above", [k], Fact(kind, 1), limit=w.pick([0.1, -0.3, 0.7]))
        return
    k = w.small(False)
    if k is not None:
        kind = replace(w.facts[k].kind, dtype="bool")
        w.add(w.pick(["lt", "eq"]), [k, w.partner(k)], Fact(kind, 1))


def logic(w: Writer) -> None:
    k = w.find(lambda f: f.kind.dtype == "bool")
    if k is None:
        return
    op = w.pick(["and", "or", "xor", "not"])
    w.add(op, [k] if op == "not" else [k, w.partner(k)], w.facts[k])


def where(w: Writer) -> None:
    k = w.small(w.pick([True, True, False]))
    if k is None:
        return
    other, kind = w.partner(k), w.facts[k].kind
    wide = not w.options.vmapped and not kind.shape
    which = w.like(Kind(kind.shape, "bool", wide))
    a, b = w.facts[k], w.facts[other]
    w.add("where", [which, k, other], Fact(kind, max(a.bound, b.bound), max(a.slope, b.slope)))


def convert(w: Writer) -> None:
    k = w.small(w.chance())
    if k is None:
        return
    f, name = w.facts[k], w.pick(w.options.floats)
    if not f.kind.is_float:
        w.add("number", [k], Fact(replace(f.kind, dtype=name), f.bound))
    elif len(w.options.floats) > 1:
        w.add("cast", [k], replace(f, kind=replace(f.kind, dtype=name)))
    elif w.chance():
        w.add("steps", [k], Fact(replace(f.kind, dtype="int32"), 9))


def total(w: Writer) -> None:
    k = w.find(lambda f: len(f.kind.shape) == 1 and f.kind.dtype != "bool")
    if k is None:
        return
    f = w.facts[k]
    n, kind = f.kind.shape[0], replace(f.kind, shape=())
    if f.kind.is_float or w.chance():
        w.add("sum", [k], Fact(kind, n * f.bound, n * f.slope))
    else:
        w.add("largest", [k], Fact(kind, f.bound))


def gather(w: Writer) -> None:
    table = w.find(lambda f: len(f.kind.shape) > 0)
    if table is None:
        return
    f = w.facts[table]
    if len(f.kind.shape) == 1 and w.options.vmapped and w.chance():
        at = w.find(lambda f: f.kind.dtype == "int32" and len(f.kind.shape) < 2)
        at = w.constant("int32") if at is None else at
    else:
        at = w.index(narrow=len(f.kind.shape) > 1)
    shape = (*w.facts[at].kind.shape, *f.kind.shape[1:])
    w.add("gather", [table, at], replace(f, kind=replace(f.kind, shape=shape)))


def read(w: Writer) -> None:
    k = w.find(lambda f: len(f.kind.shape) == 1)
    if k is not None:
        f = w.facts[k]
        at = w.draw(st.integers(0, f.kind.shape[0] - 1))
        w.add("read", [k], replace(f, kind=replace(f.kind, shape=())), at=at)


def put(w: Writer) -> None:
    k = w.find(lambda f: len(f.kind.shape) == 1 and f.kind.dtype != "bool" and not f.kind.wide)
    if k is None:
        return
    f = w.facts[k]
    value = w.like(replace(f.kind, shape=()))
    g, add = w.facts[value], w.chance()
    both = max if not add else (lambda a, b: a + b)
    fact = Fact(f.kind, both(f.bound, g.bound), both(f.slope, g.slope))
    w.add("put", [k, w.index(narrow=True), value], fact, add=add)


def random(w: Writer) -> None:
    key = w.find(lambda f: f.kind.dtype == "key")
    if key is None:
        return
    at = w.index(narrow=True)
    if w.chance():
        w.add("bits", [key, at], Fact(INTEGER, 16))
    else:
        w.add("uniform", [key, at], Fact(Kind((), "float32"), 1))


NUMBERS = (unary, binary, binary, integer, compare, logic, where, convert, total, gather, read, put)


# --- loops and branches --------------------------------------------------------------------


def fill(w: Writer, depth: int) -> None:
    """Some statements, with a loop or branch among them if there is depth left."""
    numbers = (*NUMBERS, *(random,) * 4) if w.options.draws else NUMBERS
    for _ in range(w.draw(st.integers(1, 4))):
        w.pick(numbers)(w)
    if depth and w.draw(st.integers(0, 2)):
        w.pick(CONTROL)(w, depth)
        w.pick(numbers)(w)


def carries(w: Writer) -> tuple[list[int], list[Kind]]:
    """One to four values that start carries, and the kinds that they have in the loop."""
    init, kinds = [], []
    for _ in range(w.draw(st.integers(1, 4))):
        k = w.find(lambda f: f.kind.dtype != "key" and len(f.kind.shape) < 2)
        k = w.constant(w.options.floats[0]) if k is None or not w.draw(st.integers(0, 4)) else k
        kind = w.facts[k].kind
        if not w.options.vmapped and not kind.shape:
            kind = replace(kind, wide=kind.wide or w.chance())
        elif not kind.shape and not w.draw(st.integers(0, 5)):
            kind = replace(kind, shape=(w.draw(st.integers(1, 4)),))
        init.append(k)
        kinds.append(kind)
    return init, kinds


def _body(w: Writer, depth: int, params: Sequence[Kind], kinds: Sequence[Kind]) -> Block:
    body = w.inner()
    names = [body.param(kind) for kind in params]
    fill(body, depth - 1)
    return body.finish(names, [body.result(kind) for kind in kinds])


def fori(w: Writer, depth: int) -> None:
    low, high, args = 0, None, []
    if w.options.reverse or w.chance():
        low, high = w.pick([(0, 3), (1, 4), (-1, 1), (2, 2), (0, 4)])
    else:
        low, args = w.pick([0, 0, 1]), [w.index(narrow=True)]
    init, kinds = carries(w)
    body = _body(w, depth, [INTEGER, *kinds], kinds)
    w.bind("fori", [*args, *init], kinds, [body], low=low, high=high)


def while_(w: Writer, depth: int) -> None:
    limit = w.index(narrow=True)
    init, kinds = carries(w)
    most = w.pick([3, 5]) if w.options.reverse or not w.draw(st.integers(0, 4)) else None
    condition = w.inner()
    names = [condition.param(kind) for kind in (INTEGER, *kinds)]
    condition.facts = {k: f for k, f in condition.facts.items() if f.kind.dtype != "key"}
    for _ in range(w.draw(st.integers(0, 2))):
        condition.pick((integer, compare, logic))(condition)
    going = condition.finish(names, [condition.like(PREDICATE)])
    body = _body(w, depth, [INTEGER, *kinds], kinds)
    w.bind("while", [limit, *init], [INTEGER, *kinds], [going, body], max_steps=most)


def scan(w: Writer, depth: int) -> None:
    xs = []
    x = w.find(lambda f: len(f.kind.shape) > 0 and not f.kind.wide)
    length = w.pick([0, 1, 3, 4])
    if x is not None and w.draw(st.integers(0, 3)):
        xs, length = [x], w.facts[x].kind.shape[0]
        second = w.find(lambda f: f.kind.shape[:1] == (length,) and not f.kind.wide)
        if second is not None and w.chance():
            xs.append(second)
    is_map = not w.draw(st.integers(0, 4))
    init, kinds = ([], []) if is_map else carries(w)
    elements = [w.facts[k].kind for k in xs]
    elements = [replace(kind, shape=kind.shape[1:]) for kind in elements]
    body = w.inner()
    names = [body.param(kind) for kind in (*kinds, *elements)]
    fill(body, depth - 1)
    results = [body.result(kind) for kind in kinds]
    rows = []
    for _ in range(w.draw(st.integers(int(is_map), 2))):
        k = body.find(lambda f: f.kind.dtype != "key" and len(f.kind.shape) < 2)
        if k is not None:
            rows.append(body.scaled(k, body.facts[k].slope))
    if not kinds and not rows:
        return
    stacked = [body.facts[k].kind for k in rows]
    stacked = [replace(kind, shape=(length, *kind.shape)) for kind in stacked]
    outs = w.bind(
        "scan",
        [*init, *xs],
        [*kinds, *stacked],
        [body.finish(names, [*results, *rows])],
        length=length,
        reverse=w.chance(),
        carries=len(kinds),
    )
    for k in outs[len(kinds) :]:
        kind = w.facts[k].kind
        if kind.wide or 0 in kind.shape:
            w.stacks.append(k)


def _branches(w: Writer, depth: int, op: str, choice: int, count: int) -> None:
    args, kinds = carries(w)
    args = args[: w.draw(st.integers(0, 2))]
    params = [w.facts[k].kind for k in args]
    blocks = [_body(w, depth, params, kinds) for _ in range(count)]
    w.bind(op, [choice, *args], kinds, blocks)


def cond(w: Writer, depth: int) -> None:
    _branches(w, depth, "cond", w.like(PREDICATE), 2)


def switch(w: Writer, depth: int) -> None:
    k = w.index(narrow=True)
    choice = w.add("mod", [k], Fact(INTEGER, 4), by=4) if w.chance() else k
    _branches(w, depth, "switch", choice, w.pick([2, 3]))


CONTROL = (fori, while_, scan, while_, fori, scan, cond, switch)
OUTERMOST = (fori, while_, scan)


# --- programs ------------------------------------------------------------------------------


def _inputs(w: Writer, axes: int) -> list[Input]:
    """A number, an integer that differs from lane to lane, and some more, mapped or not."""
    options, name = w.options, w.options.floats[-1]
    kinds = [Kind((), name), INTEGER]
    if options.draws:
        kinds.append(Kind((), "key"))
    for _ in range(w.draw(st.integers(1, 4))):
        vector = (w.draw(st.integers(1, 4)),)
        some = [Kind((5,), name), Kind(vector, name), Kind((), w.pick(options.floats)), PREDICATE]
        some += [Kind((3,), "int32"), INTEGER, Kind((4, *vector), name)]
        kinds.append(w.pick(some))
    inputs = []
    for k, kind in enumerate(kinds):
        mapped = tuple(k == 0 or w.draw(st.integers(0, 2)) > 0 for _ in range(axes))
        if not options.vmapped:
            # Arrays of all lanes, or values that lanes share; a bound of a loop must be shared.
            wide = k == 0 or (not kind.shape and kind.dtype != "key" and k > 2 and w.chance())
            mapped, kind = (wide,) * axes, replace(kind, wide=wide)
        before = "none"
        if kind.is_float:
            before = w.pick(["none", "none", "sin"])
        elif kind.dtype == "int32":
            before = w.pick(["none", "none", "next"])
        inputs.append(Input(kind, mapped, before))
    return inputs


def _after(w: Writer, program_axes: int, kind: Kind) -> str:
    if kind.dtype == "bool":
        return w.pick(["none", "not"])
    rows = ["rows"] if program_axes + len(kind.shape) else []
    return w.pick(["none", "none", "affine", "sum", *rows])


@st.composite
def loop_programs(draw: Any, options: Options) -> LoopProgram:
    """A program with at least one loop at its top."""
    sizes = draw(st.sampled_from(options.sizes))
    count = [-1]
    writer = Writer(draw, options, {}, count)
    inputs = _inputs(writer, len(sizes))
    params = [writer.new(Fact(i.kind, 5 if i.kind.dtype == "int32" else 1.5, 1)) for i in inputs]
    for k, i in zip(params, inputs, strict=True):
        # An int has no slope; +1 ahead of the loops makes it no larger than 6.
        if not i.kind.is_float:
            writer.facts[k] = Fact(i.kind, 6)
    for _ in range(draw(st.integers(0, 3))):
        writer.pick(NUMBERS)(writer)
    results: list[int] = []
    for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
        writer.pick(OUTERMOST)(writer, options.depth)
        results += writer.statements[-1].outs
    for _ in range(draw(st.integers(0, 2))):
        writer.pick(NUMBERS)(writer)
        results.append(writer.count[0])
    used = {k for s in writer.statements for k in s.args}
    results = [k for k in dict.fromkeys(results) if k not in used or k in writer.stacks] or results
    known = [k for k in results[-6:] if k in writer.facts and writer.facts[k].kind.dtype != "key"]
    kinds = tuple(writer.facts[k].kind for k in known)
    after = tuple(_after(writer, len(sizes), kind) for kind in kinds)
    block = writer.finish(params, known)
    seed = draw(st.integers(0, 99))
    return LoopProgram(tuple(inputs), block, kinds, after, sizes, options.vmapped, seed)
