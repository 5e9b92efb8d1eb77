"""Jaxprs of jnp functions as text, stored from JAX 0.10, line breaks included."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from jaxpr_programs import X, programs

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import nn
from gpuflow.compiler.passes.program import inline

STORED = json.loads((Path(__file__).parents[1] / "data" / "jaxprs.json").read_text())
PROGRAMS = programs(jnp, nn)
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
    jaxpr = gpuflow.make_jaxpr(function)(*operands)
    if any("call_jaxpr" in eqn.params for eqn in jaxpr.eqns):
        # Activations with a derivative of their own are calls of what JAX writes out.
        jaxpr = jaxpr.replace(jaxpr=inline(jaxpr.jaxpr))
    got = str(jaxpr)
    assert with_lists(got) == without_sharding(STORED[name])


def test_keepdims_and_means_use_no_reshape():
    """The compiler links axes through broadcast_in_dim and squeeze, not through reshape."""

    def function(x):
        centered = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
        return jnp.squeeze(centered[:, None], 1), nn.softmax(x, where=x > 0), jnp.stack([x, x])

    assert "reshape" not in str(gpuflow.make_jaxpr(function)(X))
