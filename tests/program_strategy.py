"""The hypothesis strategy that draws random programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any

from hypothesis import strategies as st
from random_programs import FLOATS, INTEGERS, Program, Step

LARGEST = 1e3  # values that may get larger than this are brought back by tanh
MOST_ELEMENTS = 4000


@dataclass(frozen=True)
class Type:
    """What is known of a value: ``bound`` limits its magnitude, unless it is inf or nan."""

    shape: tuple[int, ...]
    dtype: str
    exact: bool
    bound: float

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def is_integer(self) -> bool:
        return self.dtype in INTEGERS


class Maker:
    """Draws steps; each method of ``DRAWS`` adds one or more, or none where nothing fits."""

    def __init__(self, draw: Any, sizes: Sequence[int], inputs: Sequence[Any]) -> None:
        self.draw, self.sizes = draw, list(sizes)
        self.types = [Type(shape, dtype, True, 9.0) for shape, dtype in inputs]
        self.steps: list[Step] = []

    def pick(self, choices: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(list(choices)))

    def find(self, accepts: Callable[[Type], bool] = lambda t: True) -> int | None:
        """A value of an accepted type; later ones are as likely as all earlier ones together."""
        found = [k for k, t in enumerate(self.types) if accepts(t)]
        if not found:
            return None
        return self.pick([*found, *found[-3:], *found[-1:]])

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
        exact = exact and all(self.types[k].exact for k in args)
        self.steps.append(Step(op, tuple(args), params, exact))
        self.types.append(Type(tuple(shape), dtype, exact, bound))
        number = len(self.types) - 1
        if bound > LARGEST and dtype in FLOATS:
            return self.add("tanh", [number], shape, dtype, False)
        if bound > LARGEST and dtype == "complex64":
            return self.add("mul_number", [number], shape, dtype, False, 1.0, value=1e-3)
        return number

    # --- elementwise -----------------------------------------------------------------------

    def unary(self) -> None:
        k = self.find(lambda t: t.is_float)
        if k is None:
            return
        t = self.types[k]
        ops = {
            "sin": 1, "cos": 1, "tanh": 1, "logistic": 1, "erf": 1, "atan": 2, "square": t.bound**2,
            "sqrt": max(t.bound, 1), "cbrt": max(t.bound, 1), "log1p": inf, "rsqrt": inf,
            "log": inf, "exp": 20 if t.bound < 3 else inf, "expm1": 20 if t.bound < 3 else inf,
        }  # fmt: skip
        op = self.pick(sorted(ops))
        self.add(op, [k], t.shape, t.dtype, False, ops[op])

    def exact_unary(self) -> None:
        k = self.find(lambda t: t.dtype not in ("bool", "complex64"))
        if k is None:
            return
        t = self.types[k]
        ops = ["neg", "abs", "clamp"]
        if t.is_float and t.exact:
            ops += ["floor", "ceil", "round", "sign"]
        op = self.pick(ops if t.dtype != "uint8" else ["neg"])
        self.add(op, [k], t.shape, t.dtype, True, t.bound + 1)

    def number(self) -> None:
        k = self.find(lambda t: t.dtype != "bool")
        if k is None:
            return
        t, op = self.types[k], self.pick(["add_number", "mul_number"])
        value = self.pick([0, 1, 2, 3, -1] if t.is_integer else [0.0, 1.0, 0.5, 2.0, -1.5, 0.1])
        value = abs(value) if t.dtype == "uint8" else value
        self.add(op, [k], t.shape, t.dtype, t.is_integer, 2 * t.bound + 2, value=value)

    def _partner(self, k: int) -> int:
        """A value that an elementwise op takes together with value ``k``."""
        t = self.types[k]

        def fits(u: Type) -> bool:
            if u.dtype != t.dtype:
                return False
            if len(u.shape) != len(t.shape):
                return not u.shape
            return all(a == b or a == 1 for a, b in zip(u.shape, t.shape, strict=True))

        found = self.find(fits)
        assert found is not None
        return found

    def binary(self) -> None:
        k = self.find(lambda t: t.dtype != "bool")
        if k is None:
            return
        other, t = self._partner(k), self.types[k]
        u = self.types[other]
        ops = {"add": t.bound + u.bound, "sub": t.bound + u.bound, "mul": t.bound * u.bound}
        exact = t.is_integer
        if t.dtype != "complex64":
            ops |= {"max": max(t.bound, u.bound), "min": max(t.bound, u.bound), "div": inf}
        if t.is_integer:
            ops |= {"rem": 9, "bitwise_and": 9, "bitwise_xor": 9}
        elif t.is_float:
            ops |= {"atan2": 4}
        op = self.pick(sorted(ops))
        self.add(op, [k, other], t.shape, t.dtype, exact or op in ("max", "min"), ops[op])

    def logic(self) -> None:
        k = self.find(lambda t: t.dtype == "bool")
        if k is not None:
            op = self.pick(["bitwise_and", "bitwise_or", "bitwise_xor"])
            self.add(op, [k, self._partner(k)], self.types[k].shape, "bool", True)

    def compare(self) -> None:
        k = self.find(lambda t: t.exact and t.dtype != "complex64")
        if k is None:
            return
        other = self._partner(k)
        if self.types[other].exact:
            op = self.pick(["eq", "ne", "lt", "le", "gt", "ge"])
            self.add(op, [k, other], self.types[k].shape, "bool", True)

    def select(self) -> None:
        p = self.find(lambda t: t.dtype == "bool")
        if p is None:
            return
        shape = self.types[p].shape
        k = self.find(lambda t: t.shape == shape or not shape)
        if k is None:
            return
        t = self.types[k]
        other = self.find(lambda u: u.shape == t.shape and u.dtype == t.dtype)
        bound = max(t.bound, self.types[other].bound)
        self.add("select", [p, k, other], t.shape, t.dtype, True, bound)

    def convert(self) -> None:
        k = self.find(lambda t: t.dtype != "complex64")
        if k is None:
            return
        t = self.types[k]
        targets = [*FLOATS, "float32"]
        targets += [*INTEGERS, "bool"] if t.exact else []
        dtype = self.pick(targets)
        bound = 4e9 if t.is_integer else t.bound
        self.add("convert", [k], t.shape, dtype, True, bound, dtype=dtype)

    def complex_parts(self) -> None:
        k = self.find(lambda t: t.dtype == "complex64")
        if k is not None:
            t, op = self.types[k], self.pick(["real", "imag", "abs", "conj", "neg"])
            dtype = "complex64" if op in ("conj", "neg") else "float32"
            self.add(op, [k], t.shape, dtype, op != "abs", 2 * t.bound)

    # --- reductions ------------------------------------------------------------------------

    def _axes(self, rank: int) -> list[int]:
        return [d for d in range(rank) if self.pick([True, True, False])]

    def reduce(self) -> None:
        k = self.find()
        t = self.types[k]
        axes = self._axes(len(t.shape))
        count = prod(t.shape[d] for d in axes)
        is_bits = t.is_integer or t.dtype == "bool"
        ops = ["reduce_and", "reduce_or", "reduce_xor"] if is_bits else []
        if t.dtype != "bool":
            ops += ["reduce_sum", "reduce_sum"]
            ops += ["reduce_max", "reduce_min"] if t.dtype != "complex64" else []
            ops += ["reduce_prod"] if count <= 9 and t.is_float else []
        op = self.pick(ops)
        bound = {"reduce_sum": t.bound * max(count, 1), "reduce_prod": inf}
        exact = op not in bound or t.is_integer
        shape = [size for d, size in enumerate(t.shape) if d not in axes]
        made = self.add(op, [k], shape, t.dtype, exact, bound.get(op, t.bound), axes=axes)
        if axes and self.pick([True, False]):
            self._use_reduced(k, made, axes)

    def _use_reduced(self, k: int, made: int, axes: list[int]) -> None:
        """Keep the dimensions, or subtract a reduction from what was reduced."""
        t, u = self.types[k], self.types[made]
        if self.pick([True, False]):
            shape = [1 if d in axes else size for d, size in enumerate(t.shape)]
            self.add("reshape", [made], shape, u.dtype, True, u.bound, new_sizes=shape)
            return
        full = self.add("spread", [made], t.shape, u.dtype, True, u.bound, axes=axes, shape=t.shape)
        if t.dtype != "bool":
            op = self.pick(["sub", "mul"])
            bound = t.bound * u.bound + t.bound + u.bound
            self.add(op, [k, full], t.shape, t.dtype, t.is_integer, bound)

    def position(self) -> None:
        k = self.find(lambda t: t.exact and (t.is_float or t.is_integer) and 0 not in t.shape)
        if k is None or not self.types[k].shape:
            return
        t = self.types[k]
        axis = self.pick(range(len(t.shape)))
        shape = [size for d, size in enumerate(t.shape) if d != axis]
        self.add(self.pick(["argmax", "argmin"]), [k], shape, "int32", True, axis=axis)

    # --- layout ----------------------------------------------------------------------------

    def _layout(self, op: str, k: int, shape: Sequence[int], /, **params: Any) -> None:
        t = self.types[k]
        if prod(shape) <= MOST_ELEMENTS:
            self.add(op, [k], shape, t.dtype, True, t.bound, **params)

    def broadcast(self) -> None:
        k = self.find(lambda t: len(t.shape) < 4)
        if k is None:
            return
        shape, dims = [], []
        for size in self.types[k].shape:
            if len(self.types[k].shape) < 3 and self.pick([True, False]):
                shape.append(self.pick(self.sizes))
            dims.append(len(shape))
            shape.append(self.pick(self.sizes) if size == 1 else size)
        if len(shape) < 3:
            shape.append(self.pick(self.sizes))
        self._layout("broadcast_in_dim", k, shape, shape=shape, broadcast_dimensions=dims)

    def reshape(self) -> None:
        k = self.find()
        shape = list(self.types[k].shape)
        way = self.pick(["flat", "merge", "split", "one"])
        if way == "flat":
            shape = [prod(shape)]
        elif way == "merge" and len(shape) > 1:
            d = self.pick(range(len(shape) - 1))
            shape[d : d + 2] = [shape[d] * shape[d + 1]]
        elif way == "split" and shape:
            d = self.pick(range(len(shape)))
            parts = [n for n in (2, 3, 5) if shape[d] % n == 0]
            if parts:
                n = self.pick(parts)
                shape[d : d + 1] = [n, shape[d] // n]
        else:
            shape.insert(self.pick(range(len(shape) + 1)), 1)
        if len(shape) <= 4:
            self._layout("reshape", k, shape, new_sizes=shape)

    def transpose(self) -> None:
        k = self.find(lambda t: len(t.shape) > 1)
        if k is not None:
            shape = self.types[k].shape
            order = self.draw(st.permutations(range(len(shape))))
            self._layout("transpose", k, [shape[d] for d in order], permutation=list(order))

    def squeeze(self) -> None:
        k = self.find(lambda t: 1 in t.shape)
        if k is not None:
            shape = list(self.types[k].shape)
            d = self.pick([d for d, size in enumerate(shape) if size == 1])
            self._layout("squeeze", k, shape[:d] + shape[d + 1 :], dimensions=[d])

    def slice(self) -> None:
        k = self.find(lambda t: bool(t.shape))
        if k is None:
            return
        starts, limits, steps = [], [], []
        for size in self.types[k].shape:
            start = self.pick([0, 0, min(1, size), size // 2])
            starts.append(start)
            limits.append(self.pick([size, size, max(start, size - 1), min(size, start + 2)]))
            steps.append(self.pick([1, 1, 2, 3]))
        shape = [-(-(b - a) // s) for a, b, s in zip(starts, limits, steps, strict=True)]
        self._layout(
            "slice", k, shape, start_indices=starts, limit_indices=limits, strides=steps
        )

    def rev(self) -> None:
        k = self.find(lambda t: bool(t.shape))
        if k is not None:
            shape = self.types[k].shape
            self._layout("rev", k, shape, dimensions=self._axes(len(shape)))

    def pad(self) -> None:
        k = self.find(lambda t: bool(t.shape))
        if k is None:
            return
        config, shape = [], []
        for size in self.types[k].shape:
            low, high = self.pick([0, 1, 2, -1]), self.pick([0, 1, -1])
            interior = self.pick([0, 0, 2])
            new = low + high + size + max(size - 1, 0) * interior
            if new < 0:
                low, high, interior, new = 0, 0, 0, size
            config.append([low, high, interior])
            shape.append(new)
        value = True if self.types[k].dtype == "bool" else self.pick([0, 1, 2])
        self._layout("pad", k, shape, value=value, config=config)

    def concatenate(self) -> None:
        k = self.find(lambda t: bool(t.shape))
        if k is None:
            return
        t = self.types[k]
        d = self.pick(range(len(t.shape)))

        def fits(u: Type) -> bool:
            same = [e for e in range(len(t.shape)) if e != d]
            return (
                u.dtype == t.dtype and len(u.shape) == len(t.shape)
                and all(u.shape[e] == t.shape[e] for e in same)
            )  # fmt: skip

        parts = [k, *(self.find(fits) for _ in range(self.pick([1, 2])))]
        shape = list(t.shape)
        shape[d] = sum(self.types[p].shape[d] for p in parts)
        bound = max(self.types[p].bound for p in parts)
        if prod(shape) <= MOST_ELEMENTS:
            self.add("concatenate", parts, shape, t.dtype, True, bound, dimension=d)

    # --- indices and contractions ----------------------------------------------------------

    def iota(self) -> None:
        shape = [self.pick(self.sizes) for _ in range(self.pick([1, 2]))]
        dtype = self.pick(["int32", "float32"])
        dimension = self.pick(range(len(shape)))
        self.add("iota", [], shape, dtype, True, 33, dtype=dtype, shape=shape, dimension=dimension)

    def gather(self) -> None:
        k = self.find(lambda t: bool(t.shape) and t.shape[0] > 0)
        index = self.find(lambda t: t.dtype == "int32")
        if k is None or index is None:
            return
        shape = [*self.types[index].shape, *self.types[k].shape[1:]]
        if prod(shape) <= MOST_ELEMENTS and len(shape) <= 4:
            t, mode = self.types[k], self.pick(["clip", "fill", "zero"])
            self.add("row_gather", [k, index], shape, t.dtype, True, t.bound, mode=mode)

    def contract(self) -> None:
        k = self.find(lambda t: (t.is_float or t.dtype == "complex64") and bool(t.shape))
        if k is None:
            return
        t = self.types[k]
        d = self.pick(range(len(t.shape)))
        size = t.shape[d]
        other = self.find(lambda u: u.dtype == t.dtype and size in u.shape)
        u = self.types[other]
        e = u.shape.index(size)
        batch: tuple[list[int], list[int]] = ([], [])
        pairs = [
            (a, b) for a, m in enumerate(t.shape) for b, n in enumerate(u.shape)
            if a != d and b != e and m == n
        ]  # fmt: skip
        if pairs and self.pick([True, False]):
            a, b = self.pick(pairs)
            batch = ([a], [b])
        shape = [t.shape[a] for a in batch[0]]
        shape += [m for a, m in enumerate(t.shape) if a != d and a not in batch[0]]
        shape += [n for b, n in enumerate(u.shape) if b != e and b not in batch[1]]
        if prod(shape) <= MOST_ELEMENTS and len(shape) <= 4:
            bound = t.bound * u.bound * max(size, 1)
            self.add("dot", [k, other], shape, t.dtype, False, bound, axes=([d], [e]), batch=batch)


COMMON = ("unary", "binary", "reduce")
DRAWS = (
    *COMMON, *COMMON, *COMMON, "exact_unary", "number", "number", "logic", "compare", "select",
    "convert", "complex_parts", "position", "broadcast", "broadcast", "reshape", "reshape",
    "transpose", "squeeze", "slice", "rev", "pad", "concatenate", "iota", "gather", "contract",
)  # fmt: skip


@st.composite
def programs(draw: Any, most_steps: int = 14, dtypes: Sequence[str] = ()) -> Program:
    """Programs of up to ``most_steps`` draws; most values are float32."""
    some = st.sampled_from([0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33, 2, 3, 4, 5])
    sizes = draw(st.lists(some, min_size=2, max_size=3))
    names = dtypes or (*("float32",) * 8, *FLOATS, *INTEGERS, "bool", "complex64")
    inputs = []
    for _ in range(draw(st.integers(1, 4))):
        rank = draw(st.sampled_from([0, 1, 2, 2, 2, 3]))
        shape = tuple(draw(st.sampled_from([*sizes, *sizes, 1])) for _ in range(rank))
        while prod(shape) > MOST_ELEMENTS:
            shape = shape[1:]
        inputs.append((shape, draw(st.sampled_from(names))))
    maker = Maker(draw, sizes, inputs)
    for _ in range(draw(st.integers(4, most_steps))):
        getattr(maker, draw(st.sampled_from(DRAWS)))()
    count = len(maker.types)
    used = {k for step in maker.steps for k in step.args}
    last = [k for k in range(len(inputs), count) if k not in used]
    extra = draw(st.lists(st.integers(0, count - 1), max_size=2))
    outputs = tuple([*last, *extra] or [count - 1])
    nested = (0, 0)
    if len(maker.steps) > 3 and draw(st.integers(0, 3)) == 0:
        first = draw(st.integers(0, len(maker.steps) - 2))
        nested = (first, draw(st.integers(first + 1, len(maker.steps))))
    return Program(tuple(inputs), tuple(maker.steps), outputs, nested, draw(st.integers(0, 99)))
