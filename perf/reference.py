"""Checks of results against NumPy in float64; a wrong result raises ValueError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy_library import numpy_library, tree_leaves
from optimizers import map_arrays

# A step of central differences in float64: truncation leaves some 1e-10, rounding 1e-11.
DIFFERENCE = 1e-5


def as_array(value: Any) -> np.ndarray:
    """A framework's array as NumPy's."""
    return np.asarray(value.detach() if hasattr(value, "detach") else value)


def double(values: Any) -> Any:
    """A tree with its floating point arrays in float64."""

    def convert(value: Any) -> np.ndarray:
        array = as_array(value)
        return array.astype(np.float64) if array.dtype.kind == "f" else array

    return map_arrays(convert, values)


def check_close(what: str, got: Any, wanted: Any, relative: float, absolute: float = 0.0) -> None:
    """Compares arrays.

    Raises:
        ValueError: shapes differ, or an element is further off than `absolute + relative * size`.
    """
    got, wanted = as_array(got).astype(np.float64), np.asarray(wanted, np.float64)
    if got.shape != wanted.shape:
        raise ValueError(f"wrong {what}: shape {got.shape} instead of {wanted.shape}")
    error = np.abs(got - wanted)
    excess = error - (absolute + relative * np.abs(wanted))
    # Written so that nan counts as wrong.
    if not np.all(excess <= 0):
        k = int(np.argmax(np.where(np.isnan(excess), np.inf, excess)))
        raise ValueError(f"wrong {what}: {got.flat[k]:.8g} instead of {wanted.flat[k]:.8g}")


def check_step(
    loss: Callable[..., Any],
    update: Callable[..., Any],
    state: Any,
    data: Any,
    gradients_of: Callable[[Any], Any],
    result: Any,
) -> None:
    """Checks a training step: its loss, its gradients and its update.

    Gradients are compared with central differences of the loss, for each parameter in the
    direction of the gradient and in a random one; the update is repeated with these gradients.

    Args:
        loss: function (jax, jnp, params, *data).
        update: function (jax, jnp, state, grads).
        state: what the step began with, NumPy arrays.
        data: its other arguments.
        gradients_of: the gradients, from the new state.
        result: (new state, loss); the state is None where the framework does not show it.

    Raises:
        ValueError: something is wrong.
    """
    library = numpy_library()
    state, data = double(state), [double(value) for value in data]
    new_state, value = result

    def loss_of(params: Any) -> float:
        return float(loss(library, np, params, *data))

    check_close("loss", value, loss_of(state["params"]), 1e-5)
    if new_state is None:
        return
    new_state = double(new_state)
    gradients = gradients_of(new_state)
    check_gradients(loss_of, state["params"], gradients)
    wanted = update(library, np, state, gradients)
    pairs = zip(tree_leaves(new_state), tree_leaves(wanted), strict=True)
    for got, want in pairs:
        # An Adam update is at most the learning rate, 1e-3, per element.
        check_close("update", got, want, 1e-5, 1e-6)


def check_gradients(loss_of: Callable[[Any], float], params: Any, gradients: Any) -> None:
    """Compares gradients with central differences of the loss.

    Raises:
        ValueError: a derivative is off by more than float32 explains.
    """
    generator = np.random.default_rng(0)
    leaves, slopes = tree_leaves(params), tree_leaves(gradients)
    for leaf, slope in zip(leaves, slopes, strict=True):
        norm = float(np.linalg.norm(slope))
        if norm == 0.0:
            raise ValueError("wrong gradient: all zeros")
        random = generator.standard_normal(leaf.shape)
        typical = norm / slope.size**0.5
        for direction, scale in ((slope, norm), (random, typical)):
            direction = direction / np.linalg.norm(direction)
            before = leaf.copy()
            leaf += DIFFERENCE * direction
            above = loss_of(params)
            leaf[...] = before - DIFFERENCE * direction
            below = loss_of(params)
            leaf[...] = before
            wanted = (above - below) / (2 * DIFFERENCE)
            got = float(np.sum(slope * direction))
            if not abs(got - wanted) <= 2e-3 * scale + 1e-8:
                raise ValueError(f"wrong gradient {leaf.shape}: {got:.6g} instead of {wanted:.6g}")
