"""NumPy under JAX's names: what models.py needs to run in float64, as reference and as rival.

Written out plainly and independent of every framework that it is compared with.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np

# --- functions of jax.nn and jax.lax -----------------------------------------------------------


def _log_softmax(x: Any, axis: int = -1) -> Any:
    shifted = x - np.max(x, axis=axis, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


def _softmax(x: Any, axis: int = -1) -> Any:
    powers = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return powers / np.sum(powers, axis=axis, keepdims=True)


def _logsumexp(x: Any, axis: int = -1) -> Any:
    top = np.max(x, axis=axis, keepdims=True)
    return np.squeeze(top, axis) + np.log(np.sum(np.exp(x - top), axis=axis))


def _gelu(x: Any) -> Any:
    """The approximation by tanh (Hendrycks and Gimpel 2016)."""
    return 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _convolution(x: Any, kernel: Any, strides: Any, padding: str) -> Any:
    """Batch, channels, height, width; odd kernels, stride 1 and as many outputs as inputs."""
    assert tuple(strides) == (1, 1) and padding == "SAME"
    high, wide = (size // 2 for size in kernel.shape[2:])
    padded = np.pad(x, ((0, 0), (0, 0), (high, high), (wide, wide)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape[2:], axis=(2, 3))
    return np.moveaxis(np.tensordot(windows, kernel, axes=((1, 4, 5), (1, 2, 3))), 3, 1)


def _max_of_windows(
    x: Any, start: float, function: Any, window: Any, strides: Any, padding: str
) -> Any:
    """Windows that tile the last two axes."""
    assert function is np.maximum and window == strides and padding == "VALID"
    rows, columns = window[2:]
    batch, channels, height, width = x.shape
    tiles = x.reshape(batch, channels, height // rows, rows, width // columns, columns)
    return np.maximum(start, tiles.max(axis=(3, 5)))


def _scan(step: Callable[..., Any], carry: Any, sequence: Any) -> tuple[Any, None]:
    """Without stacked results."""
    for x in sequence:
        carry, _ = step(carry, x)
    return carry, None


# --- trees -------------------------------------------------------------------------------------


def _tree_map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    if isinstance(tree, dict):
        return {k: _tree_map(function, tree[k], *(other[k] for other in rest)) for k in tree}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_tree_map(function, *parts) for parts in zip(tree, *rest, strict=True))
    return function(tree, *rest)


def tree_leaves(tree: Any) -> list[Any]:
    """The leaves in JAX's order: keys sorted."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in tree_leaves(tree[key])]
    if isinstance(tree, (list, tuple)):
        return [leaf for part in tree for leaf in tree_leaves(part)]
    return [tree]


# --- the library -------------------------------------------------------------------------------


def numpy_library() -> Any:
    """A namespace to pass as `jax`, with numpy itself as `jnp`; `jit` does nothing."""
    return types.SimpleNamespace(
        __name__="numpy",
        __version__=np.__version__,
        jit=lambda function, **_: function,
        nn=types.SimpleNamespace(
            relu=lambda x: np.maximum(x, 0),
            gelu=_gelu,
            sigmoid=_sigmoid,
            softmax=_softmax,
            log_softmax=_log_softmax,
            logsumexp=_logsumexp,
        ),
        lax=types.SimpleNamespace(
            max=np.maximum,
            conv_general_dilated=_convolution,
            reduce_window=_max_of_windows,
            scan=_scan,
        ),
        tree_util=types.SimpleNamespace(tree_map=_tree_map, tree_leaves=tree_leaves),
    )
