"""Parse sizes and constraints on them, and the scope that holds those.

Tests: tests/test_export_forgeries.py, tests/test_export_sizes.py.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base.errors import ExportError, check
from gpuflow.base.records import record
from gpuflow.export.dimensions import FUNCTIONS, Sizes, call, symbol, value_of

_COMPARISONS: dict[type, tuple[str, Callable[[Any, Any], bool]]] = {
    ast.GtE: (">=", operator.ge),
    ast.LtE: ("<=", operator.le),
    ast.Eq: ("==", operator.eq),
    ast.Gt: (">", operator.gt),
    ast.Lt: ("<", operator.lt),
}


@record
class Constraint:
    """A condition on sizes: ``compare(left, right)``.

    Attributes:
        text: the condition as the user wrote it.
        left, right: ints or Dimensions.
        compare: a function of module operator.
    """

    text: str
    left: Any
    compare: Callable[[Any, Any], bool]
    right: Any

    def holds(self, sizes: Sizes) -> bool:
        """Whether the condition holds for these sizes; False if it divides by 0."""
        try:
            return self.compare(value_of(self.left, sizes), value_of(self.right, sizes))
        except ExportError:
            return False


class SymbolicScope:
    """Constraints on the symbolic sizes of one exported function.

    Args:
        constraints_str: conditions such as ``"b >= 8"``, ``"mod(b, 8) == 0"`` or ``"a == 2*b"``.

    Raises:
        ValueError: if the text is not a comparison of sizes.

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
        """Return the minimum size of a symbol according to the constraints on it alone."""
        minimum = 1
        for constraint in self.constraints:
            if str(constraint.left) == symbol and isinstance(constraint.right, int):
                if constraint.compare in (operator.ge, operator.eq):
                    minimum = max(minimum, constraint.right)
                elif constraint.compare is operator.gt:
                    minimum = max(minimum, constraint.right + 1)
        return minimum

    def most(self, symbol: str) -> int | None:
        """Return the maximum size of a symbol, or None if it is unbounded."""
        maximum = None
        for constraint in self.constraints:
            if str(constraint.left) == symbol and isinstance(constraint.right, int):
                bound = {operator.le: 0, operator.eq: 0, operator.lt: -1}.get(constraint.compare)
                if bound is not None:
                    maximum = min(
                        constraint.right + bound,
                        constraint.right + bound if maximum is None else maximum,
                    )
        return maximum


_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitXor: operator.pow,
}
# Far more than sizes of programs have; texts from files must not take time or memory without end.
_MAX_LENGTH = 10_000
_DEEPEST = 100
_MAX_TERMS = 1000
_MAX_INTEGER = 1 << 62
_HIGHEST_POWER = 64


def parsed(text: str, scope: SymbolicScope) -> Any:
    """The size of a text such as ``2*b + 1``.

    Raises:
        ValueError: if it is invalid.
    """
    return _size(_syntax(text), text, scope, 0)


def _syntax(text: str) -> ast.expr:
    try:
        # ^ is a power, which binds more than Python's.
        check(len(text) <= _MAX_LENGTH, lambda: "too long", ValueError)
        return ast.parse(text.strip().replace("^", "**"), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _no_size(text) from None


def _size(node: ast.expr, text: str, scope: SymbolicScope, depth: int) -> Any:
    """The size of an expression, whose subexpressions are all bounded."""
    if depth > _DEEPEST:
        raise _no_size(text)
    size = _computed(node, text, scope, depth + 1)
    if not _is_bounded(size):
        raise _no_size(text)
    return size


def _check_divisor(size: Any, text: str) -> None:
    if isinstance(size, int) and size == 0:
        raise _no_size(text)


def _is_bounded(size: Any) -> bool:
    if isinstance(size, int):
        return abs(size) <= _MAX_INTEGER
    powers = (sum(power for _, power in monomial) for monomial in size.terms)
    return (
        len(size.terms) <= _MAX_TERMS
        and max(powers, default=0) <= _HIGHEST_POWER
        and all(abs(count) <= _MAX_INTEGER for count in size.terms.values())
    )


def _computed(node: ast.expr, text: str, scope: SymbolicScope, depth: int) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return symbol(node.id, scope)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_size(node.operand, text, scope, depth)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _size(node.left, text, scope, depth), _size(node.right, text, scope, depth)
        is_power = isinstance(node.op, ast.Pow)
        if is_power and not (isinstance(right, int) and 0 <= right <= 8):
            raise _no_size(text)
        terms = [1 if isinstance(operand, int) else len(operand.terms) for operand in (left, right)]
        if isinstance(node.op, ast.Mult) and terms[0] * terms[1] > _MAX_TERMS:
            raise _no_size(text)
        if is_power and math.comb(right + terms[0] - 1, right) > _MAX_TERMS:
            raise _no_size(text)
        if isinstance(node.op, ast.FloorDiv | ast.Mod):
            _check_divisor(right, text)
        return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2:
        name = node.func.id
        left, right = (_size(operand, text, scope, depth) for operand in node.args)
        if name in ("floordiv", "mod"):
            _check_divisor(right, text)
        if name == "floordiv":
            return left // right
        if name == "mod":
            return left % right
        if name in FUNCTIONS:
            return call(name, left, right, scope)
    raise _no_size(text)


def _no_size(text: str) -> ValueError:
    return ValueError(
        "[export] a size must be written with names, ints, +, -, *, floordiv, mod, max and min; "
        f"got {text[:200]!r}. Fix: 'b', '2*b + 1' or 'floordiv(b, 2)'."
    )


def _constraint(text: str, scope: SymbolicScope) -> Constraint:
    node = _syntax(text)
    if not (isinstance(node, ast.Compare) and len(node.ops) == 1):
        raise ValueError(
            "[export] a constraint must be one comparison of sizes; got "
            f"{text[:200]!r}. Fix: 'b >= 8'."
        )
    operator_of = _COMPARISONS.get(type(node.ops[0]))
    check(
        operator_of is not None,
        lambda: (
            f"[export] a constraint compares by one of >=, <=, ==, >, <; got {text[:200]!r}. "
            "Fix: 'b >= 8'."
        ),
        ValueError,
    )
    assert operator_of is not None
    left, right = _size(node.left, text, scope, 0), _size(node.comparators[0], text, scope, 0)
    return Constraint(text=text.strip(), left=left, compare=operator_of[1], right=right)
