"""Builders for elementwise ops of any number of operands.

Operands have one dtype and one rank; sizes of 1 broadcast, and so do operands of rank 0.

Tests: tests/ops/test_identities.py, tests/ops/test_elementwise_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Elementwise, Library
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.primitive import Primitive
from gpuflow.core.rules import AxisData, Zero, is_undefined
from gpuflow.ops.define import check_kind, check_same_dtype, define, is_number, types_text
from gpuflow.ops.elementwise import complex_pairs
from gpuflow.ops.elementwise.identities import first_of, sink_broadcasts
from gpuflow.ops.layout.axes import broadcast_in_dim, reduce_sum, reshape
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.layout.transpose import move_axis

_PYTHON_SCALARS = (bool, int, float, complex)


def match_scalars(x: Any, y: Any) -> tuple[Any, Any]:
    """Give a Python scalar the dtype of the other operand."""
    if type(x) is type(y):
        return x, y  # the common case
    if type(x) in _PYTHON_SCALARS:
        if type(y) in _PYTHON_SCALARS:
            kind = max(type(x), type(y), key=_PYTHON_SCALARS.index)
            return kind(x), kind(y)
        return typed_scalar(x, aval_of(y)), y
    if type(y) in _PYTHON_SCALARS:
        return x, typed_scalar(y, aval_of(x))
    return x, y


def typed_scalar(value: Any, like: ShapedArray) -> Any:
    """``value`` in the dtype of ``like``; unchanged if it has that dtype already."""
    if aval_of(value).dtype == like.dtype:
        return value
    try:
        return np.asarray(value).astype(like.dtype)[()]
    except OverflowError:
        raise OverflowError(
            f"[convert] Python ints must fit {like.dtype}; got one of {value.bit_length()} bits. "
            "Fix: use a smaller number, or float('inf')."
        ) from None


def broadcast_shape(name: str, avals: Sequence[ShapedArray]) -> tuple[int, ...]:
    """The common shape of elementwise operands.

    Raises:
        TypeError: if shapes do not match.
    """
    first = avals[0].shape
    if all(aval.shape == first for aval in avals):
        return first
    shapes = [aval.shape for aval in avals if aval.shape]
    ranks = {len(shape) for shape in shapes}
    matches = len(ranks) == 1
    if matches:
        sizes = []
        for column in zip(*shapes, strict=True):
            wide = {size for size in column if size != 1}
            matches = matches and len(wide) <= 1
            sizes.append(wide.pop() if wide else 1)
    check(
        matches,
        lambda: (
            f"[{name}] operand shapes must be equal, up to sizes of 1 and rank 0; "
            f"got {types_text(avals)}. Fix: reshape or broadcast one operand, for example with "
            "x[:, None] or jnp.broadcast_to."
        ),
    )
    return tuple(sizes)


def broadcast_to(x: Any, shape: tuple[int, ...]) -> Any:
    """Broadcast an operand of an elementwise op to the op's shape."""
    operand_shape = aval_of(x).shape
    if operand_shape == shape:
        return x
    dims = () if not operand_shape else tuple(range(len(shape)))
    return broadcast_in_dim(x, shape, dims)


def unbroadcast(cotangent: Any, aval: ShapedArray) -> Any:
    """Sum a cotangent over broadcast dimensions: the transpose of broadcast_to."""
    shape = aval_of(cotangent).shape
    if shape == aval.shape:
        return cotangent
    if not aval.shape:
        return reduce_sum(cotangent, tuple(range(len(shape))))
    stretched = tuple(d for d, size in enumerate(aval.shape) if size == 1 and shape[d] != 1)
    return reshape(reduce_sum(cotangent, stretched), aval.shape)


def batch_elementwise(apply: Callable[..., Any]) -> Callable[..., Any]:
    """The batch rule of an elementwise op; ``apply(*operands, **params)`` is the op."""

    def batch(
        axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], **params: Any
    ) -> tuple[Any, int]:
        del axis
        avals = [aval_of(x) for x in operands]
        ranks = [a.ndim - (d is not None) for a, d in zip(avals, dims, strict=True)]
        rank = max(ranks)
        shared = {d for d in dims if d is not None}
        if len(shared) == 1 and all(
            r == rank if d is not None else r == 0 for r, d in zip(ranks, dims, strict=True)
        ):
            return apply(*operands, **params), shared.pop()
        batched = [
            _with_leading(x, dim, inner_rank, rank)
            for x, dim, inner_rank in zip(operands, dims, ranks, strict=True)
        ]
        return apply(*batched, **params), 0

    return batch


def _with_leading(x: Any, dim: int | None, inner_rank: int, rank: int) -> Any:
    if dim is None:
        if inner_rank == 0:
            return x
        shape = aval_of(x).shape
        return broadcast_in_dim(x, (1, *shape), tuple(range(1, rank + 1)))
    x = move_axis(x, dim, 0)
    if inner_rank < rank:
        size = aval_of(x).shape[0]
        return broadcast_in_dim(x, (size, *(1,) * rank), (0,))
    return x


def nary_shape(
    name: str,
    arity: int,
    accepts: Callable[[Any], bool],
    what: str,
    result: Callable[[Any], Any] | None,
) -> Callable[..., ShapedArray]:
    """The shape rule: ``arity`` operands of one dtype, broadcast; ``result`` maps the dtype."""

    def shape(*avals: ShapedArray) -> ShapedArray:
        if len(avals) != arity:
            raise TypeError(
                f"[{name}] operands must be {arity}; got {len(avals)}. Fix: the rule that bound "
                "this equation; programs cannot cause it."
            )
        check_same_dtype(name, avals)
        check_kind(name, avals[0], accepts, what)
        dtype = avals[0].dtype
        weak = all(aval.weak_type for aval in avals)
        if result is not None:
            dtype = result(dtype)
            weak = weak and not dtypes.is_bool(dtype)
        return ShapedArray(broadcast_shape(name, avals), dtype, weak)

    return shape


def nary_jvp(
    primitive: Callable[[], Primitive], derivatives: Sequence[Callable[..., Any] | None]
) -> Callable[..., Any]:
    """The jvp rule from one function per operand.

    ``derivatives[k](tangent, out, *operands)`` is that operand's term of the output tangent; None
    means zero.
    """

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = primitive().bind(*primals, **params)
        aval = aval_of(out)
        total: Any = None
        for derivative, tangent in zip(derivatives, tangents, strict=True):
            if derivative is None or type(tangent) is Zero:
                continue
            term = broadcast_to(derivative(tangent, out, *primals, **params), aval.shape)
            total = term if total is None else add_any_p.bind(total, term)
        return out, Zero(aval.tangent()) if total is None else total

    return jvp


def zero_jvp(primitive: Callable[[], Primitive]) -> Callable[..., Any]:
    """The jvp rule of an op without derivative: comparisons, rounding, integer ops."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        del tangents
        out = primitive().bind(*primals, **params)
        return out, Zero(aval_of(out).tangent())

    return jvp


def linear_in(
    functions: Sequence[Callable[..., Any] | None],
) -> Callable[..., list[Any]]:
    """The transpose rule from one function per operand.

    ``functions[k](cotangent, *operands)`` is the cotangent of operand k before unbroadcasting;
    None: the op is not linear in that operand.
    """

    def transpose(cotangent: Any, *operands: Any, **params: Any) -> list[Any]:
        results = []
        for function, operand in zip(functions, operands, strict=True):
            if not is_undefined(operand) or function is None:
                results.append(None)
            elif type(cotangent) is Zero:
                results.append(Zero(operand.aval.tangent()))
            else:
                contribution = function(cotangent, *operands, **params)
                results.append(unbroadcast(contribution, operand.aval))
        return results

    return transpose


def elementwise(
    name: str,
    *,
    impl: Callable[..., Any],
    accepts: Callable[[Any], bool],
    what: str,
    body: str | Callable[..., Any] | None,
    arity: int = 1,
    derivatives: Sequence[Callable[..., Any] | None] | None = None,
    again: Callable[..., Any] | None = None,
    transpose: Sequence[Callable[..., Any] | None] | None = None,
    result: Callable[[Any], Any] | None = None,
    cheap: bool = False,
    domain: Any = None,
    tolerance: float | None = None,
    reference: Callable[..., Any] | None = None,
    simplify: Callable[..., Any] | None = None,
    image: Callable[..., Any] | None = None,
    pair: Callable[..., Any] | None = None,
    faults: Callable[..., Any] | None = None,
    passes_nan: bool = False,
    keys: Callable[..., Any] | None = None,
    continuous: bool = False,
    holds: Callable[..., bool] | None = None,
    sums: Callable[[Sequence[bool]], bool] | None = None,
) -> Primitive:
    """Define an elementwise op without parameters.

    Args:
        impl: ``(xp, *arrays) -> array``; may return a wider dtype, which is narrowed again.
        accepts: dtypes it takes; ``what`` describes them in errors.
        body: a function of kir.scalar, or a body for ``Elementwise``; None: computed by a library.
        derivatives: one function per operand, see ``nary_jvp``; None: no derivative.
        transpose: one function per operand in which the op is linear, see ``linear_in``.
        result: operand dtype -> output dtype, if they differ.
        simplify: identities of the op; broadcasts sink below every elementwise op.
        image, pair, continuous, holds: see ``Elementwise``.
        again, faults, passes_nan, keys, sums: see ``Primitive``.
    """

    def op() -> Primitive:
        return primitive

    def run(xp: Any, *arrays: Any) -> Any:
        out = impl(xp, *arrays)
        dtype = arrays[0].dtype if result is None else result(arrays[0].dtype)
        return out if out.dtype is dtype or out.dtype == dtype else out.astype(dtype)

    lower = Library()
    if body is not None:
        lower = Elementwise(body, cheap, image, pair, holds, continuous)
    primitive = define(
        name,
        shape=nary_shape(name, arity, accepts, what, result),
        impl=run,
        jvp=zero_jvp(op) if derivatives is None else nary_jvp(op, derivatives),
        again=again,
        transpose=None if transpose is None else linear_in(transpose),
        batch=batch_elementwise(lambda *operands: primitive.bind(*operands)),
        lower=lower,
        simplify=first_of(simplify, sink_broadcasts),
        domain=domain if domain is not None else ((-10.0, 10.0),) * arity,
        tolerance=tolerance,
        reference=reference,
        faults=faults,
        passes_nan=passes_nan,
        keys=keys,
        sums=sums,
    )
    return primitive


def widened(impl: Callable[..., Any]) -> Callable[..., Any]:
    """``impl`` in float32 if operands are narrower floats, so that it rounds once."""

    def run(xp: Any, *arrays: Any, **params: Any) -> Any:
        dtype = arrays[0].dtype
        if not dtypes.is_floating(dtype) or dtype.itemsize > 2:
            return impl(xp, *arrays, **params)
        out = impl(xp, *[array.astype(np.float32) for array in arrays], **params)
        return out.astype(dtype)

    return run


def _add_any_shape(x: ShapedArray, y: ShapedArray) -> ShapedArray:
    check(
        x.shape == y.shape and x.dtype == y.dtype and is_number(x.dtype),
        lambda: (
            f"[add_any] tangents must be numbers of one type; got {types_text([x, y])}. "
            "Fix: the rule that made them; programs use add."
        ),
    )
    return ShapedArray(x.shape, x.dtype, x.weak_type and y.weak_type)


def _add_any_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None]
) -> tuple[Any, int]:
    """Both tangents with the same mapped dimension, because nothing is broadcast."""
    (x, y), dim = operands, next(d for d in dims if d is not None)
    x = batch_to_dim(x, dims[0], dim, axis.size)
    return add_any_p.bind(x, batch_to_dim(y, dims[1], dim, axis.size)), dim


def _add_any_simplify(
    eqn: Any, definition: DefinitionLookup, build: EqnBuilder
) -> list[Any] | None:
    """Merge slices of one array that are written back one by one."""
    one, other = (definition(atom) for atom in eqn.inputs)
    if one is not None and other is not None and one.primitive is other.primitive:
        rule = one.primitive.lower.added
        result = None if rule is None else rule(one, other, definition, build)
        if result is not None:
            return [result]
    return sink_broadcasts(eqn, definition, build, same_shape=True)


# Sum of tangents: like add, but only for equal shapes, and made by transformations.
add_any_p = define(
    "add_any",
    shape=_add_any_shape,
    impl=lambda xp, x, y: xp.add(x, y),
    jvp=nary_jvp(lambda: add_any_p, (lambda t, out, x, y: t, lambda t, out, x, y: t)),
    transpose=linear_in((lambda ct, x, y: ct, lambda ct, x, y: ct)),
    batch=_add_any_batch,
    lower=Elementwise("add", cheap=True, pair=complex_pairs.by_name("add")),
    simplify=_add_any_simplify,
    sums=all,
    domain=((-10.0, 10.0),) * 2,
)
