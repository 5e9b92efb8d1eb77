"""Varying axes: types along named axes of shard_map, for derivatives.

A value varies along an axis if it is mapped over it. Otherwise it is one value for all elements of
the axis, and its cotangent is the sum of theirs. The transpose of an op cannot see whether an
operand varied, so these ops have a *token* as a second operand: an empty array that varies like the
first.

Tests: tests/parallel/test_varying.py, tests/parallel/test_shard_map.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np

from gpuflow.base import dtypes, tree
from gpuflow.base.config import config, expand_names
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.base.removed import note_removed
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.communicator import Across, Within
from gpuflow.core.rules import AxisData, Zero, is_undefined
from gpuflow.ops.collectives.named_axes import (
    Names,
    as_names,
    is_over,
    manual_axes,
    repeat_in_front,
    sizes_of,
    uses_of,
)
from gpuflow.ops.collectives.psum import psum_p
from gpuflow.ops.define import define
from gpuflow.ops.elementwise.arithmetic import constant, mul
from gpuflow.ops.elementwise.convert import stop_gradient
from gpuflow.ops.layout.axes import reduce_sum, reshape, squeeze
from gpuflow.ops.layout.slicing import slice_in_dim

_T = TypeVar("_T")


def is_checked(names: Names) -> bool:
    """Whether derivatives of a sum over these axes need varying-axis types."""
    return any(name in config.varying_axes for name in names)


def _token(x: Any) -> Any:
    return stop_gradient(slice_in_dim(reshape(x, (aval_of(x).size,)), 0, 0))


def _emptied(token: Any) -> Any:
    """The token without the dimension of a mapped axis."""
    return reshape(token, (0,))


@record
class Elements:
    """The elements of an axis: those of a batch, and those in other memories.

    Attributes:
        local: size of the batch.
        across: the axes that span memories, if there are any.
    """

    local: int
    across: tuple[Across, ...] = ()

    @property
    def count(self) -> int:
        """Number of all elements."""
        return self.local * prod(len((axis.groups or ((),))[0]) for axis in self.across)

    def total(self, x: Any, dim: int) -> Any:
        """The sum over all elements."""
        local = squeeze(x, (dim,)) if self.local == 1 else reduce_sum(x, (dim,))
        if not self.across:
            return local
        return psum_p.bind(local, axes=self.across, axis_index_groups=None)


def _across_axes(axis: AxisData, axes: Names) -> tuple[Across, ...]:
    """The axes across memories of a mapped axis within one memory."""
    if not isinstance(axis.name, Within):
        return ()
    user_name = axis.name.name
    return tuple(name for name in axes if isinstance(name, Across) and name.name == user_name)


Rule = Callable[[Any, int | None, int | None, Elements], tuple[Any, int | None]]


def _define(name: str, along: Rule, transposed: Callable[..., Any], varies: Any) -> Any:
    """Define an op of an operand and its token, linear in the operand.

    Args:
        name: of the op.
        along: ``(x, dim, dim of the token, elements) -> (result, dim)``: the computation along one
            axis. A value varies between memories if it does so in each of them.
        transposed: ``(cotangent, token, axes) -> cotangent``.
        varies: ``(varying, varying of the token, axes) -> varying``, all of them as sets.
    """

    def shape(x: ShapedArray, token: ShapedArray, *, axes: Names) -> ShapedArray:
        del token, axes
        return ShapedArray(x.shape, x.dtype)

    def impl(xp: Any, x: Any, token: Any, *, axes: Names) -> Any:
        del token, axes
        return xp.array(x)

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], *, axes: Names) -> tuple[Any, Any]:
        x, token = primals
        return primitive.bind(x, token, axes=axes), primitive.bind(tangents[0], token, axes=axes)

    def transpose(cotangent: Any, x: Any, token: Any, *, axes: Names) -> list[Any]:
        assert is_undefined(x)
        if type(cotangent) is Zero:
            return [Zero(x.aval.tangent()), None]
        return [transposed(cotangent, token, axes), None]

    def batch(
        axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], *, axes: Names
    ) -> tuple[Any, int | None]:
        (x, token), (dim, token_dim) = operands, dims
        unmapped_token = token if token_dim is None else _emptied(token)
        if not is_over(axis, axes):
            return primitive.bind(x, unmapped_token, axes=axes), dim
        across = _across_axes(axis, axes)
        result, dim = along(x, dim, token_dim, Elements(axis.size, across))
        remaining = tuple(name for name in axes if name != axis.name and name not in across)
        if remaining:
            result = primitive.bind(result, unmapped_token, axes=remaining)
        return result, dim

    primitive = define(
        name,
        shape=shape,
        impl=impl,
        jvp=jvp,
        transpose=transpose,
        batch=batch,
        effects=lambda params: uses_of(params["axes"]),
        varies=lambda varying, params: [varies(*varying, manual_axes(params["axes"]))],
    )
    return primitive


def _times(x: Any, elements: Elements) -> Any:
    return mul(x, constant(x, elements.count))


def _sum(x: Any, dim: int | None, token: int | None, elements: Elements) -> tuple[Any, int | None]:
    del token
    return (_times(x, elements) if dim is None else elements.total(x, dim)), None


def _sum_transposed(
    x: Any, dim: int | None, token: int | None, elements: Elements
) -> tuple[Any, int | None]:
    # The cotangents of copies of the sum vary.
    total = x if dim is None else elements.total(x, dim)
    return (total if token is not None else _times(total, elements)), None


def _match(
    x: Any, dim: int | None, token: int | None, elements: Elements
) -> tuple[Any, int | None]:
    if dim is None or token is not None:
        return x, dim
    return elements.total(x, dim), None


def _same(x: Any, dim: int | None, token: int | None, elements: Elements) -> tuple[Any, int | None]:
    del token, elements
    return x, dim


def _sum_cotangent(cotangent: Any, token: Any, axes: Names) -> Any:
    return transposed_sum_p.bind(cotangent, token, axes=axes)


def _matched(cotangent: Any, token: Any, axes: Names) -> Any:
    return match_p.bind(cotangent, token, axes=axes)


def _cast(x: Any, dim: int | None, token: int | None, elements: Elements) -> tuple[Any, int | None]:
    del token
    return (repeat_in_front(x, elements.local), 0) if dim is None else (x, dim)


def _uncast(
    x: Any, dim: int | None, token: int | None, elements: Elements
) -> tuple[Any, int | None]:
    return (x, dim) if token is not None else _sum(x, dim, token, elements)


Axes = frozenset[Any]


def _less(varying: Axes, token: Axes, axes: Axes) -> Axes:
    del token
    return varying - axes


def _less_than_token(varying: Axes, token: Axes, axes: Axes) -> Axes:
    return varying - (axes - token)


varying_sum_p = _define("varying_sum", _sum, _sum_cotangent, _less)
transposed_sum_p = _define("transposed_sum", _sum_transposed, _sum_cotangent, _less)
# The identity; its cotangent varies only if its operand does.
enter_p = _define("enter", _same, _matched, lambda varying, token, axes: varying)
match_p = _define("match", _match, _matched, _less_than_token)
# From a value that does not vary to copies that vary.
cast_p = _define(
    "pcast",
    _cast,
    lambda ct, token, axes: uncast_p.bind(ct, token, axes=axes),
    lambda varying, token, axes: varying | axes,
)
uncast_p = _define(
    "pcast_sum",
    _uncast,
    lambda ct, token, axes: cast_p.bind(ct, token, axes=axes),
    _less_than_token,
)


def varying_sum(x: Any, axes: Names) -> Any:
    """Sum over axes in scope, with correct cotangents whether ``x`` varies or not.

    Args:
        x: an array of numbers.
        axes: names of axes of a shard_map.
    """
    return varying_sum_p.bind(x, _token(x), axes=axes)


def entered(leaves: Sequence[Any]) -> Sequence[Any]:
    """Convert the input of a differentiated function.

    In shard_map, the cotangent of a value that does not vary is summed over all elements.
    """
    axes = config.varying_axes
    if not axes:
        return leaves
    return [
        enter_p.bind(leaf, _token(leaf), axes=axes)
        if dtypes.is_inexact(aval_of(leaf).dtype)
        else leaf
        for leaf in leaves
    ]


@explained
def pcast(x: _T, axis_name: Any, *, to: str) -> _T:
    """Convert to a value that varies along named axes, with separate cotangents.

    Args:
        x: an array or pytree.
        axis_name: an axis name, or several.
        to: must be "varying".

    Returns:
        The same values.

    Raises:
        NameError: if no enclosing transformation binds the axis name.
        ValueError: if ``to`` is unknown, or the value already varies along the axes.
        NotImplementedError: if ``to`` is "reduced" or "unreduced".

    Example:
        >>> mesh, P = gf.make_mesh((1,), ("i",)), gf.P
        >>> f = lambda x: x + lax.pcast(jnp.ones(2), "i", to="varying")
        >>> gf.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"))(jnp.arange(2.0))
        Array([1., 2.], dtype=float32)
    """
    return _cast_along(x, axis_name, to, False)


def _cast_along(x: Any, axis_name: Any, to: str, is_again: bool) -> Any:
    check(
        to in ("varying", "reduced", "unreduced"),
        lambda: (
            f"[pcast] to must be 'varying', 'reduced' or 'unreduced'; got {to!r}. "
            "Fix: to='varying'."
        ),
        ValueError,
    )
    if to != "varying":
        raise NotImplementedError(
            f"[pcast] to must be 'varying'; got {to!r}. Fix: reduce with lax.psum for a value "
            "that does not vary."
        )
    names = as_names(axis_name)
    sizes_of("pcast", names)
    manual = manual_axes(names)
    for leaf in tree.leaves(x):
        varying = manual & aval_of(leaf).mat.varying
        check(
            not varying or is_again,
            lambda leaf=leaf: (
                f"[pcast] the value must not vary along {axis_name!r} yet; got "
                f"{aval_of(leaf)}, which does. Fix: leave out pcast."
            ),
            ValueError,
        )
    return tree.tree_map(lambda leaf: cast_p.bind(leaf, _token(leaf), axes=names), x)


@explained
def pvary(x: Any, axis_name: Any) -> Any:
    """Convert to a value that varies along named axes; it may already vary along some.

    Args:
        x: an array or pytree.
        axis_name: an axis name, or several.

    Returns:
        The same values; each element has its own copy, with its own cotangent.

    Raises:
        NameError: if no enclosing transformation binds the axis name.

    Example:
        >>> mesh, P = gf.make_mesh((1,), ("i",)), gf.P
        >>> f = lambda x: x + lax.pvary(jnp.ones(2), "i")
        >>> gf.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"))(jnp.arange(2.0))
        Array([1., 2.], dtype=float32)
    """
    note_removed("jax.lax.pvary", 'jax.lax.pcast(x, axis_name, to="varying")')
    return _cast_along(x, axis_name, "varying", True)


def vary_along(x: Any, names: frozenset[Any]) -> Any:
    """``x`` cast to vary also along these axes of shard_map."""
    more = names - aval_of(x).mat.varying if names else names
    if not more:
        return x
    return cast_p.bind(x, _token(x), axes=expand_names(more))


def cotangent_of(x: Any, varying: frozenset[Any]) -> Any:
    """The cotangent of a value that varies along exactly these axes of shard_map."""
    axes = config.varying_axes
    others = tuple(axis for axis in axes if not manual_axes((axis,)) <= varying) if axes else ()
    return match_p.bind(x, np.zeros(0, np.float32), axes=others) if others else x
