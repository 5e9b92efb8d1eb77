"""Random loop programs; the loops of about half of them are vectorized.

Values are small integers, also those of floats, and their bounds are followed, so that results do
not depend on the order of sums or on fused operations. Functions that are not exact are in programs
of their own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from gpuflow.kir.scalar import NARROW_DTYPES, compute_dtype, dtype_kind

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float64")
# Those of 4 and 8 bytes twice: they need no masks of AVX-512.
STORAGES = (
    "float32", "float64", "int32", "int64", "uint32", "uint64", "float32", "float64", "int32",
    "int64", "int8", "int16", "uint8", "uint16", "bool", "float16", "bfloat16", "float8_e4m3fn",
)  # fmt: skip
LENGTHS = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 129, 257)
CURVES = ("sin", "tanh", "exp", "log1p", "cos", "erf")
MAX_OPERANDS = 12
MAX_EXACT = {"float32": 2**24, "float64": 2**50}


@dataclass(frozen=True)
class Value:
    """A name of the program: its dtype, and what its size is at most."""

    name: str
    dtype: str
    bound: float


@dataclass
class Operand:
    """An argument: an array, or a scalar of the argument block."""

    name: str
    storage: str
    is_scalar: bool = False

    def drawn(self, generator: np.random.Generator, size: int) -> np.ndarray:
        least = 0 if self.storage.startswith("u") else -4
        whole = generator.integers(least, 5, size)
        return (whole > 1) if self.storage == "bool" else whole


@dataclass
class Case:
    """A program.

    Attributes:
        is_exact: its results have no rounding errors.
        lengths: those that it runs with.
        rows: how many rows of so many elements it has.
    """

    text: str
    operands: list[Operand]
    is_exact: bool
    lengths: tuple[int, ...]
    rows: int


@dataclass
class _Nest:
    """The loop that is drawn: lines before and after it, its head, and what elements count from."""

    before: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=lambda: ["for i in range(lo, hi):"])
    start: str = ""
    length: int | None = None  # if the program says it
    rows: int = 1


class Program:
    """Draws one program."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.is_exact = self.random.random() < 0.85
        self._storages = self.random.sample(STORAGES, 3) if self.is_exact else FLOATS[:1] * 2
        if self.random.random() < 0.5:
            self._storages = self._storages[:1]
        self.operands: list[Operand] = []
        self._scopes: dict[str, int] = {}
        self._updated: set[str] = set()
        self._words: list[str] = []
        self._values: list[Value] = []
        self._first: list[str] = []  # before the innermost loop
        self._body: list[str] = []
        self._last: list[str] = []  # after the innermost loop
        self._outer_first: list[str] = []  # before and after the outermost loop
        self._outer_last: list[str] = []
        self._names = 0

    def case(self) -> Case:
        nest = self._nest()
        self._read(nest)
        if nest.length is None and self.random.random() < 0.3:
            self._use_stack(nest)
        for _ in range(self.random.choice((0, 1, 2, 4, 8))):
            self._operation()
        self._sums(nest)
        if not self._last or self.random.random() < 0.6:
            self._write(nest)
        text = self._text(nest)
        lengths = self.random.sample(LENGTHS, 6) if nest.length is None else (nest.length,)
        lengths = tuple(n for n in lengths if n * nest.rows < 600)
        return Case(text, self.operands, self.is_exact, lengths, nest.rows)

    # The loops

    def _nest(self) -> _Nest:
        one = self.random.random()
        length = self.random.choice((*range(1, 20), 31, 32, 33, 40, 64, 65, 96, 100, 128))
        if one < 0.45:
            return _Nest()
        if one < 0.55:
            return _Nest([], [f"for i in range(lo, lo + {length}):"], "", length)
        rows = ["for r in range(0, 3):"]
        pitch = self.random.choice(("hi", "hi + 3"))
        before = [f"at = r * ({pitch})"]
        if one < 0.75:
            return _Nest(before, [*rows, "for i in range(0, hi):"], "at + ", None, 3)
        if one < 0.85:
            return _Nest(before, [*rows, "for i in short_range(0, hi):"], "at + ", None, 3)
        first = self.random.choice((0, 0, 1))
        head = f"for i in short_range({first}, {first + length}):"
        return _Nest([f"at = r * {length + 2}"], [*rows, head], "at + ", length, 3)

    def _text(self, nest: _Nest) -> str:
        count = 1 + max(self._scopes.values(), default=0)
        accessors = []
        for one in self.operands:
            if one.is_scalar:
                continue
            scope = f'"{one.storage}", {self._scopes[one.name]}, {count}'
            if self._scopes[one.name] == 0 or one.name in self._updated:
                accessors.append(f"load_{one.name} = reader({scope})")
            if self._scopes[one.name]:
                accessors.append(f"store_{one.name} = writer({scope})")
        lines = ["def kernel_f(words, lo, hi):"]
        if self.random.random() < 0.5:
            lines.append("    use_wide_registers()")
        lines += [f"    {line}" for line in (*self._words, *self._outer_first)]
        for depth, head in enumerate(nest.heads, 1):
            indent = "    " * depth
            if depth == len(nest.heads):
                lines += [indent + line for line in (*nest.before, *self._first)]
            lines.append(indent + head)
        lines += ["    " * (len(nest.heads) + 1) + line for line in self._body]
        lines += ["    " * len(nest.heads) + line for line in self._last]
        lines += [f"    {line}" for line in self._outer_last]
        return "\n".join([*accessors, "", *lines, ""])

    # Names and operands

    def _name(self, stem: str = "t") -> str:
        self._names += 1
        return f"{stem}{self._names}"

    def _add(self, text: str, dtype: str, bound: float) -> Value:
        """A statement of the loop, and its value."""
        if dtype in INTEGERS:
            bound = min(bound, float(np.iinfo(dtype).max) + 1)
        value = Value(self._name(), dtype, bound)
        self._body.append(f"{value.name} = {text}")
        self._values.append(value)
        return value

    def _operand(self, storage: str, scope: int = 0, is_scalar: bool = False) -> Operand:
        one = Operand(self._name("p"), storage, is_scalar)
        slot = len(self.operands)
        self.operands.append(one)
        self._scopes[one.name] = scope
        kind = storage if is_scalar else "pointer"
        self._words.append(f"{one.name} = word_{kind}(words, {slot})")
        return one

    def _written(self, storage: str) -> Operand:
        return self._operand(storage, 1 + max(self._scopes.values(), default=0))

    def _index(self, nest: _Nest) -> str:
        one, offset = self.random.random(), self.random.choice((0, 0, 0, 1, 3, 8))
        shift = f" + {offset}" if offset else ""
        if one < 0.7:
            return f"{nest.start}i{shift}"
        if one < 0.86:
            return f"({nest.start}i) * {self.random.choice((2, 2, 3, 4))}{shift}"
        if one < 0.93:
            return str(offset)
        if one < 0.96 and nest.length is None:
            return f"hi - i{shift}"
        return f"({nest.start}i) * 5{shift}"

    # Statements

    def _read(self, nest: _Nest) -> None:
        for _ in range(self.random.choice((1, 1, 2, 3))):
            one = self._operand(self.random.choice(self._storages))
            self._load(nest, one)
        if self.random.random() < 0.3:
            one = self._operand(compute_dtype(self.random.choice(self._storages)), 0, True)
            self._values.append(Value(one.name, one.storage, 4))
        if self.random.random() < 0.2:
            kind = self.random.choice(("int64", "float64"))
            number = f"{nest.start}i * 2 + 1"
            self._add(number if kind == "int64" else f"cast_index_float64({number})", kind, 4000)

    def _load(self, nest: _Nest, one: Operand) -> None:
        dtype = compute_dtype(one.storage)
        if self.random.random() < 0.2:
            offset = self.random.choice(("", " + 2"))
            pair = f"({nest.start}i{offset}) * 2"
            halves = [pair, f"{pair} + 1"]
            kind = self.random.random()
            if kind < 0.1:
                halves.reverse()
            elif kind < 0.2:  # of two pairs
                halves[1] = f"({nest.start}i + 1) * 2 + 1"
            for half in halves[: self.random.choice((2, 2, 2, 1))]:
                self._add(f"load_{one.name}({one.name}, {half})", dtype, 4)
            return
        self._add(f"load_{one.name}({one.name}, {self._index(nest)})", dtype, 4)

    def _use_stack(self, nest: _Nest) -> None:
        """An array on the stack: elements that another loop has stored, or sums of columns."""
        storage = self.random.choice(self._storages)
        dtype, stack = compute_dtype(storage), self._name("q")
        self._words.append(f"{stack} = local_{storage}(512)")
        load, store = f"load_{storage}({stack}, ", f"store_{storage}({stack}, "
        loop = nest.heads[-1]
        if nest.rows > 1 and dtype in (*FLOATS, "int32", "int64"):
            zero, out = f"np.{dtype}(0)", self._written(storage)
            self._outer_first += [loop, f"    {store}i, {zero})"]
            total = self._add(f"{load}i)", dtype, 12)
            term = self._pick(dtype) if self.is_exact else total
            if term.bound <= 4 and storage == dtype:
                total = self._add(f"np.{dtype}({total.name} + {term.name})", dtype, 16)
            self._body.append(f"{store}i, {total.name})")
            text = f"store_{out.name}({out.name}, i, {load}i))"
            self._outer_last += [loop, f"    {text}"]
            return
        one = self._operand(storage)
        at = self.random.choice(("i - lo", "(i - lo) * 1", "i") if nest.rows == 1 else ("i",))
        text = f"load_{one.name}({one.name}, {self._index(nest)})"
        if self.random.random() < 0.4:  # elements past a shorter loop's end are unchanged
            self._first += ["for i in range(0, 512):", f"    {store}i, {self._number(dtype)})"]
            at = self.random.choice((at, "i + 1", "512 - i - 1"))
        self._first += [loop, f"    {store}{'i - lo' if nest.rows == 1 else 'i'}, {text})"]
        self._add(f"{load}{at})", dtype, 4)

    @staticmethod
    def _number(dtype: str) -> str:
        return "True" if dtype == "bool" else f"np.{dtype}(3)"

    def _pick(self, dtype: str | None = None) -> Value:
        """A value; recent ones more often."""
        known = [v for v in self._values if dtype is None or v.dtype == dtype]
        return self.random.choice(known[-3:] if self.random.random() < 0.6 else known)

    def _operation(self) -> None:
        a = self._pick()
        b, choice = self._pick(a.dtype), self.random.random()
        is_int = a.dtype in INTEGERS
        if a.dtype == "bool":
            self._add(f"{a.name} {self.random.choice('&|^')} {b.name}", "bool", 1)
        elif not self.is_exact and a.dtype in FLOATS and choice < 0.6:
            self._curve(a)
        elif choice < 0.2:
            c = self._pick(a.dtype)
            symbol = self.random.choice(("<", ">=", "=="))
            test = self._add(f"{a.name} {symbol} {c.name}", "bool", 1)
            bound = max(a.bound, b.bound)
            self._add(f"select_{a.dtype}({test.name}, {a.name}, {b.name})", a.dtype, bound)
        elif choice < 0.35:
            fn = self.random.choice(("max", "min"))
            self._add(f"{fn}_{a.dtype}({a.name}, {b.name})", a.dtype, max(a.bound, b.bound))
        elif choice < 0.5:
            self._cast(a, self.random.choice(("int32", "int64", *FLOATS)))
        elif choice < 0.55 and is_int:
            self._add(f"div_{a.dtype}({a.name}, np.{a.dtype}(3))", a.dtype, a.bound)
        else:
            self._arithmetic(a, b)

    def _arithmetic(self, a: Value, b: Value) -> None:
        is_int = a.dtype in INTEGERS
        symbol = self.random.choice("+-*&|^" if is_int else "+-*")
        bound = a.bound * b.bound if symbol == "*" else a.bound + b.bound
        if symbol in "&|^":
            bound = 2 * max(a.bound, b.bound)
        elif symbol == "-" and a.dtype.startswith("u"):
            bound = np.inf
        if not is_int and bound > MAX_EXACT[a.dtype] / 1000:
            return
        text = f"{a.name} {symbol} {b.name}"
        self._add(f"np.{a.dtype}({text})" if is_int else text, a.dtype, bound)

    def _curve(self, a: Value) -> None:
        fn = self.random.choice(CURVES)
        small = self._add(f"tanh_{a.dtype}({a.name})", a.dtype, 1) if fn in ("exp", "log1p") else a
        if fn == "log1p":
            small = self._add(f"abs_{a.dtype}({small.name})", a.dtype, 1)
        self._add(f"{fn}_{a.dtype}({small.name})", a.dtype, 3)

    def _cast(self, a: Value, dtype: str) -> Value:
        """A value as another dtype, or itself where that is not exact."""
        is_safe = a.bound < MAX_EXACT.get(dtype, np.inf) and a.bound < MAX_EXACT.get(
            a.dtype, np.inf
        )
        if a.dtype == dtype or not is_safe:
            return a
        if a.dtype in FLOATS and dtype.startswith("u"):
            return a
        if a.dtype in FLOATS and dtype in INTEGERS and a.bound >= np.iinfo(dtype).max:
            return a
        wraps = dtype.startswith("u") and not a.dtype.startswith("u")  # numbers below 0
        bound = np.inf if wraps else a.bound
        return self._add(f"cast_{a.dtype}_{dtype}({a.name})", dtype, bound)

    def _stored(self, storage: str) -> Value:
        """A value of the dtype of a storage, which it holds exactly or rounds."""
        dtype = compute_dtype(storage)
        value = self._pick() if self.random.random() < 0.7 else self._values[-1]
        cast = self._cast(value, dtype)
        if cast.dtype != dtype:
            cast = Value(self._name(), dtype, 3)
            self._body.append(f"{cast.name} = {self._number(dtype)}")
        return cast

    def _write(self, nest: _Nest) -> None:
        left = self.random.choice((1, 1, 2, 3))
        while left > 0 and len(self.operands) < MAX_OPERANDS:
            left -= 1
            storage = self.random.choice((*self._storages, compute_dtype(self._storages[0])))
            one, choice = self._written(storage), self.random.random()
            dtype = compute_dtype(storage)
            at = f"{nest.start}i"
            if choice < 0.2:
                a, b = self._stored(storage), self._stored(storage)
                self._body.append(f"store_{one.name}({one.name}, ({at}) * 2, {a.name})")
                self._body.append(f"store_{one.name}({one.name}, ({at}) * 2 + 1, {b.name})")
                continue
            offset = ""
            if choice < 0.5:  # in place; of a neighbor, or of one element, in the program's order
                self._updated.add(one.name)
                shift, offset = self.random.choices(("", " + 1", " + 2"), (5, 1, 1), k=2)
                index = f"{at}{shift}" if self.random.random() < 0.8 else "1"
                text = f"load_{one.name}({one.name}, {index})"
                # Sums of earlier iterations, which overflow in some narrow dtypes.
                old = self._add(text, dtype, np.inf if storage in NARROW_DTYPES else 4000)
                term = self._pick(dtype)
                if term.bound <= 4 and self.random.random() < 0.7:  # a sum over iterations
                    text = f"{old.name} {'^' if dtype == 'bool' else '+'} {term.name}"
                    text = text if dtype_kind(dtype) in ("bool", "float") else f"np.{dtype}({text})"
                    self._body.append(f"store_{one.name}({one.name}, ({at}){offset}, {text})")
                    continue
            elif choice > 0.93:
                offset = self.random.choice((" + 5", " * 2"))
            elif choice > 0.88:  # the value of the last iteration remains
                at = "2"
            value = self._stored(storage)
            self._body.append(f"store_{one.name}({one.name}, ({at}){offset}, {value.name})")
            if self.random.random() < 0.3:  # stored in the same iteration
                self._updated.add(one.name)
                left = max(left, 1)
                bound = value.bound
                if storage in NARROW_DTYPES:  # rounded, or too large
                    bound = 2 * bound if bound < 200 else np.inf
                self._add(f"load_{one.name}({one.name}, ({at}){offset})", dtype, bound)

    def _sums(self, nest: _Nest) -> None:
        if self.random.random() > 0.5:
            return
        for _ in range(self.random.choice((1, 2, 3))):
            value = self._pick()
            if value.name.startswith("p"):
                continue
            name, dtype = self._name("s"), value.dtype
            kind = dtype_kind(dtype)
            if kind == "bool":
                first, step = "False", f"{name} | {value.name}"
            elif kind == "float":
                if value.bound > MAX_EXACT[dtype] / 2000:
                    continue
                first, fn = f"np.{dtype}({self.random.choice((-0.0, 3))})", "add"
                if self.random.random() < 0.3:
                    fn, test = "mul", self._add(f"{value.name} > np.{dtype}(0)", "bool", 1)
                    signs = f"np.{dtype}(1), np.{dtype}(-1)"
                    value = self._add(f"select_{dtype}({test.name}, {signs})", dtype, 1)
                step = f"accumulate_{fn}_{dtype}({name}, {value.name})"
            else:
                step = self.random.choice(
                    [f"np.{dtype}({name} {symbol} {value.name})" for symbol in "+*&|"]
                    + [f"{fn}_{dtype}({name}, {value.name})" for fn in ("max", "min")]
                )
                first = f"np.{dtype}(3)"
            self._first.append(f"{name} = {first}")
            self._body.append(f"{name} = {step}")
            out = self._written(dtype)
            at = "r" if nest.rows > 1 else "0"
            self._last.append(f"store_{out.name}({out.name}, {at}, {name})")


def drawn(seed: str) -> Case:
    """The program of a seed."""
    return Program(seed).case()
