"""Training steps of bench_compiler.py: perceptron, transformer block, convolutional network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import models
import optimizers
from compiler_torch import torch_cnn, torch_mlp, torch_transformer
from models import device_tree
from optimizers import map_arrays, training_step
from reference import check_step
from workload import Workload


@dataclass(frozen=True)
class Model:
    """A training step: what it starts with, and what it computes.

    Attributes:
        loss: function (jax, jnp, params, *data).
        params, data: make NumPy arrays.
        adam: whether Adam updates the parameters; else gradient descent with momentum.
    """

    loss: Callable[..., Any]
    params: Callable[[], Any]
    data: Callable[[], tuple[Any, ...]]
    adam: bool = True

    @property
    def update(self) -> Callable[..., Any]:
        return optimizers.adam if self.adam else optimizers.sgd

    def state(self) -> Any:
        """The state before the first step."""
        make = optimizers.adam_state if self.adam else optimizers.sgd_state
        return make(self.params())

    def gradients(self, state: Any) -> Any:
        """The gradients of the first step, from the moments after it."""
        if self.adam:
            return map_arrays(lambda m: m / 0.1, state["m"])
        return state["momentum"]

    def jitted(self, jax: Any, jnp: Any) -> tuple[Any, Any, tuple[Any, ...]]:
        """The jitted step, which donates the state; the first state; and the data."""
        step = jax.jit(training_step(jax, jnp, self.loss, self.update), donate_argnums=(0,))
        data = tuple(jnp.asarray(value) for value in self.data())
        return step, device_tree(jax, jnp, self.state()), data

    def make(self, jax: Any, jnp: Any) -> Callable[[], Any]:
        """The step that carries its state from call to call."""
        step, state, data = self.jitted(jax, jnp)

        def call() -> Any:
            nonlocal state
            state, loss = step(state, *data)
            return state, loss

        return call

    def check(self, result: Any) -> None:
        """Compares the first step with NumPy in float64."""
        check_step(self.loss, self.update, self.state(), self.data(), self.gradients, result)


MLP = Model(models.mlp_loss, models.mlp_params, models.mlp_batch)
TRANSFORMER = Model(models.transformer_loss, models.transformer_params, models.transformer_batch)
CNN = Model(models.cnn_loss, models.cnn_params, models.cnn_batch, adam=False)


def _row(name: str, model: Model, torch: Callable[..., Any], target: float) -> Workload:
    makers = {"torch": partial(torch, model)}
    return Workload(name, model.make, {"jax": target}, ("jax", "torch"), makers, model.check)


ROWS = [
    _row("MLP 784-512-512-10 Adam step, batch 128, donated", MLP, torch_mlp, 0.9),
    _row("transformer block Adam step, d256 T128 B8, donated", TRANSFORMER, torch_transformer, 1.0),
    _row("CNN step, 28 x 28, batch 64, donated", CNN, torch_cnn, 0.6),
]
