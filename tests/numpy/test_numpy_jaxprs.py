"""Jaxprs of jnp functions as text, stored from JAX 0.10, line breaks included."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import nn

STORED = json.loads((Path(__file__).parents[1] / "data" / "jaxprs.json").read_text())
X = np.ones((3, 4), np.float32)
V = np.ones((4,), np.float32)
I = np.arange(3, dtype=np.int32)  # noqa: E741
PROGRAMS = {
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
_PAIR = r"\((\(.*?\)), (\(.*?\))\)"
_DIMENSIONS = re.compile(rf"dimension_numbers=\({_PAIR}, {_PAIR}\)")


def without_sharding(text):
    """JAX's text without what gpuflow's ops do not have: shardings and the result dtype of dots."""
    text = re.sub(r" (out_)?sharding=None", "", text)
    text = re.sub(r"\n *preferred_element_type=\w+", "", text)
    return re.sub(r"\[\n *(dimension_numbers=.*)\n *\] ", r"[\1] ", text)


def with_lists(text):
    """Our text with the lists in which JAX prints dimension numbers."""

    def lists(match):
        a, b, c, d = (f"[{part.strip('(,)')}]" for part in match.groups())
        return f"dimension_numbers=(({a}, {b}), ({c}, {d}))"

    return _DIMENSIONS.sub(lists, text)


@pytest.mark.parametrize("name", PROGRAMS)
def test_text(name):
    operands, function = PROGRAMS[name]
    got = str(gpuflow.make_jaxpr(function)(*operands))
    assert with_lists(got) == without_sharding(STORED[name])


def test_keepdims_and_means_use_no_reshape():
    """The compiler links axes through broadcast_in_dim and squeeze, not through reshape."""

    def function(x):
        centered = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
        return jnp.squeeze(centered[:, None], 1), nn.softmax(x, where=x > 0), jnp.stack([x, x])

    assert "reshape" not in str(gpuflow.make_jaxpr(function)(X))
