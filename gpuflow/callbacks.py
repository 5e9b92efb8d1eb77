"""Python functions on the host with results: pure_callback and io_callback.

Tests: tests/test_callbacks_with_results.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuflow.base import dtypes, tree
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray
from gpuflow.ops.effects import callbacks as callback_ops


@explained
def pure_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    *args: Any,
    sharding: Any = None,
    vmap_method: str | None = None,
    **kwargs: Any,
) -> Any:
    """Call a Python function without side effects on the host, also from compiled programs.

    It may be called any number of times, or not at all if its results are unused.

    Args:
        callback: a function of ``args`` and ``kwargs``, with read-only NumPy arrays as leaves.
        result_shape_dtypes: a pytree of ShapeDtypeStructs (or arrays) with the structure of the
            result.
        args, kwargs: pytrees of arrays.
        sharding: accepted as in JAX; there is one host.
        vmap_method: behavior under vmap. ``"sequential"`` calls the function once for each element.
            ``"expand_dims"`` and ``"broadcast_all"`` call it once with a leading axis on all
            arguments, of size 1 or broadcast for unmapped ones. ``"legacy_vectorized"`` leaves
            unmapped arguments unchanged. None raises.

    Returns:
        A pytree like ``result_shape_dtypes``.

    Raises:
        ValueError: if ``vmap_method`` is unknown, results have other types, or the callback is
            differentiated.
        NotImplementedError: if the callback is vmapped without a method.

    Example:
        >>> struct = gf.ShapeDtypeStruct((3,), jnp.float32)
        >>> f = gf.jit(lambda x: gf.pure_callback(lambda x: np.cumsum(x), struct, x))
        >>> f(jnp.ones(3))
        Array([1., 2., 3.], dtype=float32)
    """
    del sharding
    check(
        vmap_method in callback_ops.VMAP_METHODS,
        lambda: (
            f"[pure_callback] vmap_method must be one of {callback_ops.VMAP_METHODS}; "
            f"got {vmap_method!r}. Fix: vmap_method='sequential'."
        ),
        ValueError,
    )
    call = _flat("pure_callback", callback, result_shape_dtypes, args, kwargs)
    outs = callback_ops.pure_callback(call.flat, call.avals, *call.leaves, vmap_method=vmap_method)
    return tree.unflatten(call.out_tree, outs)


@explained
def io_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    *args: Any,
    sharding: Any = None,
    ordered: bool = False,
    **kwargs: Any,
) -> Any:
    """Call a Python function with side effects on the host, also from compiled programs.

    It is called once at each execution, even if its results are unused.

    Args:
        callback: a function of ``args`` and ``kwargs``, with read-only NumPy arrays as leaves.
        result_shape_dtypes: a pytree of ShapeDtypeStructs (or arrays) with the structure of the
            result; None for no result.
        args, kwargs: pytrees of arrays.
        sharding: accepted as in JAX; there is one host.
        ordered: whether calls happen in program order; such a call cannot be mapped by vmap.

    Returns:
        A pytree like ``result_shape_dtypes``.

    Raises:
        ValueError: if results have other types, the callback is differentiated, or an ordered
            callback is vmapped.
    """
    del sharding
    call = _flat("io_callback", callback, result_shape_dtypes, args, kwargs)
    outs = callback_ops.io_callback(call.flat, call.avals, *call.leaves, ordered=ordered)
    return tree.unflatten(call.out_tree, outs)


@record
class _Call:
    """A callback on flat arrays, its operands, and the types and structure of its result."""

    flat: Callable[..., list[Any]]
    leaves: list[Any]
    avals: list[ShapedArray]
    out_tree: tree.TreeDef


def _flat(name: str, callback: Any, declared: Any, args: Any, kwargs: Any) -> _Call:
    check(
        callable(callback),
        lambda: f"[{name}] the first argument must be a function; got {callback!r}. Fix: def f.",
    )
    structs, out_tree = tree.flatten(declared)
    avals = []
    for struct in structs:
        check(
            hasattr(struct, "shape") and hasattr(struct, "dtype"),
            lambda struct=struct: (
                f"[{name}] result_shape_dtypes must be a tree of ShapeDtypeStructs; got "
                f"{struct!r}. Fix: ShapeDtypeStruct((3,), jnp.float32)."
            ),
        )
        avals.append(ShapedArray(tuple(struct.shape), dtypes.canonicalize(struct.dtype)))
    leaves, in_tree = tree.flatten((args, kwargs))

    def flat(*values: Any) -> list[Any]:
        call_args, call_kwargs = tree.unflatten(in_tree, values)
        results, result_tree = tree.flatten(callback(*call_args, **call_kwargs))
        check(
            result_tree == out_tree,
            lambda: (
                f"[{name}] the callback must return the tree that result_shape_dtypes declares; "
                f"got {tree.text(result_tree)} for {tree.text(out_tree)}. Fix: return the same "
                "tree."
            ),
            ValueError,
        )
        return results

    return _Call(flat, leaves, avals, out_tree)
