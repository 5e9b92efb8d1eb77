"""Type inference and checks of carries: an iteration must not change structure, shape or dtype.

Tests: tests/control/test_held_programs.py, tests/parallel/test_shard_map_forms.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base import dtypes, tree
from gpuflow.base.util import is_users, safe_zip
from gpuflow.control.mismatch import (
    Typed,
    describe_structures,
    describe_types,
    how_to_match,
    same_type,
)
from gpuflow.control.programs import Program
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.ops.collectives.varying import vary_along
from gpuflow.ops.elementwise.convert import convert_element_type


def carry_types(
    init: Sequence[Any],
    trace: Callable[[list[ShapedArray]], tuple[Program, list[ShapedArray]]],
    function: Callable[..., Any],
) -> tuple[Program, list[Any]]:
    """Trace a body for its carries, whose types are inferred.

    Weakly typed scalars are promoted with the results of the body. In shard_map, carries of
    gpuflow's own functions are made to vary along the axes of the body's results. Carries of users'
    functions must vary from the beginning (``check_carry``), because gradients would differ.

    Args:
        init: leaves of the initial carry.
        trace: from the avals of the carry to the traced body and the avals of the new carry.
        function: the body, a user's or gpuflow's own.

    Returns:
        The traced body, and the initial values with their final types.
    """
    avals = [aval_of(value) for value in init]
    program, outs = trace(avals)
    if len(outs) == len(avals):
        promoted = [_promoted(a, b) for a, b in safe_zip(avals, outs)]
        if promoted != avals:
            avals = promoted
            program, outs = trace(avals)
        while not _vary_equally(avals, outs) and not is_users(function):
            avals = [_widened(a, b) for a, b in safe_zip(avals, outs)]
            program, outs = trace(avals)
    values = [
        x
        if same_type(aval_of(x), aval) and aval_of(x).weak_type == aval.weak_type
        else convert_element_type(x, aval.dtype)
        for x, aval in safe_zip(init, avals)
    ]
    return program, [vary_along(x, aval.mat.varying) for x, aval in safe_zip(values, avals)]


def _vary_equally(before: Sequence[ShapedArray], after: Sequence[ShapedArray]) -> bool:
    """Whether initial carries vary along all axes along which the results of the body vary."""
    return all(b.mat.varying <= a.mat.varying for a, b in safe_zip(before, after))


def _widened(before: ShapedArray, after: ShapedArray) -> ShapedArray:
    return before.varying(before.mat.varying | after.mat.varying)


def _promoted(before: ShapedArray, after: ShapedArray) -> ShapedArray:
    """The type of a carry that starts as ``before``, promoted with the result of the body."""
    can_change = before.weak_type and before.shape == after.shape and before.dtype != after.dtype
    if not can_change or dtypes.is_extended(after.dtype):
        return before
    dtype, _ = dtypes.promote((before.dtype, True), (after.dtype, after.weak_type))
    return before.update(dtype=dtype, weak_type=False)


def check_carry(
    op: str,
    function: Callable[..., Any],
    in_tree: tree.TreeDef,
    in_avals: Sequence[ShapedArray],
    out_tree: tree.TreeDef,
    out_avals: Sequence[ShapedArray],
) -> None:
    """Raise TypeError unless the body ``function`` returns the types of its arguments.

    Raises:
        TypeError: if structure, shape or dtype differ, or if carries of a user's body vary along
            other axes of shard_map after it. The message names the leaves that differ.
    """
    before = Typed("at first", in_tree, in_avals)
    after = Typed("after the body", out_tree, out_avals)
    if in_tree != out_tree:
        raise TypeError(
            f"[{op}] the body must return a carry of the structure that it gets; got "
            f"{describe_structures('carry', before, after)} Fix: return a tree with the same "
            "containers and keys as the initial carry."
        )
    differing = describe_types("carry", before, after)
    if differing is not None:
        raise TypeError(
            f"[{op}] the body must return a carry of the types that it gets; got {differing} "
            f"Fix: {how_to_match('carry', before, after)}."
        )
    check_varying(op, "a carry", ("at first", "after the body"), function, in_avals, out_avals)


def check_varying(
    op: str,
    what: str,
    where: tuple[str, str],
    function: Callable[..., Any],
    first: Sequence[ShapedArray],
    second: Sequence[ShapedArray],
) -> None:
    """Raise TypeError where types of a user's function vary along different axes of shard_map.

    Args:
        op: the op that takes the function.
        what: name of the compared values.
        where: the origins of the two types, for the message.
        function: the body; functions of gpuflow are exempt.
        first, second: the types.
    """
    if all(a.mat is b.mat or a.mat == b.mat for a, b in safe_zip(first, second)):
        return
    if not is_users(function):
        return
    differing = [
        f"{a} {where[0]} and {b} {where[1]}" for a, b in safe_zip(first, second) if a.mat != b.mat
    ]
    raise TypeError(
        f"[{op}] {what} must vary along the same mesh axes; got {'; '.join(differing)}. "
        "Fix: lax.pcast(x, axes, to='varying') where it does not vary yet."
    )
