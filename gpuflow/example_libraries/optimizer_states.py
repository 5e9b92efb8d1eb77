"""States of optimizers: from the state of one array to that of a tree of parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from gpuflow.base import tree as base_tree
from gpuflow.base.errors import check
from gpuflow.base.util import safe_zip
from gpuflow.tree_util import register_pytree_node

Params = Any
State = Any
Updates = Any
Step = int


class OptimizerState(NamedTuple):
    """The state of an optimizer: the states of all parameters, and their structure.

    Attributes:
        packed_state: the leaves of the state of each parameter.
        tree_def: the structure of the parameters.
        subtree_defs: the structure of the state of each parameter.
    """

    packed_state: Any
    tree_def: Any
    subtree_defs: Any


register_pytree_node(
    OptimizerState,
    lambda state: ((state.packed_state,), (state.tree_def, state.subtree_defs)),
    lambda data, children: OptimizerState(children[0], *data),
)

InitFn = Callable[[Params], OptimizerState]
UpdateFn = Callable[[Step, Updates, OptimizerState], OptimizerState]
ParamsFn = Callable[[OptimizerState], Params]


class Optimizer(NamedTuple):
    """Three functions: initialize the state, update it, and get the parameters."""

    init_fn: InitFn
    update_fn: UpdateFn
    params_fn: ParamsFn


def optimizer(opt_maker: Callable[..., tuple[Any, Any, Any]]) -> Callable[..., Optimizer]:
    """Decorator: convert an optimizer of one array to one of pytrees of arrays.

    Args:
        opt_maker: a function that returns ``(init, update, get_params)``. ``init(x)`` returns the
            state for one array, ``update(step, gradient, state)`` the next state, and
            ``get_params(state)`` the array.

    Raises:
        TypeError: at a step, if gradients or states differ in structure from the parameters.
    """

    @functools.wraps(opt_maker)
    def tree_opt_maker(*args: Any, **kwargs: Any) -> Optimizer:
        init, update, get_params = opt_maker(*args, **kwargs)

        def init_fn(params: Params) -> OptimizerState:
            leaves, tree_def = base_tree.flatten(params)
            return _packed([init(leaf) for leaf in leaves], tree_def)

        def update_fn(step: Step, grads: Updates, opt_state: OptimizerState) -> OptimizerState:
            gradients, grads_def = base_tree.flatten(grads)
            check(
                grads_def == opt_state.tree_def,
                lambda: (
                    "[optimizer] gradients must have the structure of the parameters; got "
                    f"{grads_def} for {opt_state.tree_def}. Fix: pass the gradients of "
                    "get_params(state)."
                ),
                TypeError,
            )
            states = _states(opt_state)
            new = [update(step, g, state) for g, state in safe_zip(gradients, states)]
            packed = _packed(new, opt_state.tree_def)
            for before, after in safe_zip(opt_state.subtree_defs, packed.subtree_defs):
                check(
                    before == after,
                    lambda before=before, after=after: (
                        "[optimizer] update must keep the structure of the state of a parameter; "
                        f"got {after} after {before}. Fix: return the structure that init returns."
                    ),
                    TypeError,
                )
            return packed

        def params_fn(opt_state: OptimizerState) -> Params:
            values = [get_params(state) for state in _states(opt_state)]
            return base_tree.unflatten(opt_state.tree_def, values)

        return Optimizer(init_fn, update_fn, params_fn)

    return tree_opt_maker


def _states(opt_state: OptimizerState) -> list[Any]:
    pairs = safe_zip(opt_state.subtree_defs, opt_state.packed_state)
    return [base_tree.unflatten(treedef, leaves) for treedef, leaves in pairs]


def _packed(states: list[Any], tree_def: Any) -> OptimizerState:
    flat = [base_tree.flatten(state) for state in states]
    return OptimizerState(
        tuple(tuple(leaves) for leaves, _ in flat), tree_def, tuple(treedef for _, treedef in flat)
    )


class JoinPoint:
    """Marks the root of a parameter's state in an unpacked state; not a pytree."""

    def __init__(self, subtree: Any) -> None:
        self.subtree = subtree

    def __iter__(self) -> Any:
        """One item: the state."""
        yield self.subtree


def unpack_optimizer_state(opt_state: OptimizerState) -> Any:
    """Return the tree of parameters with a JoinPoint of the state for each, for pickling."""
    marked = [JoinPoint(state) for state in _states(opt_state)]
    return base_tree.unflatten(opt_state.tree_def, marked)


def pack_optimizer_state(marked_pytree: Any) -> OptimizerState:
    """Pack the result of ``unpack_optimizer_state`` into an optimizer state.

    Raises:
        TypeError: if a leaf is not a JoinPoint.
    """
    sentinels, tree_def = base_tree.flatten(marked_pytree)
    for sentinel in sentinels:
        check(
            isinstance(sentinel, JoinPoint),
            lambda sentinel=sentinel: (
                f"[pack_optimizer_state] leaves must be JoinPoints; got {type(sentinel).__name__}. "
                "Fix: pass the result of unpack_optimizer_state."
            ),
            TypeError,
        )
    return _packed([sentinel.subtree for sentinel in sentinels], tree_def)
