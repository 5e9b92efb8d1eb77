"""Mutable arrays, under the names of ``jax.ref``. See docs/design/0021-refs.md.

Tests: tests/control/test_refs.py.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of, is_value
from gpuflow.core.refs import AbstractRef as AbstractRef
from gpuflow.core.refs import Ref as Ref
from gpuflow.core.refs import close, read, write
from gpuflow.core.sharding import Sharding
from gpuflow.core.trace import Tracer, thread_state
from gpuflow.core.types import Array, ArrayLike, IndexLike
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.filled import zeros
from gpuflow.numpy.indexing import getitem
from gpuflow.numpy.placed_slices import in_window
from gpuflow.numpy.updates import At
from gpuflow.ops.elementwise.convert import convert_element_type

# --- making and ending ---------------------------------------------------------------------


@explained
def new_ref(init_val: ArrayLike, *, memory_space: Any = None, kind: str | None = None) -> Ref:
    """Create a mutable array with a copy of an array, of fixed shape and dtype.

    ``ref[i]`` reads it, ``ref[i] = x`` and ``ref[i] += x`` modify it, also inside jitted functions
    and loops. It is not an array: pass ``ref[...]`` to functions.

    Args:
        init_val: an array or a scalar.
        memory_space: must be None.
        kind: no effect; in JAX, the treatment by rematerialization.

    Returns:
        The Ref. It can be an argument, or be captured, but it cannot be returned.

    Raises:
        TypeError: if ``init_val`` is not an array.
        NotImplementedError: if ``memory_space`` is given.

    Example:
        >>> ref = gf.new_ref(jnp.zeros(3))
        >>> ref[1] += 2
        >>> ref[...]
        Array([0., 2., 0.], dtype=float32)
    """
    del kind
    check(
        memory_space is None,
        lambda: (
            "[new_ref] memory_space must be None, the memory of the device; got "
            f"{memory_space!r}. Fix: None."
        ),
        NotImplementedError,
    )
    _check_no_ref("new_ref", init_val)
    check(
        is_value(init_val),
        lambda: (
            f"[new_ref] the value must be an array or a number; got {init_val!r} of type "
            f"{type(init_val).__name__}. Fix: one ref for each array."
        ),
    )
    aval = aval_of(init_val)
    value = _typed(asarray(init_val), aval)
    if value is init_val and not isinstance(value, Tracer):
        value = lax.copy(value)  # the caller may donate the array
    ref = Ref(value, thread_state.trace)
    write(ref, value, is_shared=False)
    return ref


@explained
def empty_ref(ty: Any, memory_space: Any = None) -> Ref:
    """Create a ref of zeros with the shape and dtype of ``ty``.

    Args:
        ty: an object with a shape and a dtype, such as a ShapeDtypeStruct.
        memory_space: must be None.

    Returns:
        The Ref.

    Raises:
        NotImplementedError: if ``memory_space`` is given.

    Example:
        >>> ref = gf.empty_ref(gf.ShapeDtypeStruct((2,), jnp.int32))
        >>> ref[0] = 5
        >>> ref[...]
        Array([5, 0], dtype=int32)
    """
    check(
        hasattr(ty, "shape") and hasattr(ty, "dtype"),
        lambda: (
            f"[empty_ref] ty must have a shape and a dtype; got {brief(ty)}. "
            "Fix: gpuflow.ShapeDtypeStruct((2,), jnp.float32)."
        ),
    )
    return new_ref(zeros(ty.shape, ty.dtype), memory_space=memory_space)


def freeze(ref: Ref) -> Array:
    """Return the array in ``ref``, which cannot be used any more.

    Args:
        ref: a Ref.

    Returns:
        An Array of the shape and dtype of the ref.

    Raises:
        TypeError: if the argument is not a Ref.
        ValueError: if the ref is already frozen, or was created outside of the traced function.

    Example:
        >>> ref = gf.new_ref(jnp.zeros(2))
        >>> ref[0] = 1.0
        >>> gf.freeze(ref)
        Array([1., 0.], dtype=float32)
    """
    return close(_ref("freeze", ref))


def free_ref(ref: Ref) -> tuple[()]:
    """Free ``ref``, which cannot be used any more.

    Args:
        ref: a Ref.

    Returns:
        An empty tuple ``()``.

    Raises:
        TypeError: if the argument is not a Ref.
        ValueError: if the ref is already frozen, or was created outside of the traced function.

    Example:
        >>> gf.free_ref(gf.new_ref(0.0))
        ()
    """
    close(_ref("free_ref", ref))
    return ()


# --- reading and writing -------------------------------------------------------------------


def get(ref: Ref, idx: IndexLike = None) -> Array:
    """Return ``ref[idx]``; without ``idx`` the whole array.

    Raises:
        ValueError: if a static index is out of range, or the ref is frozen.
    """
    value = read(_ref("get", ref))
    if _is_whole(idx):
        return value
    _shape_at("get", ref.aval.inner_aval, idx)
    return getitem(value, idx)


def swap(ref: Ref, idx: IndexLike, value: ArrayLike) -> Array:
    """Assign ``ref[idx] = value``, and return the old value.

    Args:
        ref: the ref.
        idx: an index as for arrays; None or ``...`` for the whole.
        value: array of the shape of ``ref[idx]`` and the dtype of ``ref``; Python floats and all
            integers are converted.

    Raises:
        ValueError: if the shape or dtype differs, a static index is out of range, or the ref is
            frozen. Also if a vmapped or differentiated value is written to an enclosing ref.
    """
    before = get(ref, idx)
    _put("swap", ref, idx, value)
    return before


def set(ref: Ref, idx: IndexLike, value: ArrayLike) -> None:
    """Assign ``ref[idx] = value``; see ``swap``."""
    _put("set", ref, idx, value)


def addupdate(ref: Ref, idx: IndexLike, x: ArrayLike) -> None:
    """Compute ``ref[idx] += x``, with updates of repeated indices summed; see ``swap``."""
    _put("addupdate", ref, idx, x)


def _put(op: str, ref: Ref, idx: Any, value: Any) -> None:
    aval = _ref(op, ref).aval.inner_aval
    value = _cast(op, aval, value)
    whole = _is_whole(idx)
    expected = aval.shape if whole else _shape_at(op, aval, idx)
    check(
        aval_of(value).shape == expected,
        lambda: (
            f"[{op}] the value must have the shape of the indexed elements, {expected}; got "
            f"{aval_of(value)} for {ref.aval}. Fix: jnp.broadcast_to(x, {expected})."
        ),
        ValueError,
    )
    if op == "addupdate":
        old = read(ref)
        value = lax.add(old, value) if whole else At(old)[idx].add(value)
    elif not whole:
        value = At(read(ref))[idx].set(value)
    write(ref, _typed(value, aval), is_shared=whole and op == "set")


def _cast(op: str, aval: ShapedArray, value: Any) -> Any:
    """``value`` as an array of the dtype of ``aval``, by JAX's rules for refs."""
    _check_no_ref(op, value)
    value = asarray(value)
    value_aval = aval_of(value)
    if value_aval.dtype == aval.dtype:
        return value
    pair = (value_aval.dtype, aval.dtype)
    is_numeric = not any(map(dtypes.is_extended, pair))
    both = [
        is_numeric and value_aval.weak_type and all(map(dtypes.is_floating, pair)),
        is_numeric and all(map(dtypes.is_integer, pair)),
    ]
    check(
        any(both),
        lambda: (
            f"[{op}] the value must have the dtype of the ref; got {value_aval} for Ref{{{aval}}}. "
            f"Fix: x.astype({str(aval.dtype)!r})."
        ),
        ValueError,
    )
    return convert_element_type(value, aval.dtype)


def _typed(value: Any, aval: ShapedArray) -> Any:
    """``value`` with the weakness of ``aval``: a ref keeps its type."""
    if aval_of(value) is aval:
        return value
    return convert_element_type(value, aval.dtype, aval.weak_type)


def _is_whole(idx: Any) -> bool:
    return idx is None or idx is Ellipsis or (isinstance(idx, tuple) and idx in ((), (Ellipsis,)))


def _shape_at(op: str, aval: ShapedArray, idx: Any) -> tuple[int, ...]:
    """The shape of ``x[idx]``; numbers of index arrays do not matter."""
    idx = in_window(idx)
    entries = idx if isinstance(idx, tuple) else (idx,)
    plain = tuple(
        np.zeros(aval_of(e).shape, np.int32)
        if is_value(e) and not isinstance(e, bool | int) and aval_of(e).dtype != np.bool_
        else e
        for e in entries
    )
    if any(isinstance(entry, Tracer) for entry in plain):
        return aval_of(getitem(lax.full(aval.shape, 0), idx)).shape  # its error
    try:
        return np.broadcast_to(np.int8(0), aval.shape)[plain].shape
    except IndexError as error:
        raise ValueError(
            f"[{op}] the index must be within the array; got {idx!r} for Ref{{{aval}}}: {error}. "
            "Fix: an index below the size of its axis."
        ) from None


def _ref(op: str, value: Any) -> Ref:
    if type(value) is not Ref:
        raise TypeError(
            f"[{op}] the first argument must be a Ref; got {value!r} of type "
            f"{type(value).__name__}. Fix: new_ref(x)."
        )
    return value


def _check_no_ref(op: str, value: Any) -> None:
    check(
        type(value) is not Ref,
        lambda: f"[{op}] the value must be an array; got a {value.aval}. Fix: ref[...].",
    )


# --- methods -------------------------------------------------------------------------------


def _addupdate(self: Ref, x: ArrayLike, idx: IndexLike = ()) -> None:
    """Compute ``ref[idx] += x``."""
    addupdate(self, idx, x)


def _iterate(self: Ref) -> NoReturn:
    raise TypeError(f"[iter] a ref cannot be walked through; got {self.aval}. Fix: ref[...].")


def _as_numpy(self: Ref, dtype: Any = None, copy: bool | None = None) -> NoReturn:
    del dtype, copy
    raise TypeError(
        f"[numpy] the operand must be an array, not a ref; got {self.aval}. Fix: "
        "np.asarray(ref[...])."
    )


def _copy(self: Ref) -> Ref:
    return new_ref(read(self))


def _deep_copy(self: Ref, memo: Any) -> Ref:
    del memo
    return new_ref(read(self))


def _wait(self: Ref) -> Ref:
    """Wait until the array in the ref is computed."""
    read(self).block_until_ready()
    return self


def _at(self: Ref) -> NoReturn:
    raise NotImplementedError(
        f"[at] .at must be used on an array; got the ref {self.aval}. Fix: ref[i], or ref[i] = x."
    )


def _sharding(self: Ref) -> Sharding:
    return read(self).sharding


def _committed(self: Ref) -> bool:
    del self
    return True


METHODS = {
    "__getitem__": get,
    "__setitem__": set,
    "__iter__": _iterate,
    "__array__": _as_numpy,
    "__copy__": _copy,
    "__deepcopy__": _deep_copy,
    "addupdate": _addupdate,
    "block_until_ready": _wait,
}
PROPERTIES = {
    "at": _at,
    "sharding": _sharding,
    "committed": _committed,
}
