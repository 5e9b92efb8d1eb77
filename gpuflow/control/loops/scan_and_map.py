"""The public functions ``scan`` and ``map``: checks, pytrees and tracing around ``scan_p``.

Tests: tests/control/test_control_flow.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from gpuflow.base import tree
from gpuflow.base.arguments import as_count
from gpuflow.base.config import config
from gpuflow.base.errors import ConcretizationTypeError, check
from gpuflow.base.foreign import brief, fix_for
from gpuflow.base.util import safe_zip
from gpuflow.control.loops.carries import carry_types, check_carry
from gpuflow.control.loops.ref_carries import changed_refs, with_ref_carries
from gpuflow.control.loops.scan import bind_scan
from gpuflow.control.programs import Program, as_arrays, trace_program
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of, is_value
from gpuflow.core.refs import AbstractRef, Ref, refuse_refs, type_of, values_of, write
from gpuflow.core.rules import AxisData
from gpuflow.core.trace import Tracer
from gpuflow.ops.layout.axes import broadcast_in_dim, reshape, squeeze
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.layout.slicing import slice_in_dim
from gpuflow.transforms.batching import batch_flat

_Carry = TypeVar("_Carry")
_X = TypeVar("_X")
_Y = TypeVar("_Y")


def check_arrays(op: str, leaves: list[Any], what: str) -> None:
    for leaf in leaves:
        check(
            is_value(leaf),
            lambda leaf=leaf: (
                f"[{op}] {what} must be arrays or trees of them; got {brief(leaf)}. "
                f"Fix: {fix_for(leaf, 'convert it with jnp.asarray, or close over it')}."
            ),
        )


# --- scan ----------------------------------------------------------------------------------


@overload
def scan(
    f: Callable[[_Carry, _X], tuple[_Carry, _Y]],
    init: _Carry,
    xs: _X | None = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool | None = None,
) -> tuple[_Carry, _Y]: ...
@overload
def scan(
    f: Callable[[Any, Any], tuple[_Carry, _Y]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool | None = None,
) -> tuple[_Carry, _Y]: ...
@explained
def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool | None = None,
) -> tuple[Any, Any]:
    """Run ``carry, y = f(carry, x)`` over the leading axis of ``xs``.

    Args:
        f: ``(carry, x) -> (carry, y)``; structure, shapes and dtypes of the carry must not change.
        init: the initial carry, a pytree of arrays.
        xs: a pytree of arrays with the same leading size; if it is None, ``x`` is None.
        length: number of iterations; required without ``xs``.
        reverse: whether to start at the last element; ys keep the order of xs.
        unroll: number of iterations per iteration of the compiled loop; True unrolls the loop
            fully. Results are the same.

    Returns:
        The final carry, and the ys stacked along a new leading axis.

    Raises:
        TypeError: if ``f`` does not return a pair, or the carry changes its type.
        ValueError: if leading sizes differ, the length is unknown, or ``unroll`` is negative.

    Example:
        >>> lax.scan(lambda total, x: (total + x, total), 0, jnp.array([1, 2, 3]))
        (Array(6, dtype=int32), Array([0, 1, 3], dtype=int32, weak_type=True))
    """
    del _split_transpose
    return scan_as("scan", f, f, init, xs, length, reverse, unroll)


def scan_as(
    op: str,
    f: Callable[[Any, Any], tuple[Any, Any]],
    identity: Any,
    init: Any,
    xs: Any,
    length: int | None,
    reverse: bool,
    unroll: int | bool,
) -> tuple[Any, Any]:
    """Implement ``scan`` and functions built on it.

    Args:
        op: the public function, for messages.
        f: the body.
        identity: the user's function that ``f`` wraps; its traces are cached.
        init, xs, length, reverse, unroll: as in ``scan``.
    """
    unroll = _unroll(op, unroll)
    x_leaves = tree.leaves(xs)
    init_leaves, init_tree = tree.flatten(init)
    check_arrays(op, [x for x in x_leaves if type(x) is not Ref], "xs")
    refuse_refs(op, init_leaves, "carries")
    check_arrays(op, init_leaves, "the initial carry")
    length = _scan_length(op, xs, x_leaves, length)
    if config.trace_context().disable_jit:
        return _scan_in_python(f, as_arrays(init), as_arrays(xs), length, reverse)
    element_avals = [_element_type(x) for x in x_leaves]
    in_tree = tree.structure((init, xs))
    pair_of: list[tuple[tree.TreeDef, tree.TreeDef]] = []

    def trace(avals: list[ShapedArray]) -> tuple[Program, list[ShapedArray]]:
        program = trace_program(
            op, f, in_tree, [*avals, *element_avals], "f", identity, takes_refs=True
        )
        pair_of.append(_pair(op, program.out_tree))
        return program, program.jaxpr.out_avals[: pair_of[-1][0].num_leaves]

    program, values = carry_types(init_leaves, trace, identity)
    carry_tree, y_tree = pair_of[-1]
    carry_avals = program.jaxpr.out_avals[: carry_tree.num_leaves]
    check_carry(op, identity, init_tree, [aval_of(x) for x in values], carry_tree, carry_avals)
    written = changed_refs(program, [*values, *x_leaves])
    program, carried_refs = with_ref_carries(op, program, [*values, *x_leaves])
    split, end = len(carried_refs), len(carried_refs) + program.out_tree.num_leaves
    outs = bind_scan(
        program.jaxpr,
        program.consts,
        [*values_of(carried_refs), *values],
        values_of(x_leaves),
        length=length,
        reverse=bool(reverse),
        unroll=max(length if unroll is True else min(unroll, length), 1),
    )
    for ref, new in safe_zip(written, [*outs[:split], *outs[end:]]):
        write(ref, new)
    outs, count = outs[split:end], len(values)
    return tree.unflatten(init_tree, outs[:count]), tree.unflatten(y_tree, outs[count:])


def _element_type(x: Any) -> Any:
    """The type of the body's ``x``: an array without the leading axis, or a ref."""
    aval = type_of(x)
    inner = aval.inner_aval if type(aval) is AbstractRef else aval
    element = inner.update(shape=inner.shape[1:])
    return AbstractRef(element) if type(aval) is AbstractRef else element


def _pair(op: str, out_tree: tree.TreeDef) -> tuple[tree.TreeDef, tree.TreeDef]:
    children = tree.children(out_tree)
    if out_tree.type not in (tuple, list) or len(children) != 2:
        raise TypeError(
            f"[{op}] f must return a pair (carry, y); got {tree.text(out_tree)}. "
            "Fix: return carry, y, where "
            "y may be None."
        )
    return children[0], children[1]


def _unroll(op: str, unroll: Any) -> int | bool:
    if isinstance(unroll, bool):
        return unroll
    check(
        hasattr(unroll, "__index__") and not isinstance(unroll, Tracer),
        lambda: f"[{op}] unroll must be an int or a bool; got {unroll!r}. Fix: unroll=1.",
        ConcretizationTypeError if isinstance(unroll, Tracer) else TypeError,
    )
    count = unroll.__index__()
    check(
        count >= 0,
        lambda: f"[{op}] unroll must not be negative; got {count}. Fix: unroll=1.",
        ValueError,
    )
    return count


def _scan_length(op: str, xs: Any, leaves: list[Any], length: Any) -> int:
    """The number of iterations, from ``length`` and the leading sizes, which must agree."""
    paths = tree.paths(xs)
    for path, leaf in safe_zip(paths, leaves):
        check(
            type_of(leaf).ndim > 0,
            lambda path=path, leaf=leaf: (
                f"[{op}] xs must have a leading axis to scan over; got xs{path} of type "
                f"{type_of(leaf)}. Fix: close over scalars, or repeat them with jnp.full."
            ),
            ValueError,
        )
    sizes = [type_of(leaf).shape[0] for leaf in leaves]
    if length is not None:
        length = _static_length(op, length)
        check(
            length >= 0,
            lambda: f"[{op}] length must not be negative; got {length}. Fix: length=0 or more.",
            ValueError,
        )
    if length is None:
        check(
            bool(sizes),
            lambda: f"[{op}] without xs the length must be given; got None. Fix: length=n.",
            ValueError,
        )
        length = sizes[0]
    if any(size != length for size in sizes):
        listed = ", ".join(f"xs{path}: {size}" for path, size in safe_zip(paths, sizes))
        raise ValueError(
            f"[{op}] leading sizes must equal the length {length}; got {listed}. "
            "Fix: slice xs to one length."
        )
    return length


def _static_length(op: str, length: Any) -> int:
    """A length as an int."""
    if isinstance(length, Tracer):
        raise ConcretizationTypeError(
            f"[{op}] length must be known while the function is traced; got {length!r}. Fix: "
            "lax.fori_loop(0, n, body, init) or lax.while_loop, which take a traced number. "
            "If it is an argument of a jitted function, name it in static_argnames."
        )
    return as_count(op, "length", length)


def _scan_in_python(f: Any, carry: Any, xs: Any, length: int, reverse: bool) -> tuple[Any, Any]:
    """Run the loop in Python, for ``disable_jit``: users can then inspect values."""
    ys = []
    for k in reversed(range(length)) if reverse else range(length):
        element = tree.tree_map(lambda x, k=k: squeeze(slice_in_dim(x, k, k + 1), (0,)), xs)
        carry, y = f(carry, element)
        ys.append(y)
    if reverse:
        ys.reverse()
    if not ys:
        raise ValueError(
            "[scan] with disable_jit the length must not be 0: the types of ys are unknown. "
            "Fix: enable jit."
        )

    def stack(*slices: Any) -> Any:
        shape = aval_of(slices[0]).shape
        dims = range(1, len(shape) + 1)
        rows = [broadcast_in_dim(slice_, (1, *shape), dims) for slice_ in slices]
        return concatenate(rows, 0)

    return carry, tree.tree_map(stack, *ys)


# --- map -----------------------------------------------------------------------------------


@explained
def map(f: Callable[[Any], _Y], xs: Any, *, batch_size: int | None = None) -> _Y:
    """Apply ``f`` to each element along the leading axis of ``xs``, sequentially.

    Args:
        f: a function of a pytree of arrays.
        xs: a pytree of arrays with the same leading size.
        batch_size: number of elements to which ``vmap(f)`` is applied at a time; None or 0 maps one
            element at a time.

    Returns:
        The results, stacked along a new leading axis.

    Raises:
        ValueError: if ``xs`` has no arrays, leading sizes differ, or ``batch_size`` is negative.

    Example:
        >>> lax.map(lambda x: x**2, jnp.array([1, 2, 3]))
        Array([1, 4, 9], dtype=int32)
    """

    def one_by_one(items: Any) -> Any:
        return scan_as("map", lambda _, x: ((), f(x)), f, (), items, None, False, 1)[1]

    if not batch_size:
        return one_by_one(xs)
    length = _scan_length("map", xs, tree.leaves(xs), None)
    check(
        batch_size >= 1,
        lambda: f"[map] batch_size must not be negative; got {batch_size}. Fix: batch_size=1.",
        ValueError,
    )
    chunks, remainder = divmod(length, batch_size)
    results = []
    if chunks:
        whole = tree.tree_map(lambda x: _in_chunks(x, chunks, batch_size), xs)
        stacked = scan(lambda _, x: ((), _mapped(f, x)), (), whole)[1]
        results.append(tree.tree_map(lambda y: _merged_axes(y, chunks * batch_size), stacked))
    if remainder or not chunks:
        tail = tree.tree_map(lambda x: slice_in_dim(x, length - remainder, length), xs)
        results.append(_mapped(f, tail) if remainder else one_by_one(tail))
    if len(results) == 1:
        return results[0]
    return tree.tree_map(lambda *ys: concatenate(ys, 0), *results)


def _mapped(f: Callable[[Any], Any], xs: Any) -> Any:
    """``vmap(f)(xs)`` over leading axes."""
    leaves, in_tree = tree.flatten(xs)
    size = aval_of(leaves[0]).shape[0]
    out_trees: list[tree.TreeDef] = []

    def flat(*elements: Any) -> list[Any]:
        outs, out_tree = tree.flatten(f(tree.unflatten(in_tree, elements)))
        out_trees.append(out_tree)
        return outs

    outs, dims = batch_flat(flat, AxisData(None, size), leaves, [0] * len(leaves))
    moved = [batch_to_dim(out, dim, 0, size) for out, dim in safe_zip(outs, dims)]
    return tree.unflatten(out_trees[0], moved)


def _in_chunks(x: Any, chunks: int, size: int) -> Any:
    return reshape(slice_in_dim(x, 0, chunks * size), (chunks, size, *aval_of(x).shape[1:]))


def _merged_axes(y: Any, count: int) -> Any:
    return reshape(y, (count, *aval_of(y).shape[2:]))
