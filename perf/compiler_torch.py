"""The training steps of bench_compiler.py in PyTorch, with the parameters of models.py.

They return (None, loss): only the loss is checked, as PyTorch keeps its state to itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from models import EPSILON
from numpy_library import tree_leaves
from optimizers import LEARNING_RATE, map_arrays


def torch_mlp(model: Any, torch: Any, _: Any) -> Callable[[], Any]:
    functional = torch.nn.functional

    def loss(params: Any, images: Any, labels: Any) -> Any:
        hidden = images
        for layer in params[:-1]:
            hidden = functional.relu(torch.addmm(layer["b"], hidden, layer["w"]))
        scores = torch.addmm(params[-1]["b"], hidden, params[-1]["w"])
        return functional.cross_entropy(scores, labels)

    return _step(model, torch, loss)


def torch_transformer(model: Any, torch: Any, _: Any) -> Callable[[], Any]:
    functional = torch.nn.functional

    def attention(params: Any, x: Any, heads: int) -> Any:
        batch, length, width = x.shape

        def split(name: str) -> Any:
            return (x @ params[name]).view(batch, length, heads, width // heads).transpose(1, 2)

        mixed = functional.scaled_dot_product_attention(
            split("query"), split("key"), split("value"), is_causal=True
        )
        return mixed.transpose(1, 2).reshape(batch, length, width) @ params["output"]

    def loss(params: Any, x: Any, targets: Any) -> Any:
        size = (x.shape[-1],)
        scale, offset = params["scale1"], params["offset1"]
        normed = functional.layer_norm(x, size, scale, offset, EPSILON)
        x = x + attention(params, normed, heads=4)
        scale, offset = params["scale2"], params["offset2"]
        normed = functional.layer_norm(x, size, scale, offset, EPSILON)
        inner = normed @ params["up"] + params["up_bias"]
        inner = functional.gelu(inner, approximate="tanh")
        return functional.mse_loss(x + inner @ params["down"] + params["down_bias"], targets)

    return _step(model, torch, loss)


def torch_cnn(model: Any, torch: Any, _: Any) -> Callable[[], Any]:
    functional = torch.nn.functional

    def loss(params: Any, x: Any, labels: Any) -> Any:
        for block in params["blocks"]:
            x = functional.conv2d(x, block["kernel"], padding=1)
            scale, offset = block["scale"], block["offset"]
            x = functional.batch_norm(x, None, None, scale, offset, training=True, eps=EPSILON)
            x = functional.max_pool2d(functional.relu(x), 2)
        scores = x.flatten(1) @ params["w"] + params["b"]
        return functional.cross_entropy(scores, labels.long())

    return _step(model, torch, loss)


def _step(model: Any, torch: Any, loss_of: Callable[..., Any]) -> Callable[[], Any]:
    """Forward, backward and update; Adam in its fused form, the fastest that PyTorch has."""
    params = map_arrays(lambda x: torch.from_numpy(x).requires_grad_(), model.params())
    data = [torch.from_numpy(value) for value in model.data()]
    leaves = tree_leaves(params)
    if model.adam:
        optimizer = torch.optim.Adam(leaves, lr=LEARNING_RATE, fused=True)
    else:
        optimizer = torch.optim.SGD(leaves, lr=LEARNING_RATE, momentum=0.9, fused=True)

    def call() -> Any:
        optimizer.zero_grad()
        loss = loss_of(params, *data)
        loss.backward()
        optimizer.step()
        return None, loss.detach()

    return call
