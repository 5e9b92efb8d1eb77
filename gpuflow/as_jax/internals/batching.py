"""``jax.interpreters.batching``: rules for vmap of external primitives.

Tests: tests/test_as_jax_primitives.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from gpuflow.as_jax.internals.primitives import Primitive, fancy_primitive_batchers
from gpuflow.as_jax.internals.primitives import axis_primitive_batchers as axis_primitive_batchers
from gpuflow.as_jax.internals.primitives import primitive_batchers as primitive_batchers
from gpuflow.base.util import safe_zip
from gpuflow.control.mapped_axes import register_axes
from gpuflow.core.rules import AxisData as AxisData
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.layout.transpose import move_axis
from gpuflow.transforms.batching import BatchTrace as BatchTrace
from gpuflow.transforms.batching import BatchTracer as BatchTracer

not_mapped = None


def bdim_at_front(x: Any, bdim: int | None, size: int) -> Any:
    """``x`` with its mapped dimension in front; repeated, if it has none."""
    return batch_to_dim(x, bdim, 0, size)


def broadcast(x: Any, size: int, axis: int) -> Any:
    """``x`` repeated along a new dimension."""
    return batch_to_dim(x, None, axis, size)


def moveaxis(x: Any, src: int, dst: int) -> Any:
    """``x`` with a mapped dimension elsewhere."""
    return x if src == dst else move_axis(x, src, dst)


_vmappable: set[type] = set()


def is_vmappable(x: Any) -> bool:
    """Return whether ``x`` has a type with a custom rule for mapping."""
    return type(x) in _vmappable


def register_vmappable(
    data_type: type,
    spec_type: type,
    axis_size_type: type,
    to_elt: Callable[..., Any],
    from_elt: Callable[..., Any],
    make_iota: Callable[..., Any] | None = None,
) -> None:
    """Register a type with a custom rule for mapping, which raises an error.

    They pass through everything else, and through vmap where they are not mapped.
    """
    del spec_type, axis_size_type, to_elt, from_elt, make_iota
    _vmappable.add(data_type)
    register_axes(data_type, _refuse_axis)


def _refuse_axis(node: Any, axis: int, what: str) -> NoReturn:
    raise NotImplementedError(
        f"[vmap] mapped values must be trees of arrays that are mapped alike; got axis {axis} in "
        f"{what} for a {type(node).__name__}, a type of a library with its own way "
        "(register_vmappable). Fix: in_axes=None for it, or a loop."
    )


def defvectorized(primitive: Primitive) -> None:
    """A primitive of one operand that does not care for dimensions."""

    def batch(axis: Any, operands: Any, dims: Any, /, **params: Any) -> Any:
        return primitive.bind(operands[0], **params), dims[0]

    fancy_primitive_batchers[primitive] = batch


def defbroadcasting(primitive: Primitive) -> None:
    """A primitive whose operands have one shape, element by element."""

    def batch(axis: Any, operands: Any, dims: Any, /, **params: Any) -> Any:
        aligned = [bdim_at_front(x, dim, axis.size) for x, dim in safe_zip(operands, dims)]
        return primitive.bind(*aligned, **params), 0

    fancy_primitive_batchers[primitive] = batch
