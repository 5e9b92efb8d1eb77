"""Shapes and types with symbolic sizes, and the equations that determine the sizes at a call.

Tests: tests/test_export_sizes.py, tests/test_export_shape_inference.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gpuflow.base import tree
from gpuflow.base.errors import ExportError, check
from gpuflow.control.stages import ShapeDtypeStruct
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.export.dimensions import Dimension, Sizes, symbols_of, value_of
from gpuflow.export.texts import SymbolicScope, parsed


def symbolic_shape(
    shape_spec: str | None,
    *,
    constraints: Sequence[str] = (),
    scope: SymbolicScope | None = None,
    like: Sequence[int | None] | None = None,
) -> tuple[Any, ...]:
    """Return a shape with symbolic sizes, which the call of an exported function determines.

    Args:
        shape_spec: sizes separated by commas: ``"b, 3"``, ``"2*b, _"``; ``_`` and ``...`` are taken
            from ``like``.
        constraints: conditions on the sizes, see ``SymbolicScope``; for a new scope.
        scope: scope of the sizes; None creates a new one. All shapes of one export share a scope.
        like: a shape that provides the sizes for ``_`` and ``...``.

    Returns:
        A tuple of ints and symbolic sizes.

    Raises:
        ValueError: if the text is not a shape, or both ``constraints`` and ``scope`` are given.

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
    dims = [dim.strip() for dim in _split(text) if dim.strip()]
    if dims and dims[-1] == "...":
        fits = like is not None and len(like) >= len(dims) - 1
        check(fits, lambda: _needs_like(text), ValueError)
        assert like is not None
        dims = [*dims[:-1], *["_"] * (len(like) - len(dims) + 1)]
    shape: list[Any] = []
    for k, dim in enumerate(dims):
        if dim == "_":
            size = like[k] if like is not None and k < len(like) else None
            check(size is not None, lambda: _needs_like(text), ValueError)
            shape.append(size)
        else:
            shape.append(parsed(dim, scope))
    return tuple(shape)


def _split(text: str) -> list[str]:
    """Split at commas that are not in brackets."""
    dims, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            dims.append("")
        else:
            dims[-1] += letter
    return dims


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
    """Return arguments as ShapeDtypeStructs with symbolic sizes, for ``export``.

    Args:
        args: a pytree of arrays or ShapeDtypeStructs.
        shapes_specs: a tree prefix of ``args`` with shape strings; None keeps a shape.
        constraints: conditions on the sizes.
        scope: scope of the sizes; None creates a new one.

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


def is_symbolic_dim(p: Any) -> bool:
    """Return whether a size is symbolic.

    Args:
        p: an element of a shape.

    Returns:
        True for sizes that ``symbolic_shape`` created from names.

    Example:
        >>> from gpuflow import export
        >>> [export.is_symbolic_dim(d) for d in export.symbolic_shape("b, 3")]
        [True, False]
    """
    return isinstance(p, Dimension)


class SymbolicType(ShapedArray):
    """A type with symbolic sizes, which describes exported functions; no array has it."""

    __slots__ = ()

    def __new__(cls, shape: Sequence[Any], dtype: Any, weak_type: bool = False) -> Any:
        self = object.__new__(cls)
        plain = ShapedArray((), dtype, weak_type)
        for name in ("dtype", "weak_type", "mat"):
            object.__setattr__(self, name, getattr(plain, name))
        object.__setattr__(self, "shape", tuple(shape))
        return self

    def at(self, sizes: Sizes) -> ShapedArray:
        """The type at concrete sizes."""
        shape = tuple([value_of(size, sizes) for size in self.shape])
        return ShapedArray(shape, self.dtype, self.weak_type)


def type_with(shape: Iterable[Any], dtype: Any, weak_type: bool) -> ShapedArray:
    """The type of a shape that may have symbolic sizes."""
    shape = tuple(shape)
    cls = SymbolicType if any(map(is_symbolic_dim, shape)) else ShapedArray
    return cls(shape, dtype, weak_type)


def type_at(aval: ShapedArray, sizes: Sizes) -> ShapedArray:
    """Return a type at concrete sizes."""
    return aval.at(sizes) if isinstance(aval, SymbolicType) else aval


def solved(avals: Sequence[ShapedArray], shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """Solve for all symbols from the shapes of arguments, one equation at a time.

    Args:
        avals: the types of the arguments.
        shapes: those of the call, of the same ranks.

    Raises:
        ExportError: if the sizes do not determine a symbol.
    """
    sizes: dict[str, int] = {}
    open_ones = [
        (size, got)
        for aval, shape in zip(avals, shapes, strict=True)
        for size, got in zip(aval.shape, shape, strict=True)
        if isinstance(size, Dimension)
    ]
    while True:
        unsolved = [(size, got) for size, got in open_ones if symbols_of(size) - set(sizes)]
        solution = {}
        for size, got in unsolved:
            unknown = symbols_of(size) - set(sizes)
            if len(unknown) == 1:
                (symbol,) = unknown
                answer = _solution(size, got, symbol, sizes)
                if answer is not None:
                    solution[symbol] = answer
                    break
        if not solution:
            break
        sizes.update(solution)
    names = {symbol for size, _ in unsolved for symbol in symbols_of(size)} - set(sizes)
    check(
        not names,
        lambda: (
            f"[export] the shapes of the arguments must determine {', '.join(sorted(names))}; got "
            f"{', '.join(f'{size} = {got}' for size, got in unsolved)}, which has several "
            "solutions. "
            "Fix: give the size a separate dimension."
        ),
        ExportError,
    )
    return sizes


def _solution(size: Dimension, got: int, symbol: str, sizes: Sizes) -> int | None:
    """The value of a symbol on which a size depends linearly; None if there is none."""
    try:
        values = [value_of(size, {**sizes, symbol: n}) for n in (1, 2, 3)]
    except ExportError:
        return None
    slope = values[1] - values[0]
    is_linear = slope and all(
        isinstance(f, str) or symbol not in symbols_of(f) for m in size.terms for f, _ in m
    )
    if not is_linear or values[2] - values[1] != slope or (got - values[0]) % slope:
        return None
    return 1 + (got - values[0]) // slope
