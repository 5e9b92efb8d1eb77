"""Staging: recorded equations, constants, literals, argument names and leaks."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import Literal
from gpuflow.core.staging import hoist_consts, trace_closed, trace_to_jaxpr
from gpuflow.core.trace import eval_trace, thread_state
from gpuflow.errors import TracerBoolConversionError, UnexpectedTracerError

F32 = ShapedArray((), np.float32)


def test_every_bind_is_recorded_constants_included():
    jaxpr, consts = trace_to_jaxpr(lambda x: [jnp.sin(jnp.ones(2)) + x], [F32])
    assert [eqn.primitive.name for eqn in jaxpr.eqns][-1] == "add"
    assert "sin" in [eqn.primitive.name for eqn in jaxpr.eqns]
    assert consts == []


def test_one_closed_over_array_is_one_constvar():
    c = np.ones(2, "f")
    jaxpr, consts = trace_to_jaxpr(lambda x: [x + c, x * c], [ShapedArray((2,), np.float32)])
    assert len(jaxpr.constvars) == 1 and consts[0] is c


@pytest.mark.parametrize("value", [2, 2.0, True, np.float32(2), np.int64(2), np.float64(2), 2j])
def test_scalars_are_literals_of_their_aval(value):
    jaxpr, consts = trace_to_jaxpr(lambda: [value], [])
    literal = jaxpr.outvars[0]
    assert type(literal) is Literal and not consts
    assert literal.aval is aval_of(value)
    assert literal.value.dtype == literal.aval.dtype and literal.value == value


def test_python_ints_must_fit():
    with pytest.raises(OverflowError, match="Python ints must fit int32; got 1099511627776"):
        gf.jit(lambda: 2**40)()
    with gf.enable_x64():
        assert gf.jit(lambda: 2**40)().item() == 2**40


def test_tracers_of_outer_traces_are_constants():
    seen = []

    def outer(x):
        jaxpr, consts = trace_to_jaxpr(lambda y: [x * y], [F32])
        seen.append((len(jaxpr.constvars), consts[0] is x))
        return x

    gf.make_jaxpr(outer)(1.0)
    assert seen == [(1, True)]


def test_hoist_consts_makes_them_inputs():
    jaxpr, _ = trace_to_jaxpr(lambda x: [x + np.ones(2, "f")], [F32])
    hoisted = hoist_consts(jaxpr)
    assert len(hoisted.invars) == 2 and not hoisted.constvars
    assert len(hoisted.argument_names) == 2


def test_the_trace_is_restored_after_an_error():
    with pytest.raises(ZeroDivisionError):
        trace_closed(lambda x: [1 / 0], [F32])
    assert thread_state.trace is eval_trace
    np.testing.assert_allclose(jnp.sin(0.5), np.sin(0.5), rtol=1e-6)


def test_a_tracer_is_finished_after_an_error():
    kept = []

    def fails(x):
        kept.append(x)
        raise KeyError("a user's error")

    with pytest.raises(KeyError):
        gf.jit(fails)(1.0)
    with pytest.raises(UnexpectedTracerError, match="the argument x of fails"):
        kept[0] + 1


def test_conditions_name_all_arguments_behind_them():
    def f(unused, params, x):
        if (params["w"] * x).sum() > 0:
            return x
        return -x

    with pytest.raises(TracerBoolConversionError) as caught:
        gf.jit(f)(1.0, {"w": jnp.ones(2)}, 2.0)
    text = str(caught.value)
    line = f.__code__.co_firstlineno + 1
    assert "from the arguments params['w'], x of f" in text and "unused" not in text
    assert f"{__file__}:{line}" in text


def test_make_jaxpr_static_and_shapes():
    jaxpr, structs = gf.make_jaxpr(
        lambda n, x: {"y": jnp.broadcast_to(x, (n, 2)), "n": 3}, static_argnums=0, return_shape=True
    )(4, np.ones(2, "f"))
    assert len(jaxpr.jaxpr.invars) == 1
    assert structs["y"] == gf.ShapeDtypeStruct((4, 2), "float32")
    assert structs["n"].weak_type and structs["n"].dtype == np.int32
    by_negative = gf.make_jaxpr(lambda x, n: x * n, static_argnums=-1)(1.0, 3)
    assert len(by_negative.jaxpr.invars) == 1


def test_eval_shape_computes_nothing():
    big = gf.ShapeDtypeStruct((1 << 20, 1 << 20), np.float32)
    out = gf.eval_shape(lambda a, b: {"c": jnp.dot(a, b)}, big, b=big)
    assert out == {"c": gf.ShapeDtypeStruct((1 << 20, 1 << 20), np.float32)}
