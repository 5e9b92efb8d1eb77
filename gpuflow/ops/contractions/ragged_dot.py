"""ragged_dot and ragged_dot_general: products of rows in groups, with dimensions in any order.

Tests: tests/lax/test_lax_definitions.py, tests/lax/test_lax_rest.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, DTypeLike, PrecisionLike, ShardingLike
from gpuflow.ops.contractions.dot_general import as_algorithm, dot_general
from gpuflow.ops.contractions.precision import DotDimensionNumbers, canonical_precision
from gpuflow.ops.contractions.ragged_products import ragged_dot_p, ragged_outer_p
from gpuflow.ops.effects.device_put import in_sharding
from gpuflow.ops.elementwise.arithmetic import mul
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.layout.axes import broadcast_in_dim, reduce_sum, reshape
from gpuflow.ops.layout.transpose import transpose

Dims = tuple[int, ...]


@record
class RaggedDotDimensionNumbers:
    """The dimension numbers of a ragged product.

    Attributes:
        dot_dimension_numbers: as in ``dot_general``.
        lhs_ragged_dimensions: the single dimension of lhs that is divided into groups.
        rhs_group_dimensions: the single group dimension of rhs, if the ragged one is neither
            contracting nor batch; else empty.
    """

    dot_dimension_numbers: DotDimensionNumbers
    lhs_ragged_dimensions: Sequence[int]
    rhs_group_dimensions: Sequence[int]

    def __post_init__(self) -> None:
        pairs = tuple(tuple(map(tuple, pair)) for pair in self.dot_dimension_numbers)
        object.__setattr__(self, "dot_dimension_numbers", pairs)
        object.__setattr__(self, "lhs_ragged_dimensions", tuple(self.lhs_ragged_dimensions))
        object.__setattr__(self, "rhs_group_dimensions", tuple(self.rhs_group_dimensions))


@explained
def ragged_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Multiply each group of rows by a separate matrix.

    Args:
        lhs: f[m, k]; its first ``group_sizes[0]`` rows are group 0, and so on.
        rhs: f[g, k, n].
        group_sizes: i[g].
        precision, preferred_element_type: as in ``dot_general``.
        group_offset: must be None.
        out_sharding: the sharding of the result; None uses the default device.

    Returns:
        f[m, n]; 0 in rows beyond the groups.

    Raises:
        TypeError: if shapes or dtypes do not match.
        NotImplementedError: if a group offset is given.

    Cost: that of one product f[m, k] @ f[k, n]; on the host, one library call per group.

    Example:
        >>> x, w = jnp.ones((3, 2)), jnp.stack([jnp.ones((2, 1)), jnp.full((2, 1), 10.0)])
        >>> lax.ragged_dot(x, w, jnp.array([1, 2]))
        Array([[ 2.],
               [20.],
               [20.]], dtype=float32)
    """
    numbers = RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))
    out = ragged_dot_general(
        lhs, rhs, group_sizes, numbers, precision, preferred_element_type, group_offset
    )
    return in_sharding("ragged_dot", out, out_sharding)


@explained
def ragged_dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    ragged_dot_dimension_numbers: RaggedDotDimensionNumbers,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Compute ``dot_general`` with one dimension of lhs divided into groups.

    Args:
        lhs, rhs: arrays.
        group_sizes: i[..., g], or i[g]; the leading dimensions are the batch dimensions of lhs, and
            the free (or contracting) ones before the ragged one.
        ragged_dot_dimension_numbers: see ``RaggedDotDimensionNumbers``. If the ragged dimension is

            free: each group is multiplied by its own element of the group dimension of rhs
            contracting: each group is summed separately; groups are the first dimension of the
                result
            batch: groups have no effect

        precision, preferred_element_type: as in ``dot_general``.
        group_offset: must be None.
        out_sharding: the sharding of the result; None uses the default device.

    Returns:
        An array of shape (batch, lhs free, rhs free), with a leading group dimension if the ragged
        dimension is contracting.

    Raises:
        TypeError: if shapes, dtypes or dimension numbers are inconsistent.
        NotImplementedError: if a group offset is given.

    Example:
        >>> numbers = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
        >>> x, y = jnp.ones((3, 2)), jnp.ones((3, 1))
        >>> lax.ragged_dot_general(x, y, jnp.array([1, 2]), numbers)
        Array([[[1.],
                [1.]],
        <BLANKLINE>
               [[2.],
                [2.]]], dtype=float32)
    """
    if out_sharding is not None:
        out = ragged_dot_general(
            lhs,
            rhs,
            group_sizes,
            ragged_dot_dimension_numbers,
            precision,
            preferred_element_type,
            group_offset,
        )
        return in_sharding("ragged_dot_general", out, out_sharding)
    check(
        group_offset is None,
        lambda: (
            f"[ragged_dot] group_offset must be None; got {group_offset!r}. "
            "Fix: pass the groups from the offset on."
        ),
        NotImplementedError,
    )
    numbers = ragged_dot_dimension_numbers
    dims = _Dims.of(aval_of(lhs).ndim, aval_of(rhs).ndim, numbers)
    dims.check_sizes(aval_of(lhs).shape, aval_of(rhs).shape, aval_of(group_sizes).shape)
    if dims.kind == "batch":
        return dot_general(
            lhs, rhs, numbers.dot_dimension_numbers, precision, preferred_element_type
        )
    preferred = preferred_element_type
    preferred = None if preferred is None else dtypes.canonicalize(preferred)
    how = canonical_precision(precision)
    lhs, rhs, preferred, result = as_algorithm(how, lhs, rhs, preferred)
    if aval_of(group_sizes).dtype.itemsize < 4:
        # Sizes are multiplied, and must not overflow.
        group_sizes = convert_element_type(group_sizes, np.int32)
    apply = _by_row if dims.kind == "free" else _by_group
    out = apply(dims, lhs, rhs, group_sizes, preferred)
    return out if result is None else convert_element_type(out, result)


@record
class _Dims:
    """The dimensions of both operands by their role.

    Attributes:
        kind: of the ragged dimension: ``"free"``, ``"contracting"`` or ``"batch"``.
        ragged: its position among those of its kind.
        batch, contract: for each operand.
        free: for each operand, without the group dimension of rhs.
        group: the group dimension of rhs, or none.
    """

    kind: str
    ragged: int
    batch: tuple[Dims, Dims]
    contract: tuple[Dims, Dims]
    free: tuple[Dims, Dims]
    group: Dims

    @staticmethod
    def of(lhs_rank: int, rhs_rank: int, numbers: RaggedDotDimensionNumbers) -> _Dims:
        """Classify the dimensions.

        Raises:
            TypeError: if there is not one ragged dimension, or an unexpected group dimension.
        """
        contract, batch = numbers.dot_dimension_numbers
        group = tuple(numbers.rhs_group_dimensions)
        left = tuple(d for d in range(lhs_rank) if d not in (*contract[0], *batch[0]))
        right = tuple(d for d in range(rhs_rank) if d not in (*contract[1], *batch[1], *group))
        roles = {"free": left, "contracting": contract[0], "batch": batch[0]}
        ragged = [
            (kind, tuple(dims).index(d))
            for d in numbers.lhs_ragged_dimensions
            for kind, dims in roles.items()
            if d in dims
        ]
        check(
            len(ragged) == len(numbers.lhs_ragged_dimensions) == 1,
            lambda: (
                "[ragged_dot_general] there must be one ragged dimension of lhs; got "
                f"{numbers.lhs_ragged_dimensions} for rank {lhs_rank}. Fix: one that exists."
            ),
        )
        ((kind, position),) = ragged
        count = 1 if kind == "free" else 0
        used = (*contract[1], *batch[1])
        check(
            len(group) == count and all(0 <= d < rhs_rank and d not in used for d in group),
            lambda: (
                f"[ragged_dot_general] rhs must have {count} group dimensions, which are neither "
                f"contracting nor batch dimensions, where the ragged dimension is {kind}; got "
                f"{group} for rank {rhs_rank}. Fix: rhs_group_dimensions."
            ),
        )
        batch, contract = ((tuple(pair[0]), tuple(pair[1])) for pair in (batch, contract))
        return _Dims(kind, position, batch, contract, (left, right), group)

    def prefix(self) -> Dims:
        """The dimensions of lhs that the groups may depend on."""
        if self.kind == "batch":
            return self.batch[0][: self.ragged]
        dims = self.free[0] if self.kind == "free" else self.contract[0]
        return (*self.batch[0], *dims[: self.ragged])

    def check_sizes(self, lhs: Dims, rhs: Dims, sizes: Dims) -> None:
        """Raise TypeError unless the shapes match."""
        expected = tuple(lhs[d] for d in self.prefix())
        leading_sizes, count = sizes[:-1], sizes[len(sizes) - 1] if sizes else -1
        check(
            count >= 0 and leading_sizes in ((), expected),
            lambda: (
                f"[ragged_dot_general] group_sizes must have shape (g,) or {(*expected, 'g')}; got "
                f"{sizes}. Fix: one size for each group."
            ),
        )
        check(
            all(rhs[d] == count for d in self.group),
            lambda: (
                "[ragged_dot_general] the group dimension of rhs must have one element for each "
                f"group; got {rhs} along {self.group} for {count} groups. Fix: one matrix each."
            ),
        )
        for what, (left, right) in (("contracting", self.contract), ("batch", self.batch)):
            check(
                [lhs[d] for d in left] == [rhs[d] for d in right],
                lambda what=what, left=left, right=right: (
                    f"[ragged_dot_general] {what} dimensions must have equal sizes; got {lhs} along"
                    f" {left} and {rhs} along {right}. Fix: transpose or reshape one operand."
                ),
            )


def _ordered(x: Any, groups: Sequence[Dims]) -> Any:
    """``x`` with each group of its dimensions merged into one dimension, in this order."""
    shape = aval_of(x).shape
    sizes = [prod(shape[d] for d in dims) for dims in groups]
    return reshape(transpose(x, [d for dims in groups for d in dims]), sizes)


def _sizes_per_batch(sizes: Any, lead: tuple[int, int], rows: int) -> Any:
    """Group sizes for each element of ``lead``, (batch, prefix); each has ``rows`` rows."""
    count = aval_of(sizes).shape[-1]
    total = lead[0] * lead[1]
    if aval_of(sizes).ndim == 1:
        sizes = broadcast_in_dim(sizes, (total, count), (1,))
    else:
        sizes = reshape(sizes, (total, count))
    return mul(sizes, np.asarray(rows, aval_of(sizes).dtype)[()])


def _split(dims: Dims, position: int, shared: bool) -> tuple[Dims, Dims]:
    """Dimensions that groups depend on, and the others with the ragged one first."""
    if shared:
        return (), (dims[position], *dims[:position], *dims[position + 1 :])
    return dims[:position], dims[position:]


def _by_row(dims: _Dims, lhs: Any, rhs: Any, sizes: Any, preferred: Any) -> Any:
    """The product if the ragged dimension is free: groups of rows."""
    left, right = aval_of(lhs).shape, aval_of(rhs).shape
    before, rows = _split(dims.free[0], dims.ragged, aval_of(sizes).ndim == 1)
    lead = prod(left[d] for d in dims.batch[0]), prod(left[d] for d in before)
    sizes = _sizes_per_batch(sizes, lead, prod(left[d] for d in rows[1:]))
    stack = _ordered(lhs, [(*dims.batch[0], *before), rows, dims.contract[0]])
    matrices = _ordered(rhs, [dims.batch[1], dims.group, dims.contract[1], dims.free[1]])
    inner = aval_of(matrices).shape[1:]
    matrices = broadcast_in_dim(matrices, (*lead, *inner), (0, 2, 3, 4))
    matrices = reshape(matrices, (lead[0] * lead[1], *inner))
    out = ragged_dot_p.bind(stack, matrices, sizes, preferred_element_type=preferred)
    order = (*dims.batch[0], *before, *rows)
    out = reshape(out, (*(left[d] for d in order), *(right[d] for d in dims.free[1])))
    expected = (*dims.batch[0], *dims.free[0])
    trailing = range(len(order), aval_of(out).ndim)
    return transpose(out, (*(order.index(d) for d in expected), *trailing))


def _by_group(dims: _Dims, lhs: Any, rhs: Any, sizes: Any, preferred: Any) -> Any:
    """The product if the ragged dimension is contracting: a separate sum for each group."""
    left, right = aval_of(lhs).shape, aval_of(rhs).shape
    shared = aval_of(sizes).ndim == 1
    before, rows = _split(dims.contract[0], dims.ragged, shared)
    partner = dict(zip(*dims.contract, strict=True))
    lead = prod(left[d] for d in dims.batch[0]), prod(left[d] for d in before)
    sizes = _sizes_per_batch(sizes, lead, prod(left[d] for d in rows[1:]))
    stacks = []
    for x, batch, dim_of, free in (
        (lhs, dims.batch[0], {d: d for d in partner}, dims.free[0]),
        (rhs, dims.batch[1], partner, dims.free[1]),
    ):
        lead_dims = (*batch, *(dim_of[d] for d in before))
        stacks.append(_ordered(x, [lead_dims, tuple(dim_of[d] for d in rows), free]))
    out = ragged_outer_p.bind(*stacks, sizes, preferred_element_type=preferred)
    out = reduce_sum(reshape(out, (*lead, *aval_of(out).shape[1:])), (1,))
    count = aval_of(sizes).shape[1]
    batch = [left[d] for d in dims.batch[0]]
    free = [*(left[d] for d in dims.free[0]), *(right[d] for d in dims.free[1])]
    return reshape(transpose(out, (1, 0, 2, 3)), (count, *batch, *free))
