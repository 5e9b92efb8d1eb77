"""Carries keep their structure, shapes and dtypes from one iteration to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base import dtypes, tree, tree_keys
from gpuflow.base.util import safe_zip
from gpuflow.control.programs import Program
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.ops.convert import convert_element_type


def same_type(a: ShapedArray, b: ShapedArray) -> bool:
    """Whether two avals agree in shape and dtype."""
    return (a.shape, a.dtype) == (b.shape, b.dtype)


def carry_types(
    init: Sequence[Any],
    trace: Callable[[list[ShapedArray]], tuple[Program, list[ShapedArray]]],
) -> tuple[Program, list[Any]]:
    """Trace a body for carries; Python numbers take a dtype that holds what the body makes.

    Args:
        init: leaves of the initial carry.
        trace: from the avals of the carry to the traced body and the avals of the new carry.

    Returns:
        The traced body, and the initial values with their final dtypes.
    """
    avals = [aval_of(value) for value in init]
    program, outs = trace(avals)
    if len(outs) == len(avals):
        promoted = [_promoted(a, b) for a, b in safe_zip(avals, outs)]
        if promoted != avals:
            avals = promoted
            program, outs = trace(avals)
    values = [
        x if same_type(aval_of(x), aval) and aval_of(x).weak_type == aval.weak_type
        else convert_element_type(x, aval.dtype)
        for x, aval in safe_zip(init, avals)
    ]  # fmt: skip
    return program, values


def _promoted(given: ShapedArray, made: ShapedArray) -> ShapedArray:
    """The type of a carry that starts as ``given``, after a look at what the body makes of it."""
    can_change = given.weak_type and given.shape == made.shape and given.dtype != made.dtype
    if not can_change or dtypes.is_extended(made.dtype):
        return given
    dtype, _ = dtypes.promote((given.dtype, True), (made.dtype, made.weak_type))
    return given.update(dtype=dtype, weak_type=False)


def check_carry(
    op: str, in_tree: tree.TreeDef, in_avals: Sequence[ShapedArray], out_tree: tree.TreeDef,
    out_avals: Sequence[ShapedArray],
) -> None:  # fmt: skip
    """Raise TypeError unless the body returns what it was given.

    Raises:
        TypeError: another structure, shape or dtype; the message names the leaves that differ.
    """
    if in_tree != out_tree:
        raise TypeError(
            f"[{op}] the body must return a carry of the structure that it gets; got {out_tree} "
            f"for {in_tree}: they differ {tree_difference(in_tree, out_tree)}. Fix: return a tree "
            "with the same containers and keys as the initial carry."
        )
    paths = tree.paths(tree.unflatten(in_tree, range(len(in_avals))))
    differing = [
        f"carry{path} is {given} at first and {made} after the body"
        for path, given, made in safe_zip(paths, in_avals, out_avals)
        if not same_type(given, made)
    ]
    if differing:
        raise TypeError(
            f"[{op}] the body must return a carry of the types that it gets; got "
            f"{'; '.join(differing)}. Fix: convert the initial carry or the result, for example "
            "with x.astype(...) or jnp.broadcast_to."
        )


def tree_difference(first: tree.TreeDef, second: tree.TreeDef) -> str:
    """Where two structures first differ, in words."""
    return tree_keys.difference(tree_keys.skeleton(first), tree_keys.skeleton(second))
