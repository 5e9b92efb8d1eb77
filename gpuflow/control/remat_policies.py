"""Checkpoint policies: functions that select the values to store for the backward pass.

A policy is ``(primitive, *operand avals, **params) -> bool``. It returns whether the outputs of
such an equation may be stored; all other values are recomputed.

Tests: tests/control/test_remat.py, tests/control/test_remat_policy_answers.py.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from gpuflow.ops.contractions.dot_general import dot_general_p
from gpuflow.ops.effects.checkpoint_name import name_p

Policy = Callable[..., bool]


class _Answer:
    """Possible results of a policy besides True and False."""

    def __init__(self, name: str, stores: bool) -> None:
        self._name, self._stores = name, stores

    def __bool__(self) -> bool:
        return self._stores

    def __repr__(self) -> str:
        return self._name


Saveable = _Answer("Saveable", True)
Recompute = _Answer("Recompute", False)


class Offloadable:
    """Policy result: offload values to another memory. Not supported.

    Raises:
        NotImplementedError: always; an array stays in the memory of its device.
    """

    def __init__(self, src: str, dst: str) -> None:
        raise NotImplementedError(
            f"[Offloadable] arrays must stay in the memory of their device; got {src} and {dst}. "
            "Fix: return Saveable or Recompute."
        )


def everything_saveable(primitive: Any, *avals: Any, **params: Any) -> bool:
    """Store everything, as without checkpoint."""
    del primitive, avals, params
    return True


def nothing_saveable(primitive: Any, *avals: Any, **params: Any) -> bool:
    """Recompute everything from the arguments, as without a policy."""
    del primitive, avals, params
    return False


def dots_saveable(primitive: Any, *avals: Any, **params: Any) -> bool:
    """Store the results of matrix products."""
    del avals, params
    return primitive is dot_general_p


def dots_with_no_batch_dims_saveable(primitive: Any, *avals: Any, **params: Any) -> bool:
    """Store the results of matrix products without batch dimensions."""
    del avals
    if primitive is not dot_general_p:
        return False
    _, (lhs_batch, rhs_batch) = params["dimension_numbers"]
    return not lhs_batch and not rhs_batch


def save_only_these_names(*names_which_can_be_saved: str) -> Policy:
    """Store only values that have one of these names by ``checkpoint_name``."""
    names = frozenset(names_which_can_be_saved)
    return lambda primitive, *avals, **params: primitive is name_p and params["name"] in names


def save_any_names_but_these(*names_not_to_save: str) -> Policy:
    """Store only values that have a name by ``checkpoint_name``, except these names."""
    names = frozenset(names_not_to_save)
    return lambda primitive, *avals, **params: primitive is name_p and params["name"] not in names


def save_anything_except_these_names(*names_not_to_save: str) -> Policy:
    """Store all values except those that have one of these names by ``checkpoint_name``.

    The operands of such a value may be stored instead.
    """
    names = frozenset(names_not_to_save)
    return lambda primitive, *avals, **params: (
        primitive is not name_p or (params["name"] not in names)
    )


def save_from_both_policies(policy_1: Policy, policy_2: Policy) -> Policy:
    """Store the values that either policy saves.

    Raises:
        ValueError: when the returned policy is called, if an inner policy returns no bool.
    """

    def policy(primitive: Any, *avals: Any, **params: Any) -> bool:
        answers = [inner(primitive, *avals, **params) for inner in (policy_1, policy_2)]
        for answer in answers:
            if not isinstance(answer, bool):
                raise ValueError(
                    f"[save_from_both_policies] policies must answer with a bool; got {answer!r} "
                    f"for {primitive}. Fix: return True or False."
                )
        return any(answers)

    return policy


def save_and_offload_only_these_names(
    *,
    names_which_can_be_saved: Any,
    names_which_can_be_offloaded: Any,
    offload_src: str,
    offload_dst: str,
) -> Policy:
    """Store named values on the device, or offload them. Offloading is not supported.

    Raises:
        ValueError: if a name is in both lists.
        NotImplementedError: if there are names to offload; arrays stay in their device's memory.
    """
    both = set(names_which_can_be_saved) & set(names_which_can_be_offloaded)
    if both:
        raise ValueError(
            "[save_and_offload_only_these_names] a name must be in one list; got "
            f"{sorted(both)} in both. Fix: drop it from one."
        )
    if names_which_can_be_offloaded:
        raise NotImplementedError(
            "[save_and_offload_only_these_names] arrays must stay in the memory of their device; "
            f"got names to move from {offload_src} to {offload_dst}. Fix: save_only_these_names, "
            "without the names to offload."
        )
    return save_only_these_names(*names_which_can_be_saved)


def offload_dot_with_no_batch_dims(offload_src: str, offload_dst: str) -> Policy:
    """Offload matrix products without batch dimensions. Not supported.

    Raises:
        NotImplementedError: always; an array stays in the memory of its device.
    """
    raise NotImplementedError(
        "[offload_dot_with_no_batch_dims] arrays must stay in the memory of their device; got a "
        f"policy that moves them from {offload_src} to {offload_dst}. Fix: "
        "dots_with_no_batch_dims_saveable."
    )


checkpoint_policies = SimpleNamespace(
    everything_saveable=everything_saveable,
    nothing_saveable=nothing_saveable,
    dots_saveable=dots_saveable,
    checkpoint_dots=dots_saveable,
    dots_with_no_batch_dims_saveable=dots_with_no_batch_dims_saveable,
    checkpoint_dots_with_no_batch_dims=dots_with_no_batch_dims_saveable,
    offload_dot_with_no_batch_dims=offload_dot_with_no_batch_dims,
    save_anything_except_these_names=save_anything_except_these_names,
    save_any_names_but_these=save_any_names_but_these,
    save_only_these_names=save_only_these_names,
    save_from_both_policies=save_from_both_policies,
    save_and_offload_only_these_names=save_and_offload_only_these_names,
)
