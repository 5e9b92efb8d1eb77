"""The public functions ``while_loop`` and ``fori_loop``: checks, pytrees and tracing.

``fori_loop`` is a scan if its bounds are static, else a while loop. ``while_loop`` with
``max_steps`` is a scan.

Tests: tests/control/test_control_flow.py, tests/control/test_control_errors.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

import ml_dtypes
import numpy as np

from gpuflow.base import dtypes, tree
from gpuflow.base.config import config
from gpuflow.base.errors import ConcretizationTypeError, check
from gpuflow.control.loops.branches import cond
from gpuflow.control.loops.carries import carry_types, check_carry
from gpuflow.control.loops.ref_carries import condition_of_carries, with_ref_carries
from gpuflow.control.loops.scan_and_map import check_arrays, scan_as
from gpuflow.control.loops.while_loop import bind_while
from gpuflow.control.programs import Program, as_arrays, trace_program
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of, is_value
from gpuflow.core.refs import refuse_refs, values_of, write
from gpuflow.core.trace import Tracer
from gpuflow.core.types import ArrayLike
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.layout.iota import iota

_T = TypeVar("_T")


@overload
def while_loop(
    cond_fun: Callable[[_T], ArrayLike],
    body_fun: Callable[[_T], _T],
    init_val: _T,
    *,
    max_steps: int | None = None,
) -> _T: ...
@overload
def while_loop(
    cond_fun: Callable[[Any], ArrayLike],
    body_fun: Callable[[Any], _T],
    init_val: Any,
    *,
    max_steps: int | None = None,
) -> _T: ...
def while_loop(
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    init_val: Any,
    *,
    max_steps: int | None = None,
) -> Any:
    """Run ``val = body_fun(val)`` while ``cond_fun(val)`` is True.

    Args:
        cond_fun: ``val -> bool scalar``.
        body_fun: ``val -> val``; the structure, shapes and dtypes must not change.
        init_val: a pytree of arrays.
        max_steps: maximum number of iterations. It is required for reverse-mode differentiation,
            which stores the residuals of each iteration.

    Returns:
        The final value. Under vmap each element stops independently.

    Raises:
        TypeError: if the condition is not a bool scalar, or the value changes its type.

    Example:
        >>> lax.while_loop(lambda x: x < 100, lambda x: 2 * x, 3)
        Array(192, dtype=int32, weak_type=True)
    """
    return _while_as("while_loop", cond_fun, body_fun, init_val, max_steps)


def _while_as(
    op: str,
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    init_val: Any,
    max_steps: int | None,
    counters: int = 0,
) -> Any:
    """Implement ``while_loop`` and ``fori_loop``.

    Args:
        op: the public function, for messages.
        cond_fun, body_fun, init_val, max_steps: as in ``while_loop``.
        counters: number of leading items of the value that the user does not see.
    """
    leaves, in_tree = tree.flatten(init_val)
    refuse_refs(op, leaves, "carries")
    check_arrays(op, leaves, "init_val")
    check(
        max_steps is None or (isinstance(max_steps, int) and max_steps >= 0),
        lambda: f"[while_loop] max_steps must be an int >= 0; got {max_steps!r}. Fix: None.",
        ValueError,
    )
    if config.trace_context().disable_jit:
        is_done, init_val, done = _while_in_python(
            cond_fun, body_fun, as_arrays(init_val), max_steps
        )
        if is_done:
            return init_val
        leaves = tree.leaves(init_val)
        max_steps = None if max_steps is None else max_steps - done
    args_tree = tree.structure((init_val,))

    def trace(avals: list[ShapedArray]) -> tuple[Program, list[ShapedArray]]:
        program = trace_program(op, body_fun, args_tree, avals, "body_fun", takes_refs=True)
        return program, program.result_avals

    body, values = carry_types(leaves, trace, body_fun)
    avals = [aval_of(value) for value in values]
    trees = in_tree, body.out_tree
    if counters:
        trees = tree.children(in_tree)[counters], tree.children(body.out_tree)[counters]
    check_carry(op, body_fun, trees[0], avals[counters:], trees[1], body.result_avals[counters:])
    condition = trace_program(op, cond_fun, args_tree, avals, "cond_fun", takes_refs=True)
    body, carried_refs = with_ref_carries(op, body, values)
    condition = condition_of_carries(condition, carried_refs)
    _check_condition(condition)
    values = [*values_of(carried_refs), *values]
    if max_steps is not None:
        outs = _bounded(condition, body, values, max_steps)
    else:
        outs = bind_while(condition.jaxpr, body.jaxpr, condition.consts, body.consts, values)
    for ref, new in zip(carried_refs, outs, strict=False):
        write(ref, new)
    return tree.unflatten(in_tree, outs[len(carried_refs) :])


def _check_condition(condition: Program) -> None:
    outs = condition.jaxpr.out_avals
    single = condition.out_tree == tree.structure(0) and len(outs) == 1
    if not single or outs[0].shape or not dtypes.is_bool(outs[0].dtype):
        got = ", ".join(str(aval) for aval in outs)
        raise TypeError(
            "[while_loop] cond_fun must return a bool scalar; got "
            f"{got or tree.text(condition.out_tree)}. "
            "Fix: compare, or reduce with jnp.all or jnp.any."
        )


def _bounded(condition: Program, body: Program, init: list[Any], max_steps: int) -> list[Any]:
    """A scan whose iterations do nothing after the condition has failed."""

    def step(carry: list[Any], _: Any) -> tuple[list[Any], None]:
        (going,) = condition.jaxpr(*condition.consts, *carry)
        new = cond(
            going,
            lambda values: list(body.jaxpr(*body.consts, *values)),
            lambda values: list(values),
            carry,
        )
        return new, None

    return scan_as("while_loop", step, step, init, None, max_steps, False, 1)[0]


def _while_in_python(
    cond_fun: Any, body_fun: Any, value: Any, max_steps: int | None
) -> tuple[bool, Any, int]:
    """Run iterations in Python, for ``disable_jit``, as long as the condition is concrete.

    Under vmap the condition has several values; such a loop is bound as usual.

    Returns:
        Whether the loop has finished, its value, and the number of iterations.
    """
    done = 0
    while max_steps is None or done < max_steps:
        try:
            going = bool(cond_fun(value))
        except ConcretizationTypeError:
            return False, value, done
        if not going:
            break
        value = body_fun(value)
        done += 1
    return True, value, done


@overload
def fori_loop(
    lower: ArrayLike,
    upper: ArrayLike,
    body_fun: Callable[[Any, _T], _T],
    init_val: _T,
    *,
    unroll: int | bool | None = None,
) -> _T: ...
@overload
def fori_loop(
    lower: ArrayLike,
    upper: ArrayLike,
    body_fun: Callable[[Any, Any], _T],
    init_val: Any,
    *,
    unroll: int | bool | None = None,
) -> _T: ...
@explained
def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Any], Any],
    init_val: Any,
    *,
    unroll: int | bool | None = None,
) -> Any:
    """Run ``val = body_fun(i, val)`` for ``i`` from ``lower`` to ``upper - 1``.

    Static bounds give a scan, which supports reverse mode; traced bounds give a while_loop, which
    does not.

    Args:
        lower, upper: integer or float scalars of one dtype; Python ints become int32. Static floats
            are truncated to ints.
        body_fun: ``(i, val) -> val``; the structure, shapes and dtypes must not change.
        init_val: a pytree of arrays.
        unroll: as in ``scan``; requires Python ints as bounds.

    Returns:
        The final value; ``init_val`` if ``upper <= lower``.

    Raises:
        TypeError: if the bounds are not such scalars, or the value changes its type.
        OverflowError: if a bound is out of range for the dtype of the index.

    Example:
        >>> lax.fori_loop(0, 5, lambda i, total: total + i, 0)
        Array(10, dtype=int32, weak_type=True)
    """
    dtype = _bound_dtype(lower, upper)
    static = _static_bounds(lower, upper)
    if static is None:
        check(
            unroll in (None, False, 1),
            lambda: "[fori_loop] unroll needs Python ints as bounds; got traced ones. Fix: None.",
            ValueError,
        )
        for name, bound in (("lower", lower), ("upper", upper)):
            if isinstance(bound, int):
                _check_bound(name, bound, bound, dtype)
        weak = aval_of(lower).weak_type and aval_of(upper).weak_type
        first, last = [convert_element_type(bound, dtype, weak) for bound in (lower, upper)]
        return _dynamic_fori(first, last, body_fun, init_val)
    start, stop = static
    count = max(stop - start, 0)
    # With static bounds, indices are weakly typed, like Python ints.
    index_dtype = dtypes.canonicalize(int)
    _check_bound("lower", start, start, index_dtype)
    if count:
        _check_bound("upper", stop, stop - 1, index_dtype)  # the last index
    if config.trace_context().disable_jit:
        init_val = as_arrays(init_val)
        for k in range(start, stop):
            index = convert_element_type(np.asarray(k, index_dtype), index_dtype, weak_type=True)
            init_val = body_fun(index, init_val)
        return init_val
    counted = iota(index_dtype, (count,), 0)
    if start != 0:
        counted = counted + int(np.asarray(start, index_dtype))
    indices = convert_element_type(counted, index_dtype, weak_type=True)

    def step(carry: Any, k: Any) -> tuple[Any, None]:
        return body_fun(k, carry), None

    return scan_as("fori_loop", step, body_fun, init_val, indices, count, False, unroll or 1)[0]


def _is_real(dtype: Any) -> bool:
    return dtypes.is_integer(dtype) or dtypes.is_floating(dtype)


def _is_static_bool(bound: Any) -> bool:
    return dtypes.is_bool(aval_of(bound).dtype) and not isinstance(bound, Tracer)


def _bound_dtype(lower: Any, upper: Any) -> Any:
    for name, bound in (("lower", lower), ("upper", upper)):
        check(
            is_value(bound)
            and not aval_of(bound).shape
            and (_is_real(aval_of(bound).dtype) or _is_static_bool(bound)),
            lambda name=name, bound=bound: (
                f"[fori_loop] {name} must be an integer or float scalar; got {bound!r}. "
                f"Fix: int({name})."
            ),
        )
    avals = aval_of(lower), aval_of(upper)
    if avals[0].dtype == avals[1].dtype:
        return avals[0].dtype
    # A Python int takes the dtype of a signed integer.
    strong = [aval.dtype for aval in avals if not aval.weak_type]
    check(
        len(strong) == 1 and all(aval.dtype.kind == "i" for aval in avals),
        lambda: (
            f"[fori_loop] bounds must have one dtype; got {avals[0]} and {avals[1]}. "
            "Fix: convert one with x.astype(...)."
        ),
    )
    return strong[0]


def _check_bound(name: str, bound: int, index: int, dtype: Any) -> None:
    if not dtypes.is_integer(dtype):
        return
    limits = ml_dtypes.iinfo(dtype)
    check(
        limits.min <= index <= limits.max,
        lambda: (
            f"[fori_loop] indices must fit {limits.dtype}; got {name}={bound}. "
            "Fix: enable 64 bits with config.update('enable_x64', True)."
        ),
        OverflowError,
    )


def _static_bounds(lower: Any, upper: Any) -> tuple[int, int] | None:
    if isinstance(lower, Tracer) or isinstance(upper, Tracer):
        return None
    return int(lower), int(upper)


def _dynamic_fori(lower: Any, upper: Any, body_fun: Any, init_val: Any) -> Any:
    def goes_on(state: Any) -> Any:
        k, last, _ = state
        return k < last

    def step(state: Any) -> Any:
        k, last, value = state
        return k + 1, last, body_fun(k, value)

    return _while_as("fori_loop", goes_on, step, (lower, upper, init_val), None, 2)[2]
