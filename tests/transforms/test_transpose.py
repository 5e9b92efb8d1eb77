"""Transposition: <ct, A t> = <A^T ct, t>, symbolic zeros, and rules that are missing or wrong."""

import dataclasses

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.core.primitive import Derivatives, make_primitive, registry
from gpuflow.core.rules import UndefinedPrimal, Zero
from gpuflow.transforms.transpose import backward_pass

RANDOM = np.random.default_rng(0)
W = RANDOM.normal(size=(3, 4)).astype("f")

LINEAR = {
    "dot": (lambda x: jnp.dot(W, x), (4,)),
    "dot_left": (lambda x: jnp.dot(x, W), (2, 3)),
    "slice": (lambda x: x[1:4:2, ::2], (5, 4)),
    "reverse": (lambda x: x[::-1], (5,)),
    "reshape": (lambda x: x.reshape(2, -1).T, (4, 3)),
    "concatenate": (lambda x: jnp.concatenate([x, 2 * x[:1], x[1:]]), (3, 2)),
    "broadcast": (lambda x: jnp.broadcast_to(x, (4, 3, 2)) * 2, (3, 1)),
    "sum": (lambda x: jnp.sum(x, axis=0) - x[0], (3, 2)),
    "gather": (lambda x: x[jnp.asarray([2, 0, 2])], (3, 2)),
    "where": (lambda x: jnp.where(np.arange(3) > 0, x, 0.0), (3,)),
    "convert": (lambda x: x.astype("bfloat16").astype("float32") * 1, (3,)),
    "jit": (lambda x: gf.jit(lambda y: y * 3 + y[0])(x), (3,)),
    "vmap": (lambda x: gf.vmap(lambda row: jnp.dot(W, row))(x), (2, 4)),
    "unused": (lambda x: x[:1] * 0, (3,)),
}


@pytest.mark.parametrize("name", LINEAR)
def test_the_transpose_is_adjoint(name):
    f, shape = LINEAR[name]
    x, t = RANDOM.normal(size=(2, *shape)).astype("f")
    out, pushed = gf.jvp(f, (x,), (t,))
    ct = RANDOM.normal(size=out.shape).astype("f")
    (pulled,) = gf.vjp(f, x)[1](ct)
    assert pulled.shape == shape and pulled.dtype == np.float32
    # bf16 rounds each side to 8 bits.
    tolerance = 2e-2 if name == "convert" else 1e-4
    left, right = np.vdot(ct, pushed), np.vdot(pulled, t)
    np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance)


def test_backward_pass_of_unknowns_and_knowns():
    closed = gf.make_jaxpr(lambda x, y: (x * y, x * 3, y))(1.0, 2.0)
    unknown = UndefinedPrimal(closed.in_avals[0])
    one = np.float32(1)
    cts = backward_pass(closed.jaxpr, closed.consts, [unknown, 5.0], [one, one, one])
    assert float(cts[0]) == 8.0 and cts[1] is None
    zeros = [Zero(aval.tangent()) for aval in closed.out_avals]
    assert type(backward_pass(closed.jaxpr, (), [unknown, 5.0], zeros)[0]) is Zero


def test_reused_values_accumulate():
    def f(x):
        y = x * 2
        return y + y * y + jnp.sin(y)

    np.testing.assert_allclose(gf.grad(f)(0.3), 2 * (1 + 1.2 + np.cos(0.6)), rtol=1e-5)


def test_cotangents_have_the_shape_of_broadcast_operands():
    x, y = np.ones((3, 1), "f"), np.float32(2)
    gx, gy = gf.grad(lambda x, y: jnp.sum(x * jnp.ones((3, 4)) * y), argnums=(0, 1))(x, y)
    assert gx.shape == (3, 1) and gy.shape == ()
    np.testing.assert_array_equal(gx, np.full((3, 1), 8))
    assert gy.item() == 12.0


def test_integer_outputs_have_no_cotangent():
    def f(x):
        return jnp.sum(x * jnp.argmax(x)) + jnp.sum(x > 0) * x[0]

    np.testing.assert_array_equal(gf.grad(f)(jnp.asarray([1.0, 3.0])), [3, 1])


def test_missing_rules_are_named_with_their_line():
    linear = make_primitive(
        "odd",
        shape=lambda x: x,
        impl=lambda xp, x: x,
        jvp=lambda primals, tangents: (linear.bind(primals[0]), linear.bind(tangents[0])),
    )
    with pytest.raises(NotImplementedError, match=r"\[odd\] reverse-mode.*used at .*Fix:"):
        gf.grad(lambda x: linear.bind(x))(jnp.ones(()))
    plain = dataclasses.replace(linear, derivatives=Derivatives())
    with pytest.raises(NotImplementedError, match=r"\[odd\] differentiation needs a rule.*Fix:"):
        gf.jvp(plain.bind, (1.0,), (1.0,))
    with pytest.raises(NotImplementedError, match=r"\[odd\] vmap needs a batching rule.*Fix:"):
        gf.vmap(plain.bind)(jnp.ones(2))


def test_wrong_rules_are_caught():
    wrong = dataclasses.replace(
        registry()["neg"],
        name="wrong",
        derivatives=Derivatives(
            jvp=lambda primals, tangents: (wrong.bind(primals[0]), wrong.bind(tangents[0])),
            transpose=lambda ct, x: [lax.broadcast_in_dim(ct, (2,), ())],
        ),
    )
    with pytest.raises(TypeError, match=r"\[wrong\] a cotangent must match.*f32\[\]; got f32\[2\]"):
        gf.grad(wrong.bind)(jnp.ones(()))
