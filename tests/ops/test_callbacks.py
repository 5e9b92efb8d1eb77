"""debug_callback and device_put: calls in order, once each, under every transformation."""

import numpy as np
import pytest

import gpuflow as gf
from gpuflow.core.aval import aval_of
from gpuflow.core.effects import DEBUG, ORDERED_DEBUG
from gpuflow.core.lowering import HostCall
from gpuflow.core.staging import trace_closed
from gpuflow.ops.effects.callbacks import debug_callback, debug_callback_p
from gpuflow.ops.effects.device_put import device_put
from gpuflow.ops.elementwise.arithmetic import mul

X = np.arange(3, dtype=np.float32)


def watched(seen, ordered=False):
    """x * x, telling ``seen`` what x is."""

    def function(x):
        debug_callback(lambda value: seen.append(value.tolist()), x, ordered=ordered)
        return mul(x, x)

    return function


@pytest.mark.parametrize("ordered", [False, True])
def test_eager_calls_at_once(ordered):
    seen = []
    watched(seen, ordered)(X)
    assert seen == [X.tolist()]


def test_operands_are_read_only():
    def spoil(value):
        value[0] = 9

    with pytest.raises(ValueError, match="read-only"):
        debug_callback(spoil, X)
    assert X[0] == 0


def test_a_callback_may_keep_what_it_gets():
    """Memory of compiled programs is used again; a kept operand must not change with it."""
    kept = []
    step = gf.jit(lambda x: (debug_callback(kept.append, mul(x, x)), mul(x, 3.0))[1])
    for factor in (1, 2, 3):
        np.asarray(step(factor * X))
    assert [array.tolist() for array in kept] == [(f * f * X * X).tolist() for f in (1, 2, 3)]


def test_compiled_vmap_calls_in_order():
    seen = []
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.asarray(gf.jit(gf.vmap(watched(seen, ordered=True)))(x))
    assert seen == x.tolist()


def test_errors_of_the_callback_pass_through():
    def fail(value):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        debug_callback(fail, X)


def test_no_operands_and_many():
    seen = []
    debug_callback(lambda: seen.append("none"))
    debug_callback(lambda a, b: seen.append((a.item(), b.item())), 2, np.float32(0.5))
    assert seen == ["none", (2, 0.5)]


@pytest.mark.parametrize("axis", [0, 1])
def test_vmap_calls_once_for_each_element_in_order(axis):
    seen = []
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    out = gf.vmap(watched(seen), in_axes=axis)(x)
    rows = x if axis == 0 else x.T
    assert seen == rows.tolist()
    assert np.array_equal(np.asarray(out), rows * rows)


def test_vmap_repeats_unmapped_operands():
    seen = []

    def tell(x, y):
        debug_callback(lambda a, b: seen.append((a.item(), b.tolist())), x, y)
        return x

    gf.vmap(tell, in_axes=(0, None))(X, np.array([7, 8]))
    assert seen == [(0.0, [7, 8]), (1.0, [7, 8]), (2.0, [7, 8])]


def test_derivatives_call_once_and_ignore_it():
    seen = []
    _, tangent = gf.jvp(watched(seen), (X,), (np.ones_like(X),))
    assert seen == [X.tolist()] and np.array_equal(np.asarray(tangent), 2 * X)
    seen.clear()
    _, pullback = gf.vjp(watched(seen), X)
    assert seen == [X.tolist()]
    (pulled,) = pullback(np.ones_like(X))
    assert seen == [X.tolist()] and np.array_equal(np.asarray(pulled), 2 * X)


@pytest.mark.parametrize("ordered", [False, True])
def test_tracing_records_the_effect(ordered):
    seen = []
    closed = trace_closed(lambda x: [watched(seen, ordered)(x)], [aval_of(X)])
    effect = ORDERED_DEBUG if ordered else DEBUG
    assert seen == [] and closed.effects == {effect}
    assert closed.eqns[0].primitive is debug_callback_p and closed.eqns[0].outputs == ()
    closed(X)
    assert seen == [X.tolist()]
    assert isinstance(debug_callback_p.lower, HostCall)


def test_device_put_is_linear_and_returns_cotangents_to_the_source():
    closed = trace_closed(lambda x: [device_put(x, "there", "here")], [aval_of(X)])
    assert closed.eqns[0].params == {"device": "there", "source": "here"}
    _, pullback = gf.vjp(device_put, X)
    assert np.array_equal(np.asarray(pullback(X)[0]), X)
    assert np.array_equal(np.asarray(gf.vmap(device_put, in_axes=1, out_axes=1)(X[None])), X[None])
