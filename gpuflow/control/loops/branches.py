"""The public functions ``cond`` and ``switch``: checks, pytrees and tracing around ``cond_p``.

Tests: tests/control/test_control_flow.py, tests/control/test_control_errors.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from gpuflow.base import dtypes, tree
from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief, fix_for
from gpuflow.base.util import safe_zip
from gpuflow.control.loops.carries import check_varying
from gpuflow.control.loops.cond import bind_cond
from gpuflow.control.loops.ref_carries import with_ref_outputs
from gpuflow.control.mismatch import Typed, describe_structures, describe_types, how_to_match
from gpuflow.control.programs import Program, as_arrays, join_consts, trace_program
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of, is_value
from gpuflow.core.refs import Ref, type_of, values_of, write
from gpuflow.core.trace import Tracer
from gpuflow.core.types import ArrayLike
from gpuflow.ops.elementwise.comparison import ne
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.elementwise.select import clamp

_T = TypeVar("_T")

_MISSING: Any = object()


@explained
def cond(
    pred: ArrayLike,
    true_fun: Callable[..., _T],
    false_fun: Callable[..., _T],
    *operands: Any,
    operand: Any = _MISSING,
    linear: Any = None,
) -> _T:
    """Call ``true_fun(*operands)`` if ``pred`` is True, else ``false_fun(*operands)``.

    Args:
        pred: a bool scalar; a number is converted to bool.
        true_fun, false_fun: functions with results of the same structure, shapes and dtypes.
        operands: pytrees of arrays.
        operand: a single operand, by keyword.
        linear: ignored, as in JAX.

    Returns:
        The result of the called function; only one function runs. If ``pred`` is mapped by vmap,
        each element has its own.

    Raises:
        TypeError: if ``pred`` is not a scalar, or the results differ in type.

    Example:
        >>> f = gf.jit(lambda x: lax.cond(x > 0, lambda x: 2 * x, lambda x: -x, x))
        >>> f(3.0), f(-3.0)
        (Array(6., dtype=float32, weak_type=True), Array(3., dtype=float32, weak_type=True))
    """
    del linear
    if operand is not _MISSING:
        check(
            not operands,
            lambda: "[cond] operands must be given by position or by name; got both. Fix: one way.",
        )
        operands = (operand,)
    if not callable(true_fun) and len(operands) == 2 and callable(false_fun):
        # JAX's deprecated signature: cond(pred, true_operand, true_fun, false_operand, false_fun).
        return _older_cond(pred, true_fun, false_fun, *operands)
    branch_index = _predicate(pred)
    if config.trace_context().disable_jit and not isinstance(pred, Tracer):
        return (true_fun if bool(pred) else false_fun)(*as_arrays(operands))
    return _choose("cond", branch_index, (false_fun, true_fun), operands, ("false_fun", "true_fun"))


def _older_cond(
    pred: Any, true_operand: Any, true_fun: Any, false_operand: Any, false_fun: Any
) -> Any:
    return cond(
        pred,
        lambda both: true_fun(both[0]),
        lambda both: false_fun(both[1]),
        (true_operand, false_operand),
    )


def _predicate(pred: Any) -> Any:
    if callable(pred):
        raise TypeError(
            "[cond] the predicate must be a scalar; got a function. Fix: cond(pred, true_fun, ...)."
        )
    check(
        is_value(pred),
        lambda: f"[cond] the predicate must be a bool scalar; got {pred!r}. Fix: compare arrays.",
    )
    aval = aval_of(pred)
    check(
        not aval.shape,
        lambda: (
            f"[cond] the predicate must be a scalar; got {aval}. Fix: jnp.where for a choice "
            "for each element, or vmap."
        ),
    )
    check(
        not dtypes.is_extended(aval.dtype) and not dtypes.is_complex(aval.dtype),
        lambda: f"[cond] the predicate must be a bool or a number; got {aval}. Fix: compare it.",
    )
    if not dtypes.is_bool(aval.dtype):
        pred = ne(pred, np.zeros((), aval.dtype)[()])
    return convert_element_type(pred, np.dtype(np.int32))


@explained
def switch(
    index: ArrayLike,
    branches: Sequence[Callable[..., _T]],
    *operands: Any,
    operand: Any = _MISSING,
) -> _T:
    """Call ``branches[index](*operands)``; the index is clamped to the branches.

    Args:
        index: an integer scalar.
        branches: functions with results of the same structure, shapes and dtypes.
        operands: pytrees of arrays.
        operand: a single operand, by keyword.

    Returns:
        The result of the selected branch.

    Raises:
        TypeError: if ``index`` is not an integer scalar, or the results differ in type.
        ValueError: if there are no branches.

    Example:
        >>> f = gf.jit(lambda k, x: lax.switch(k, [jnp.sin, jnp.square, jnp.negative], x))
        >>> f(1, 3.0)
        Array(9., dtype=float32, weak_type=True)
    """
    branches = tuple(branches)
    if operand is not _MISSING:
        operands = (operand,)
    for position, branch in enumerate(branches):
        check(
            callable(branch),
            lambda position=position, branch=branch: (
                f"[switch] branches must be callable; got {branch!r} at {position}. "
                "Fix: pass functions."
            ),
        )
    check(
        bool(branches),
        lambda: "[switch] there must be at least one branch; got none. Fix: pass functions.",
        ValueError,
    )
    check(
        is_value(index) and not aval_of(index).shape,
        lambda: f"[switch] the index must be an integer scalar; got {index!r}. Fix: index it.",
    )
    aval = aval_of(index)
    check(
        not dtypes.is_extended(aval.dtype) and dtypes.is_integer(aval.dtype),
        lambda: f"[switch] the index must be an integer; got {aval}. Fix: x.astype(jnp.int32).",
    )
    if len(branches) == 1:
        return branches[0](*as_arrays(operands))
    if config.trace_context().disable_jit and not isinstance(index, Tracer):
        selected = branches[min(max(int(index), 0), len(branches) - 1)]
        return selected(*as_arrays(operands))
    low, high = np.asarray([0, len(branches) - 1], aval.dtype)
    branch_index = convert_element_type(clamp(low, index, high), np.dtype(np.int32))
    names = [f"branches[{k}]" for k in range(len(branches))]
    return _choose("switch", branch_index, branches, operands, names)


def _choose(
    op: str,
    branch_index: Any,
    functions: Sequence[Callable[..., Any]],
    operands: tuple[Any, ...],
    names: Sequence[str],
) -> Any:
    """Trace all branches, check that their results match, and bind the cond."""
    leaves, in_tree = tree.flatten(operands)
    for leaf in leaves:
        check(
            is_value(leaf) or type(leaf) is Ref,
            lambda leaf=leaf: (
                f"[{op}] operands must be arrays or trees of them; got {brief(leaf)}. "
                f"Fix: {fix_for(leaf, 'close over it')}."
            ),
        )
    avals = [type_of(leaf) for leaf in leaves]
    programs = [
        trace_program(op, function, in_tree, avals, name, takes_refs=True)
        for function, name in safe_zip(functions, names)
    ]
    _check_results(op, programs, names)
    for program, name, function in safe_zip(programs[1:], names[1:], functions[1:]):
        check_varying(
            op,
            "a result",
            (f"from {names[0]}", f"from {name}"),
            function,
            programs[0].result_avals,
            program.result_avals,
        )
    programs, changed = with_ref_outputs(op, programs, leaves)
    jaxprs, closed = [p.jaxpr for p in programs], [p.consts for p in programs]
    merged, consts = join_consts(jaxprs, closed)
    outs = bind_cond(merged, branch_index, [*consts, *values_of(leaves)])
    out_tree = programs[0].out_tree
    for ref, new in safe_zip(changed, outs[out_tree.num_leaves :]):
        write(ref, new)
    return tree.unflatten(out_tree, outs[: out_tree.num_leaves])


def _check_results(op: str, programs: Sequence[Program], names: Sequence[str]) -> None:
    first = Typed(f"from {names[0]}", programs[0].out_tree, programs[0].result_avals)
    for program, name in safe_zip(programs[1:], names[1:]):
        other = Typed(f"from {name}", program.out_tree, program.result_avals)
        if other.structure != first.structure:
            raise TypeError(
                f"[{op}] branches must return one structure; got "
                f"{describe_structures('result', first, other)} Fix: return the same containers "
                "and keys."
            )
        differing = describe_types("result", first, other)
        if differing is not None:
            raise TypeError(
                f"[{op}] branches must return one type for each result; got {differing} "
                f"Fix: {how_to_match('result', first, other)}."
            )
