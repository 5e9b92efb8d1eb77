"""Jaxprs: printed text, source lines, evaluation, and a checker that rejects broken programs."""

import re

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.util import short_path
from gpuflow.core.aval import ShapedArray
from gpuflow.core.effects import DEBUG
from gpuflow.core.jaxpr import (
    ClosedJaxpr,
    DropVar,
    Eqn,
    Jaxpr,
    JaxprTypeError,
    Literal,
    Var,
    all_eqns,
    check_jaxpr,
    evaluate,
    format_jaxpr,
)
from gpuflow.core.primitive import registry
from gpuflow.ops.effects.callbacks import debug_callback

F32 = ShapedArray((), np.float32)
VECTOR = ShapedArray((3,), np.float32)
SIN, MUL = registry()["sin"], registry()["mul"]

# Text printed by JAX 0.10.2 for the same functions.
PRINTED = [
    (jnp.sin, (np.ones(3, "f"),), "{ lambda ; a:f32[3]. let b:f32[3] = sin a in (b,) }"),
    (lambda x: (jnp.sin(x), x)[1], (1.0,), "{ lambda ; a:f32[]. let _:f32[] = sin a in (a,) }"),
    (lambda: (), (), "{ lambda ; . let  in () }"),
    (lambda x: 2.0, (1.0,), "{ lambda ; a:f32[]. let  in (2.0:f32[],) }"),
    (
        lambda x: (x.T, x, 3.0),
        (np.ones((3, 4), "f"),),
        "{ lambda ; a:f32[3,4]. let\n"
        "    b:f32[4,3] = transpose[permutation=(1, 0)] a\n"
        "  in (b, a, 3.0:f32[]) }",
    ),
    (
        lambda x: x.astype("int32"),
        (1.0,),
        "{ lambda ; a:f32[]. let\n"
        "    b:i32[] = convert_element_type[new_dtype=int32 weak_type=False] a\n"
        "  in (b,) }",
    ),
]


@pytest.mark.parametrize(("function", "args", "text"), PRINTED)
def test_printed_as_jax_prints(function, args, text):
    assert str(gf.make_jaxpr(function)(*args)) == text


def test_closed_over_arrays_are_constvars():
    c = jnp.ones(3)
    jaxpr = gf.make_jaxpr(lambda x: x + c)(np.ones(3, "f"))
    assert str(jaxpr).startswith("{ lambda a:f32[3]; b:f32[3]. let")
    assert jaxpr.consts == (c,)


def test_nested_jaxprs_are_indented():
    text = str(gf.make_jaxpr(lambda x: gf.jit(lambda y: jnp.sin(y) * 2)(x))(1.0))
    assert "= jit[" in text and "name=<lambda>" in text
    assert re.search(r"jaxpr=\{ lambda ; \w:f32\[\]\. let", text)


def test_names_go_on_after_z():
    def chain(x):
        for _ in range(30):
            x = jnp.sin(x)
        return x

    text = str(gf.make_jaxpr(chain)(1.0))
    assert "ba:f32[] = sin z" in text


def test_source_lines_point_into_user_code():
    jaxpr = gf.make_jaxpr(lambda x: jnp.cos(x) + 1)(1.0)
    assert {eqn.source.file for eqn in jaxpr.eqns} == {__file__}
    line = test_source_lines_point_into_user_code.__code__.co_firstlineno + 1
    assert {eqn.source.line for eqn in jaxpr.eqns} == {line}
    assert f"# {short_path(__file__)}:{line}" in format_jaxpr(jaxpr.jaxpr, source_info=True)


def test_evaluate_is_the_program():
    def program(x, y):
        return gf.jit(lambda a: jnp.tanh(a) * y)(x) + 1, x, 2.0

    x, y = jnp.asarray(0.3), jnp.asarray([1.0, 2.0])
    closed = gf.make_jaxpr(program)(x, y)
    for made, want in zip(closed(x, y), program(x, y), strict=True):
        np.testing.assert_allclose(made, want, rtol=1e-6)
    with pytest.raises(ValueError):
        evaluate(closed.jaxpr, closed.consts, [x])


def test_weak_literals_stay_weak():
    closed = gf.make_jaxpr(lambda x: x * 2.0)(1.0)
    assert closed(1.0)[0].weak_type
    assert closed(3.0)[0].item() == 6.0


def test_memo_makes_once_and_replace_forgets():
    jaxpr = gf.make_jaxpr(jnp.sin)(1.0).jaxpr
    values = [jaxpr.memo("key", lambda: object()) for _ in range(2)]
    assert values[0] is values[1]
    assert jaxpr.replace(argument_names=()).memo("key", lambda: 5) == 5


def test_all_eqns_sees_nested_ones():
    jaxpr = gf.make_jaxpr(lambda x: gf.jit(gf.jit(jnp.sin))(x))(1.0)
    assert [eqn.primitive.name for eqn in all_eqns(jaxpr.jaxpr)][-1] == "sin"


# --- the checker ---------------------------------------------------------------------------


def _jaxpr(eqns, outvars, invars=(), constvars=(), effects=frozenset()):
    return Jaxpr(tuple(constvars), tuple(invars), tuple(outvars), tuple(eqns), effects)


def _broken_undefined():
    x = Var(F32)
    return _jaxpr([], [x])


def _broken_order():
    x, y, z = Var(F32), Var(F32), Var(F32)
    return _jaxpr([Eqn(SIN, (y,), (z,), {}), Eqn(SIN, (x,), (y,), {})], [z], [x])


def _broken_twice():
    x, y = Var(F32), Var(F32)
    return _jaxpr([Eqn(SIN, (x,), (y,), {}), Eqn(SIN, (x,), (y,), {})], [y], [x])


def _broken_input_twice():
    x = Var(F32)
    return _jaxpr([], [x], [x, x])


def _broken_const_twice():
    x = Var(F32)
    return _jaxpr([], [x], [x], [x])


def _broken_shape():
    x, y = Var(F32), Var(VECTOR)
    return _jaxpr([Eqn(SIN, (x,), (y,), {})], [y], [x])


def _broken_dtype():
    x, y = Var(F32), Var(ShapedArray((), np.int32))
    return _jaxpr([Eqn(SIN, (x,), (y,), {})], [y], [x])


def _broken_count():
    x, y = Var(F32), Var(F32)
    return _jaxpr([Eqn(SIN, (x,), (y, Var(F32)), {})], [y], [x])


def _broken_operands():
    x, n, y = Var(F32), Var(ShapedArray((), np.int32)), Var(F32)
    return _jaxpr([Eqn(MUL, (x, n), (y,), {})], [y], [x, n])


def _broken_literal_shape():
    y = Var(VECTOR)
    return _jaxpr([Eqn(SIN, (Literal(np.float32(1), VECTOR),), (y,), {})], [y])


def _broken_literal_dtype():
    y = Var(F32)
    return _jaxpr([Eqn(SIN, (Literal(np.int32(1), F32),), (y,), {})], [y])


def _broken_effects():
    closed = gf.make_jaxpr(lambda x: debug_callback(print, x))(1.0)
    assert closed.effects == {DEBUG}
    return closed.jaxpr.replace(effects=frozenset())


def _broken_inside():
    x = Var(F32)
    inner = gf.make_jaxpr(gf.jit(lambda x: x * 2))(1.0).eqns[0]
    params = {**inner.params, "jaxpr": ClosedJaxpr(_broken_order())}
    y = Var(F32)
    return _jaxpr([inner.replace(inputs=(x,), outputs=(y,), params=params)], [y], [x])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_broken_undefined, r"\[outputs\] a variable must be defined before use"),
        (_broken_order, r"\[sin\] a variable must be defined before use"),
        (_broken_twice, r"\[jaxpr\] a variable must be defined once"),
        (_broken_input_twice, r"\[jaxpr\] a variable must be defined once"),
        (_broken_const_twice, r"\[jaxpr\] a variable must be defined once"),
        (_broken_shape, r"\[sin\] output avals must match the shape rule.*f32\[\].*f32\[3\]"),
        (_broken_dtype, r"\[sin\] output avals must match the shape rule.*i32\[\]"),
        (_broken_count, r"\[sin\] output avals must match the shape rule"),
        (_broken_operands, r"\[mul\] operands must pass the shape rule.*i32\[\]"),
        (_broken_literal_shape, r"\[sin\] a literal must fit its aval"),
        (_broken_literal_dtype, r"\[sin\] a literal must fit its aval"),
        (_broken_effects, r"\[debug_callback\] effects of an equation must be effects of its"),
        (_broken_inside, r"\[sin\] a variable must be defined before use"),
    ],
)
def test_checker_rejects(make, message):
    with pytest.raises(JaxprTypeError, match=message):
        check_jaxpr(make())


def test_checker_accepts_what_transformations_make():
    def f(x, w):
        return jnp.sum(jnp.tanh(jnp.dot(x, w)) ** 2)

    x, w = np.ones((2, 3), "f"), np.ones((3, 4), "f")
    for function in (f, gf.grad(f, 1), gf.vmap(f, (0, None)), gf.hessian(f), gf.jit(gf.grad(f))):
        check_jaxpr(gf.make_jaxpr(function)(x, w).jaxpr)


def test_unread_outputs_are_dropped():
    jaxpr = gf.make_jaxpr(lambda x: (jnp.sin(x), x)[1])(1.0)
    assert type(jaxpr.eqns[0].outputs[0]) is DropVar
    assert len(jaxpr.eqns) == 1


def test_reduce_sum_prints_its_axes():
    text = str(gf.make_jaxpr(lambda x: lax.reduce_sum(x, (0,)))(np.ones((2, 3), "f")))
    assert "reduce_sum[axes=(0,)" in text
