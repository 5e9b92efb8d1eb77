"""Optimizers as triples of functions, under the names of jax.example_libraries.optimizers.

``opt_init, opt_update, get_params = adam(1e-3)``; then ``state = opt_init(params)``, ``state =
opt_update(step, grads, state)`` and ``get_params(state)``. Pass conjugated gradients of complex
parameters, ``tree_map(jnp.conj, grads)``. If an optimizer squares a gradient, it squares its
absolute value, so that each element has one real scale.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gpuflow import numpy as jnp
from gpuflow.base import tree as base_tree
from gpuflow.base.names import public_names, publish
from gpuflow.base.util import safe_zip
from gpuflow.example_libraries.optimizer_states import InitFn as InitFn
from gpuflow.example_libraries.optimizer_states import JoinPoint as JoinPoint
from gpuflow.example_libraries.optimizer_states import Optimizer as Optimizer
from gpuflow.example_libraries.optimizer_states import OptimizerState as OptimizerState
from gpuflow.example_libraries.optimizer_states import Params as Params
from gpuflow.example_libraries.optimizer_states import ParamsFn as ParamsFn
from gpuflow.example_libraries.optimizer_states import State as State
from gpuflow.example_libraries.optimizer_states import Step as Step
from gpuflow.example_libraries.optimizer_states import UpdateFn as UpdateFn
from gpuflow.example_libraries.optimizer_states import Updates as Updates
from gpuflow.example_libraries.optimizer_states import optimizer as optimizer
from gpuflow.example_libraries.optimizer_states import pack_optimizer_state as pack_optimizer_state
from gpuflow.example_libraries.optimizer_states import (
    unpack_optimizer_state as unpack_optimizer_state,
)
from gpuflow.example_libraries.schedules import Schedule as Schedule
from gpuflow.example_libraries.schedules import constant as constant
from gpuflow.example_libraries.schedules import exponential_decay as exponential_decay
from gpuflow.example_libraries.schedules import inverse_time_decay as inverse_time_decay
from gpuflow.example_libraries.schedules import make_schedule as make_schedule
from gpuflow.example_libraries.schedules import piecewise_constant as piecewise_constant
from gpuflow.example_libraries.schedules import polynomial_decay as polynomial_decay

zip = safe_zip

Array = Any


def map(f: Callable[..., Any], *sequences: Any) -> list[Any]:
    """Apply ``f`` to the items of sequences of equal length."""
    return [f(*items) for items in safe_zip(*sequences)]


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
