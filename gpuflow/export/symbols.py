"""Sizes that are not known yet: polynomials of named sizes, with floordiv, mod, max and min.

A size is at least 1. Comparisons answer where all sizes that the scope allows give one answer, and
raise otherwise.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import total_ordering
from typing import Any

from gpuflow.base import tree
from gpuflow.base.errors import ExportError, InconclusiveDimensionOperation, check
from gpuflow.base.records import record
from gpuflow.control.stages import ShapeDtypeStruct
from gpuflow.core.aval import ShapedArray, aval_of

Monomial = tuple[tuple[Any, int], ...]  # factors, symbols or calls, with their powers
Sizes = Mapping[str, int]

_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv, "mod": operator.mod, "max": max, "min": min,
}  # fmt: skip
_COMPARISONS: dict[type, tuple[str, Callable[[Any, Any], bool]]] = {
    ast.GtE: (">=", operator.ge), ast.LtE: ("<=", operator.le), ast.Eq: ("==", operator.eq),
    ast.Gt: (">", operator.gt), ast.Lt: ("<", operator.lt),
}  # fmt: skip


@record
class _Call:
    """A factor that is a function of two sizes."""

    name: str
    left: Any
    right: Any

    def __str__(self) -> str:
        return f"{self.name}({self.left}, {self.right})"


@record
class Constraint:
    """A condition on sizes, as text and as two sizes that are compared."""

    text: str
    left: Any
    compare: Callable[[Any, Any], bool]
    right: Any

    def holds(self, sizes: Sizes) -> bool:
        """Whether it does for these sizes."""
        return self.compare(value_of(self.left, sizes), value_of(self.right, sizes))


class SymbolicScope:
    """Conditions on the symbolic sizes of one exported function.

    Args:
        constraints_str: conditions such as ``"b >= 8"``, ``"mod(b, 8) == 0"`` or ``"a == 2*b"``.

    Raises:
        ValueError: a text that is no comparison of sizes.

    Example:
        >>> from gpuflow import export
        >>> scope = export.SymbolicScope(["b >= 8"])
        >>> b, = export.symbolic_shape("b", scope=scope)
        >>> b >= 4
        True
    """

    def __init__(self, constraints_str: Sequence[str] = ()) -> None:
        if isinstance(constraints_str, str):
            constraints_str = (constraints_str,)
        self.constraints = tuple(_constraint(text, self) for text in constraints_str)

    def __repr__(self) -> str:
        return f"SymbolicScope([{', '.join(repr(one.text) for one in self.constraints)}])"

    def least(self, symbol: str) -> int:
        """The least size that a symbol may have, by the conditions on it alone."""
        least = 1
        for one in self.constraints:
            if str(one.left) == symbol and isinstance(one.right, int):
                if one.compare in (operator.ge, operator.eq):
                    least = max(least, one.right)
                elif one.compare is operator.gt:
                    least = max(least, one.right + 1)
        return least

    def most(self, symbol: str) -> int | None:
        """The largest size, likewise; None: there is none."""
        most = None
        for one in self.constraints:
            if str(one.left) == symbol and isinstance(one.right, int):
                bound = {operator.le: 0, operator.eq: 0, operator.lt: -1}.get(one.compare)
                if bound is not None:
                    most = min(one.right + bound, one.right + bound if most is None else most)
        return most


@total_ordering
class Dimension:
    """A symbolic size: ``2*b + 1``. Arithmetic with ints and other symbolic sizes gives more."""

    __slots__ = ("scope", "terms")

    def __init__(self, terms: Mapping[Monomial, int], scope: SymbolicScope) -> None:
        kept = [(monomial, count) for monomial, count in terms.items() if count]
        self.terms = dict(sorted(kept, key=lambda term: _order(term[0])))
        self.scope = scope

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, int | Dimension):
            return NotImplemented
        terms = dict(self.terms)
        for monomial, count in _terms(other).items():
            terms[monomial] = terms.get(monomial, 0) + count
        return _simplest(terms, self.scope)

    __radd__ = __add__

    def __neg__(self) -> Any:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        return self + -other if isinstance(other, int | Dimension) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, int | Dimension):
            return NotImplemented
        terms: dict[Monomial, int] = {}
        for left, count in self.terms.items():
            for right, times in _terms(other).items():
                monomial = _product(left, right)
                terms[monomial] = terms.get(monomial, 0) + count * times
        return _simplest(terms, self.scope)

    __rmul__ = __mul__

    def __pow__(self, exponent: int) -> Any:
        result: Any = 1
        for _ in range(exponent):
            result = self * result
        return result

    def __floordiv__(self, other: Any) -> Any:
        if not isinstance(other, int | Dimension):
            return NotImplemented
        if isinstance(other, int) and other and all(n % other == 0 for n in self.terms.values()):
            return _simplest({m: n // other for m, n in self.terms.items()}, self.scope)
        return _call("floordiv", self, other, self.scope)

    def __rfloordiv__(self, other: int) -> Any:
        return _call("floordiv", other, self, self.scope)

    def __mod__(self, other: Any) -> Any:
        if not isinstance(other, int | Dimension):
            return NotImplemented
        if isinstance(other, int) and other and all(n % other == 0 for n in self.terms.values()):
            return 0
        return _call("mod", self, other, self.scope)

    def __rmod__(self, other: int) -> Any:
        return _call("mod", other, self, self.scope)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int | Dimension):
            return NotImplemented
        difference = self - other
        if isinstance(difference, int):
            return difference == 0
        low, high = _bounds(difference)
        if (low is not None and low > 0) or (high is not None and high < 0):
            return False
        return low == high == 0

    def __ge__(self, other: Any) -> bool:
        if not isinstance(other, int | Dimension):
            return NotImplemented
        difference = self - other
        low, high = (difference,) * 2 if isinstance(difference, int) else _bounds(difference)
        if low is not None and low >= 0:
            return True
        if high is not None and high < 0:
            return False
        raise InconclusiveDimensionOperation(
            f"[export] a comparison of symbolic sizes must have one answer; got {self} >= {other}. "
            f"Fix: symbolic_shape(..., constraints=['{self} >= {other}'])."
        )

    def __gt__(self, other: Any) -> bool:
        return self >= other + 1

    def __lt__(self, other: Any) -> bool:
        return not self >= other

    def __le__(self, other: Any) -> bool:
        return not self >= other + 1

    def __hash__(self) -> int:
        return hash(tuple(self.terms.items()))

    def __bool__(self) -> bool:
        return self != 0

    def __int__(self) -> int:
        raise InconclusiveDimensionOperation(
            f"[export] a symbolic size must not be used as a number; got {self}. Fix: "
            "export.export(jit(f))(ShapeDtypeStruct(shape, dtype)), in which f sees numbers."
        )

    __index__ = __int__

    def __repr__(self) -> str:
        parts = []
        for monomial, count in self.terms.items():
            factors = [f"{f}^{power}" if power > 1 else str(f) for f, power in monomial]
            if not factors or abs(count) != 1:
                factors.insert(0, str(abs(count)))
            parts.append((" - " if count < 0 else " + ") + "*".join(factors))
        text = "".join(parts)
        return text[3:] if text.startswith(" + ") else "-" + text[3:]

    __str__ = __repr__


def _order(monomial: Monomial) -> tuple[Any, ...]:
    return -sum(power for _, power in monomial), str(monomial)


def _terms(value: Any) -> Mapping[Monomial, int]:
    return value.terms if isinstance(value, Dimension) else {(): int(value)}


def _product(left: Monomial, right: Monomial) -> Monomial:
    powers = dict(left)
    for factor, power in right:
        powers[factor] = powers.get(factor, 0) + power
    return tuple(sorted(powers.items(), key=lambda pair: str(pair[0])))


def _simplest(terms: Mapping[Monomial, int], scope: SymbolicScope) -> Any:
    kept = {monomial: count for monomial, count in terms.items() if count}
    if not set(kept) - {()}:
        return kept.get((), 0)
    return Dimension(kept, scope)


def _call(name: str, left: Any, right: Any, scope: SymbolicScope) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        return _FUNCTIONS[name](left, right)
    return Dimension({((_Call(name, left, right), 1),): 1}, scope)


def _bounds(dimension: Dimension) -> tuple[int | None, int | None]:
    """The least and the largest value, as far as they are known."""
    low: int | None = 0
    high: int | None = 0
    for monomial, count in dimension.terms.items():
        least: int | None = 1
        most: int | None = 1
        for factor, power in monomial:
            f_least, f_most = _factor_bounds(factor, dimension.scope)
            least = None if least is None or f_least is None else least * f_least**power
            most = None if most is None or f_most is None else most * f_most**power
        ends = (least, most) if count > 0 else (most, least)
        low = None if low is None or ends[0] is None else low + count * ends[0]
        high = None if high is None or ends[1] is None else high + count * ends[1]
    return low, high


def _factor_bounds(factor: Any, scope: SymbolicScope) -> tuple[int | None, int | None]:
    if isinstance(factor, str):
        return scope.least(factor), scope.most(factor)
    if factor.name == "mod" and isinstance(factor.right, int) and factor.right > 0:
        return 0, factor.right - 1
    if factor.name == "floordiv" and isinstance(factor.right, int) and factor.right > 0:
        ends = _bounds(factor.left) if isinstance(factor.left, Dimension) else (factor.left,) * 2
        low, high = (None if end is None else end // factor.right for end in ends)
        return (low if low is not None and low >= 0 else None), high
    return None, None


def value_of(size: Any, sizes: Sizes) -> int:
    """The number that a size is for numbers of its symbols."""
    if isinstance(size, int):
        return size
    if isinstance(size, str):
        return sizes[size]
    if isinstance(size, _Call):
        return _FUNCTIONS[size.name](value_of(size.left, sizes), value_of(size.right, sizes))
    total = 0
    for monomial, count in size.terms.items():
        for factor, power in monomial:
            count *= value_of(factor, sizes) ** power
        total += count
    return total


def symbols_of(size: Any) -> set[str]:
    """The names in a size."""
    if isinstance(size, int):
        return set()
    if isinstance(size, str):
        return {size}
    if isinstance(size, _Call):
        return symbols_of(size.left) | symbols_of(size.right)
    return {s for monomial in size.terms for factor, _ in monomial for s in symbols_of(factor)}


# --- texts ---------------------------------------------------------------------------------

_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.BitXor: operator.pow,
}  # fmt: skip
_LONGEST = 10_000


def parsed(text: str, scope: SymbolicScope) -> Any:
    """The size of a text such as ``2*b + 1``.

    Raises:
        ValueError: it is none.
    """
    return _size(_syntax(text), text, scope)


def _syntax(text: str) -> ast.expr:
    try:
        # ^ is a power, which binds more than Python's.
        check(len(text) <= _LONGEST, lambda: "too long", ValueError)
        return ast.parse(text.strip().replace("^", "**"), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _no_size(text) from None


def _size(node: ast.expr, text: str, scope: SymbolicScope) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return Dimension({((node.id, 1),): 1}, scope)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_size(node.operand, text, scope)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _size(node.left, text, scope), _size(node.right, text, scope)
        if isinstance(node.op, ast.Pow) and not (isinstance(right, int) and 0 <= right <= 8):
            raise _no_size(text)
        return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2:
        name, pair = node.func.id, [_size(part, text, scope) for part in node.args]
        if name == "floordiv":
            return pair[0] // pair[1]
        if name == "mod":
            return pair[0] % pair[1]
        if name in _FUNCTIONS:
            return _call(name, *pair, scope)
    raise _no_size(text)


def _no_size(text: str) -> ValueError:
    return ValueError(
        "[export] a size must be written with names, ints, +, -, *, floordiv, mod, max and min; "
        f"got {text!r}. Fix: 'b', '2*b + 1' or 'floordiv(b, 2)'."
    )


def _constraint(text: str, scope: SymbolicScope) -> Constraint:
    node = _syntax(text)
    if not (isinstance(node, ast.Compare) and len(node.ops) == 1):
        raise ValueError(
            f"[export] a constraint must be one comparison of sizes; got {text!r}. Fix: 'b >= 8'."
        )
    known = _COMPARISONS.get(type(node.ops[0]))
    check(known is not None, lambda: f"[export] a constraint compares by one of >=, <=, ==, >, <; "
          f"got {text!r}. Fix: 'b >= 8'.", ValueError)  # fmt: skip
    assert known is not None
    left, right = _size(node.left, text, scope), _size(node.comparators[0], text, scope)
    return Constraint(text.strip(), left, known[1], right)


# --- shapes --------------------------------------------------------------------------------


def symbolic_shape(
    shape_spec: str | None,
    *,
    constraints: Sequence[str] = (),
    scope: SymbolicScope | None = None,
    like: Sequence[int | None] | None = None,
) -> tuple[Any, ...]:
    """A shape with sizes that are known at the call of an exported function.

    Args:
        shape_spec: sizes with commas: ``"b, 3"``, ``"2*b, _"``; ``_`` and ``...`` are taken from
            ``like``.
        constraints: conditions on the sizes, see ``SymbolicScope``; for a new scope.
        scope: of the sizes; None: a new one. Shapes of one export share one.
        like: a shape for ``_`` and ``...``.

    Returns:
        A tuple of ints and symbolic sizes.

    Raises:
        ValueError: a text that is no shape, or ``constraints`` beside ``scope``.

    Example:
        >>> from gpuflow import export
        >>> export.symbolic_shape("b, 2*b, 3")
        (b, 2*b, 3)
    """
    check(
        scope is None or not constraints,
        lambda: (
            "[symbolic_shape] constraints belong to a new scope; got both. "
            "Fix: SymbolicScope(constraints), given as scope."
        ),
        ValueError,
    )
    scope = scope or SymbolicScope(constraints)
    text = "..." if shape_spec is None else shape_spec.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    parts = [part.strip() for part in _split(text) if part.strip()]
    if parts and parts[-1] == "...":
        check(like is not None and len(like) >= len(parts) - 1, lambda: _needs_like(text), ValueError)
        assert like is not None
        parts = [*parts[:-1], *["_"] * (len(like) - len(parts) + 1)]
    shape: list[Any] = []
    for k, part in enumerate(parts):
        if part == "_":
            known = like[k] if like is not None and k < len(like) else None
            check(known is not None, lambda: _needs_like(text), ValueError)
            shape.append(known)
        else:
            shape.append(parsed(part, scope))
    return tuple(shape)


def _split(text: str) -> list[str]:
    """The parts between commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _needs_like(text: str) -> str:
    return (
        f"[symbolic_shape] _ and ... must have sizes in like; got {text!r} without. "
        "Fix: symbolic_shape('b, ...', like=x.shape)."
    )


def symbolic_args_specs(
    args: Any,
    shapes_specs: Any,
    constraints: Sequence[str] = (),
    scope: SymbolicScope | None = None,
) -> Any:
    """Arguments as ShapeDtypeStructs with symbolic sizes, for ``export``.

    Args:
        args: a tree of arrays or ShapeDtypeStructs.
        shapes_specs: a tree prefix of ``args`` with texts of shapes; None keeps a shape.
        constraints: conditions on the sizes.
        scope: of the sizes; None: a new one.

    Returns:
        A tree like ``args``.

    Raises:
        ValueError: as for ``symbolic_shape``.

    Example:
        >>> import gpuflow.numpy as jnp
        >>> from gpuflow import export
        >>> export.symbolic_args_specs((jnp.ones((4, 3)),), "b, ...")
        (ShapeDtypeStruct(shape=(b, 3), dtype=float32),)
    """
    leaves, treedef = tree.flatten(args)
    scope = scope or SymbolicScope(constraints)
    specs = tree.broadcast_prefix(shapes_specs, args, "symbolic_args_specs")
    structs = []
    for leaf, spec in zip(leaves, specs, strict=True):
        old = leaf if isinstance(leaf, ShapeDtypeStruct) else aval_of(leaf)
        shape = symbolic_shape(spec, like=old.shape, scope=scope)
        structs.append(ShapeDtypeStruct(shape, old.dtype, old.weak_type))
    return tree.unflatten(treedef, structs)


def is_symbolic_dim(d: Any) -> bool:
    """Whether a size is symbolic.

    Args:
        d: a size from a shape.

    Returns:
        True for what ``symbolic_shape`` made of names.

    Example:
        >>> from gpuflow import export
        >>> [export.is_symbolic_dim(d) for d in export.symbolic_shape("b, 3")]
        [True, False]
    """
    return isinstance(d, Dimension)


class SymbolicType(ShapedArray):
    """A type with symbolic sizes, as exported functions tell of it; no array has it."""

    __slots__ = ()

    def __new__(cls, shape: Sequence[Any], dtype: Any, weak_type: bool = False) -> Any:
        self = object.__new__(cls)
        plain = ShapedArray((), dtype, weak_type)
        for name in ("dtype", "weak_type", "mat"):
            object.__setattr__(self, name, getattr(plain, name))
        object.__setattr__(self, "shape", tuple(shape))
        return self

    def at(self, sizes: Sizes) -> ShapedArray:
        """The type for numbers of the symbols."""
        shape = tuple([value_of(size, sizes) for size in self.shape])
        return ShapedArray(shape, self.dtype, self.weak_type)


def type_with(shape: Iterable[Any], dtype: Any, weak_type: bool) -> ShapedArray:
    """The type of a shape that may have symbolic sizes."""
    shape = tuple(shape)
    cls = SymbolicType if any(map(is_symbolic_dim, shape)) else ShapedArray
    return cls(shape, dtype, weak_type)


def type_at(aval: ShapedArray, sizes: Sizes) -> ShapedArray:
    """A type for numbers of its symbols."""
    return aval.at(sizes) if isinstance(aval, SymbolicType) else aval


def solved(avals: Sequence[ShapedArray], shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """The numbers of all symbols by the shapes of arguments, by one equation after the other.

    Args:
        avals: the types of the arguments.
        shapes: those of the call, of the same ranks.

    Raises:
        ExportError: the sizes do not tell a symbol.
    """
    sizes: dict[str, int] = {}
    open_ones = [
        (size, got)
        for aval, shape in zip(avals, shapes, strict=True)
        for size, got in zip(aval.shape, shape, strict=True)
        if isinstance(size, Dimension)
    ]
    while True:
        left = [(size, got) for size, got in open_ones if symbols_of(size) - set(sizes)]
        found = {}
        for size, got in left:
            unknown = symbols_of(size) - set(sizes)
            if len(unknown) == 1:
                (symbol,) = unknown
                answer = _solution(size, got, symbol, sizes)
                if answer is not None:
                    found[symbol] = answer
                    break
        if not found:
            break
        sizes.update(found)
    names = {symbol for size, _ in left for symbol in symbols_of(size)} - set(sizes)
    check(
        not names,
        lambda: (
            f"[export] the shapes of the arguments must tell {', '.join(sorted(names))}; got "
            f"{', '.join(f'{size} = {got}' for size, got in left)}, which has no one answer. "
            "Fix: give the size a dimension of its own."
        ),
        ExportError,
    )
    return sizes


def _solution(size: Dimension, got: int, symbol: str, sizes: Sizes) -> int | None:
    """The number of a symbol on which a size depends linearly; None: it does not, or there is none."""
    try:
        values = [value_of(size, {**sizes, symbol: n}) for n in (1, 2, 3)]
    except ZeroDivisionError:
        return None
    slope = values[1] - values[0]
    is_linear = slope and all(
        isinstance(f, str) or symbol not in symbols_of(f) for m in size.terms for f, _ in m
    )
    if not is_linear or values[2] - values[1] != slope or (got - values[0]) % slope:
        return None
    return 1 + (got - values[0]) // slope
