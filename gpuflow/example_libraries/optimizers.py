"""Optimizers as triples of functions, under the names of jax.example_libraries.optimizers.

``opt_init, opt_update, get_params = adam(1e-3)``; then ``state = opt_init(params)``, ``state =
opt_update(step, grads, state)`` and ``get_params(state)``. Pass conjugated gradients of complex
parameters, ``tree_map(jnp.conj, grads)``. If an optimizer squares a gradient, it squares its
absolute value, so that each element has one real scale.

Tests: tests/test_optimizers.py.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from typing import Any

from gpuflow import numpy as jnp
from gpuflow import tree_util
from gpuflow.base import errors
from gpuflow.base import tree as base_tree
from gpuflow.base.names import public_names, publish
from gpuflow.base.util import safe_zip
from gpuflow.core import aval

zip = safe_zip

Array = Any
Params = Any
State = Any
Updates = Any
Step = int
Schedule = Callable[[Any], Any]


def map(f: Callable[..., Any], *sequences: Any) -> list[Any]:
    """Apply ``f`` to the items of sequences of equal length."""
    return [f(*items) for items in safe_zip(*sequences)]


# --- states of trees of parameters ---------------------------------------------------------


class OptimizerState(typing.NamedTuple):
    """The state of an optimizer: the states of all parameters, and their structure.

    Attributes:
        packed_state: the leaves of the state of each parameter.
        tree_def: the structure of the parameters.
        subtree_defs: the structure of the state of each parameter.
    """

    packed_state: Any
    tree_def: Any
    subtree_defs: Any


tree_util.register_pytree_node(
    OptimizerState,
    lambda state: ((state.packed_state,), (state.tree_def, state.subtree_defs)),
    lambda data, children: OptimizerState(children[0], *data),
)

InitFn = Callable[[Params], OptimizerState]
UpdateFn = Callable[[Step, Updates, OptimizerState], OptimizerState]
ParamsFn = Callable[[OptimizerState], Params]


class Optimizer(typing.NamedTuple):
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
            errors.check(
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
                errors.check(
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
        errors.check(
            isinstance(sentinel, JoinPoint),
            lambda sentinel=sentinel: (
                f"[pack_optimizer_state] leaves must be JoinPoints; got {type(sentinel).__name__}. "
                "Fix: pass the result of unpack_optimizer_state."
            ),
            TypeError,
        )
    return _packed([sentinel.subtree for sentinel in sentinels], tree_def)


# --- step sizes by the ordinal of the step -------------------------------------------------


def make_schedule(scalar_or_schedule: float | Schedule) -> Schedule:
    """Return a schedule unchanged, or a constant schedule for a scalar.

    Raises:
        TypeError: if it is neither.
    """
    if callable(scalar_or_schedule):
        return scalar_or_schedule
    errors.check(
        aval.is_value(scalar_or_schedule) and jnp.ndim(scalar_or_schedule) == 0,
        lambda: (
            "[make_schedule] a step size must be a scalar or a function of the step's number; got "
            f"{type(scalar_or_schedule).__name__}. Fix: 1e-3, or optimizers.constant(1e-3)."
        ),
        TypeError,
    )
    return constant(scalar_or_schedule)


def constant(step_size: Any) -> Schedule:
    """Return a schedule that is always ``step_size``."""
    return lambda i: step_size


def exponential_decay(step_size: Any, decay_steps: Any, decay_rate: Any) -> Schedule:
    """Return the schedule ``step_size * decay_rate ** (i / decay_steps)``."""
    return lambda i: step_size * decay_rate ** (i / decay_steps)


def inverse_time_decay(
    step_size: Any, decay_steps: Any, decay_rate: Any, staircase: bool = False
) -> Schedule:
    """Return the schedule ``step_size / (1 + decay_rate * i / decay_steps)``.

    Args:
        step_size: step size at step 0.
        decay_steps: number of steps per unit of time.
        decay_rate: rate of decay.
        staircase: whether time is rounded down to an integer.
    """

    def schedule(i: Any) -> Any:
        time = jnp.floor(i / decay_steps) if staircase else i / decay_steps
        return step_size / (1 + decay_rate * time)

    return schedule


def polynomial_decay(
    step_size: Any, decay_steps: Any, final_step_size: Any, power: float = 1.0
) -> Schedule:
    """Return a polynomial schedule from ``step_size`` to ``final_step_size``, then constant."""

    def schedule(i: Any) -> Any:
        remaining = 1 - jnp.minimum(i, decay_steps) / decay_steps
        return remaining**power * (step_size - final_step_size) + final_step_size

    return schedule


def piecewise_constant(boundaries: Any, values: Any) -> Schedule:
    """Return a schedule that is ``values[k]`` after the k-th boundary.

    Raises:
        ValueError: if the number of values is not the number of boundaries plus one.
    """
    edges, levels = jnp.array(boundaries), jnp.array(values)
    errors.check(
        edges.ndim == levels.ndim == 1 and len(edges) == len(levels) - 1,
        lambda: (
            "[piecewise_constant] boundaries and values must be sequences, with one value more; "
            f"got shapes {edges.shape} and {levels.shape}. Fix: "
            "piecewise_constant([100], [1e-2, 1e-3])."
        ),
        ValueError,
    )
    return lambda i: levels[jnp.sum(i > edges)]


# --- optimizers ----------------------------------------------------------------------------


def _squared(g: Array) -> Array:
    return jnp.square(jnp.abs(g)) if jnp.iscomplexobj(g) else jnp.square(g)


def _zeros_of_squares(x: Array) -> Array:
    return jnp.zeros_like(x, dtype=jnp.real(x).dtype)


def _inverse_root(x: Array) -> Array:
    """``1 / sqrt(x)``, and 0 where ``x`` is 0."""
    return jnp.where(x > 0, 1.0 / jnp.sqrt(x), 0.0)


def _first(state: Any) -> Array:
    return state[0]


@optimizer
def sgd(step_size: float | Schedule) -> tuple[Any, Any, Any]:
    """Stochastic gradient descent."""
    rate = make_schedule(step_size)
    return lambda x: x, lambda i, g, x: x - rate(i) * g, lambda x: x


@optimizer
def momentum(step_size: float | Schedule, mass: float) -> tuple[Any, Any, Any]:
    """Gradient descent with momentum (Polyak 1964)."""
    rate = make_schedule(step_size)

    def update(i: Step, g: Array, state: Any) -> Any:
        x, velocity = state
        velocity = mass * velocity + g
        return x - rate(i) * velocity, velocity

    return lambda x: (x, jnp.zeros_like(x)), update, _first


@optimizer
def nesterov(step_size: float | Schedule, mass: float) -> tuple[Any, Any, Any]:
    """Gradient descent with Nesterov's momentum (Sutskever et al. 2013, eq. 3 and 4)."""
    rate = make_schedule(step_size)

    def update(i: Step, g: Array, state: Any) -> Any:
        x, velocity = state
        velocity = mass * velocity + g
        return x - rate(i) * (mass * velocity + g), velocity

    return lambda x: (x, jnp.zeros_like(x)), update, _first


@optimizer
def adagrad(step_size: float | Schedule, momentum: float = 0.9) -> tuple[Any, Any, Any]:
    """Adagrad (Duchi, Hazan and Singer 2011) with momentum."""
    rate = make_schedule(step_size)

    def update(i: Step, g: Array, state: Any) -> Any:
        x, total, mean = state
        total = total + _squared(g)
        mean = (1.0 - momentum) * (g * _inverse_root(total)) + momentum * mean
        return x - rate(i) * mean, total, mean

    return lambda x: (x, _zeros_of_squares(x), jnp.zeros_like(x)), update, _first


@optimizer
def rmsprop(
    step_size: float | Schedule, gamma: float = 0.9, eps: float = 1e-8
) -> tuple[Any, Any, Any]:
    """RMSProp (Tieleman and Hinton 2012)."""
    rate = make_schedule(step_size)

    def update(i: Step, g: Array, state: Any) -> Any:
        x, average = state
        average = average * gamma + _squared(g) * (1.0 - gamma)
        return x - rate(i) * g / jnp.sqrt(average + eps), average

    return lambda x: (x, _zeros_of_squares(x)), update, _first


@optimizer
def rmsprop_momentum(
    step_size: float | Schedule, gamma: float = 0.9, eps: float = 1e-8, momentum: float = 0.9
) -> tuple[Any, Any, Any]:
    """RMSProp with momentum of its steps."""
    rate = make_schedule(step_size)

    def update(i: Step, g: Array, state: Any) -> Any:
        x, average, velocity = state
        average = average * gamma + _squared(g) * (1.0 - gamma)
        velocity = momentum * velocity + rate(i) * g / jnp.sqrt(average + eps)
        return x - velocity, average, velocity

    return lambda x: (x, _zeros_of_squares(x), jnp.zeros_like(x)), update, _first


@optimizer
def adam(
    step_size: float | Schedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> tuple[Any, Any, Any]:
    """Adam (Kingma and Ba 2015, algorithm 1)."""
    rate = make_schedule(step_size)

    def update(i: Step, g: Array, state: Any) -> Any:
        x, mean, square = state
        mean = (1 - b1) * g + b1 * mean
        square = (1 - b2) * _squared(g) + b2 * square
        unbiased_mean = mean / (1 - jnp.asarray(b1, square.dtype) ** (i + 1))
        unbiased_square = square / (1 - jnp.asarray(b2, square.dtype) ** (i + 1))
        return x - rate(i) * unbiased_mean / (jnp.sqrt(unbiased_square) + eps), mean, square

    return lambda x: (x, jnp.zeros_like(x), _zeros_of_squares(x)), update, _first


@optimizer
def adamax(
    step_size: float | Schedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> tuple[Any, Any, Any]:
    """AdaMax, Adam with the infinity norm (Kingma and Ba 2015, algorithm 2)."""
    rate = make_schedule(step_size)

    def update(i: Step, g: Array, state: Any) -> Any:
        x, mean, largest = state
        mean = (1 - b1) * g + b1 * mean
        largest = jnp.maximum(b2 * largest, jnp.abs(g))
        scale = rate(i) / (1 - jnp.asarray(b1, largest.dtype) ** (i + 1))
        return x - scale * mean / (largest + eps), mean, largest

    return lambda x: (x, jnp.zeros_like(x), _zeros_of_squares(x)), update, _first


@optimizer
def sm3(step_size: float | Schedule, momentum: float = 0.9) -> tuple[Any, Any, Any]:
    """SM3-I: one accumulator for each index of each dimension (Anil et al. 2019, algorithm 1)."""
    rate = make_schedule(step_size)

    def init(x: Array) -> Any:
        sizes = jnp.shape(x) or (1,)  # a scalar has one accumulator
        dtype = jnp.real(x).dtype
        return x, jnp.zeros_like(x), tuple(jnp.zeros(size, dtype) for size in sizes)

    def update(i: Step, g: Array, state: Any) -> Any:
        x, mean, covers = state
        count = len(covers)
        broadcast = [
            cover.reshape([-1 if k == axis else 1 for k in range(count)])
            for axis, cover in enumerate(covers)
        ]
        total = functools.reduce(jnp.minimum, broadcast) + _squared(g).reshape(jnp.shape(g) or (1,))
        scaled = g * _inverse_root(total).reshape(jnp.shape(g))
        mean = (1.0 - momentum) * scaled + momentum * mean
        new = tuple(total.max(tuple(k for k in range(count) if k != axis)) for axis in range(count))
        return x - rate(i) * mean, mean, new

    return init, update, _first


# --- gradients and trees -------------------------------------------------------------------


def l2_norm(tree: Any) -> Array:
    """Return the square root of the sum of squares of all elements of a pytree."""
    return jnp.sqrt(sum(jnp.sum(_squared(leaf)) for leaf in base_tree.leaves(tree)))


def clip_grads(grad_tree: Any, max_norm: Any) -> Any:
    """Scale a pytree of gradients to an l2 norm of at most ``max_norm``."""
    norm = l2_norm(grad_tree)
    scale = jnp.where(norm < max_norm, 1.0, max_norm / norm)
    return base_tree.tree_map(lambda g: g * scale.astype(jnp.real(g).dtype), grad_tree)


publish(globals(), "optimizers", public_names(globals()))
