"""Shape rules compare the programs that an equation holds with its operands, and with each other.

Tracing cannot make such equations; a file can. A branch with another number of inputs ended the
process.
"""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.core.aval import ShapedArray
from gpuflow.core.primitive import registry

X = jnp.ones(3)
F, INDEX = ShapedArray((3,), np.float32), ShapedArray((), np.int32)


def program(function, *args):
    return gf.make_jaxpr(function)(*args)


def rule(name, *avals, **params):
    return registry()[name].shape(*avals, **params)


def test_cond():
    one, two = program(jnp.sin, X), program(lambda x, y: x, X, X)
    other = program(lambda x: x.astype(int), X)
    assert rule("cond", INDEX, F, branches=(one, one)) == [F]
    with pytest.raises(TypeError, match=r"\[cond\] inputs of branches must match .*Fix: the rule"):
        rule("cond", INDEX, F, branches=(one, two))
    with pytest.raises(TypeError, match=r"\[cond\] results of branches must match"):
        rule("cond", INDEX, F, branches=(one, other))


def test_while_loop():
    condition, body = program(lambda x: x.sum() > 0, X), program(lambda x: x - 1, X)

    def check(condition, body):
        return rule(
            "while", F, condition=condition, body=body, num_condition_consts=0, num_body_consts=0
        )

    assert check(condition, body) == [F]
    with pytest.raises(TypeError, match=r"\[while_loop\] carries must match"):
        check(condition, program(lambda x: (x, x), X))
    with pytest.raises(TypeError, match=r"\[while_loop\] inputs must match"):
        check(program(lambda x, y: x.sum() > 0, X, X), body)
    with pytest.raises(TypeError, match=r"\[while_loop\] results of the condition must match"):
        check(program(lambda x: x.sum(), X), body)


def test_scan():
    (eqn,) = program(lambda x: lax.scan(lambda c, a: (c + a, c * 2), x, jnp.ones((2, 3))), X).eqns[
        -1:
    ]
    assert rule("scan", *[v.aval for v in eqn.inputs], **eqn.params)[0] == F
    held = program(lambda c, a: (c[:2], c), X, X)
    with pytest.raises(TypeError, match=r"\[scan\] carries must match .*; got f32\[2\]"):
        rule("scan", *[v.aval for v in eqn.inputs], **{**eqn.params, "jaxpr": held})


def test_linear_solve_and_call():
    def solve(b):
        return lax.custom_linear_solve(lambda x: 2 * x, b, lambda _, b: b / 2, symmetric=True)

    (eqn,) = [e for e in program(solve, X).eqns if e.primitive.name == "custom_linear_solve"]
    assert rule("custom_linear_solve", F, **eqn.params) == [F]
    for avals in ((), (INDEX,), (F, F)):
        with pytest.raises(TypeError, match=r"\[custom_linear_solve\] operands must match"):
            rule("custom_linear_solve", *avals, **eqn.params)

    def call(x):
        return gf.custom_derivatives.linear_call(lambda r, x: x * 2, lambda r, ct: ct * 2, (), x)

    (eqn,) = [e for e in program(call, X).eqns if e.primitive.name == "linear_call"]
    assert rule("linear_call", F, **eqn.params) == [F]
    for avals in ((), (INDEX,), (F, F)):
        with pytest.raises(TypeError, match=r"\[linear_call\] operands must match"):
            rule("linear_call", *avals, **eqn.params)


@pytest.mark.parametrize(("name", "arity"), [("sin", 1), ("sign", 1), ("add", 2), ("nextafter", 2)])
def test_elementwise_ops_have_a_number_of_operands(name, arity):
    assert rule(name, *[F] * arity) == F
    for count in {0, 1, 2, 3} - {arity}:
        with pytest.raises(TypeError, match=rf"\[{name}\] operands must be {arity}; got {count}\."):
            rule(name, *[F] * count)
