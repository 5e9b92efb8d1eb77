"""Programs whose jaxprs are compared as text: JAX traced them for the stored data."""

from __future__ import annotations

from typing import Any

import numpy as np

X = np.ones((3, 4), np.float32)
V = np.ones((4,), np.float32)
I = np.arange(3, dtype=np.int32)  # noqa: E741


def programs(jnp: Any, nn: Any) -> dict[str, Any]:
    """By name, operands and a function written against a ``numpy`` and an ``nn`` module."""
    return {
        "add_arange": ([X], lambda x: x + jnp.arange(4, dtype=jnp.float32)),
        "matmul": ([X, V], lambda x, v: x @ v),
        "mean": ([X], lambda x: jnp.mean(x, axis=0)),
        "sum_keepdims": ([X], lambda x: jnp.sum(x, axis=1, keepdims=True)),
        "softmax": ([X], lambda x: nn.softmax(x)),
        "row": ([X], lambda x: x[1]),
        "slices": ([X], lambda x: x[1:, ::2]),
        "reversed": ([X], lambda x: x[::-1]),
        "new_axis": ([X], lambda x: x[None, ..., -1]),
        "true_divide": ([I], lambda x: x / 2),
        "power_2": ([X], lambda x: x**2),
        "power_minus_3": ([X], lambda x: x**-3),
        "power_half": ([X], lambda x: x**0.5),
        "abs_neg": ([X], lambda x: abs(x) + -x),
        "square_sqrt": ([X], lambda x: jnp.square(x) + jnp.sqrt(x)),
        "tensordot": ([X], lambda x: jnp.tensordot(x, x.T, 1)),
        "einsum": ([X], lambda x: jnp.einsum("ij,kj->ik", x, x)),
        "concatenate": ([X], lambda x: jnp.concatenate([x, x], 1)),
        "argmax": ([X], lambda x: jnp.argmax(x, 1)),
        "max": ([X], lambda x: jnp.max(x, 1)),
        "all": ([X], lambda x: jnp.all(x > 0)),
        "gelu": ([X], lambda x: nn.gelu(x)),
        "sigmoid": ([X], lambda x: nn.sigmoid(x)),
        "astype_add": ([X], lambda x: x.astype(int) + 1),
        "broadcast_to": ([X], lambda x: jnp.broadcast_to(x, (2, 3, 4))),
        "expand_dims": ([X], lambda x: jnp.expand_dims(x, 0)),
        "power_array": ([X, V], lambda x, y: jnp.power(x, y)),
        "count": ([X], lambda x: jnp.sum(x > 0)),
        "log_exp": ([X], lambda x: jnp.log1p(x) + jnp.expm1(x)),
    }
