"""Functions that write into what they are given (``x += 1``) never reach the caller's arrays.

Eagerly, with ``disable_jit`` and under ``jit``, whatever holds the function; callbacks and
donation too. All inputs are given writable, and read-only.
"""

from __future__ import annotations

import numpy as np
import pytest
from together import together

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import lax


def _bump(x):
    x += 1
    return x


def _bump_item(x):
    """Write into one element where that is possible."""
    try:
        x[0] = 7.0
    except TypeError:
        x = x.at[0].set(7.0)
    return x


def _callback(x):
    shape = gpuflow.ShapeDtypeStruct(x.shape, x.dtype)
    return gpuflow.pure_callback(lambda v: _bump(np.asarray(v).copy()), shape, x)


CASES = {
    "while_loop": lambda f, x: lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, f(c[1])), (0, x)
    ),
    "while_loop of one": lambda f, x: lax.while_loop(lambda c: c[0] < 1, lambda c: f(c), x),
    "fori_loop": lambda f, x: lax.fori_loop(0, 3, lambda k, c: f(c), x),
    "fori_loop, traced": lambda f, x: lax.fori_loop(0, jnp.asarray(3), lambda k, c: f(c), x),
    "scan": lambda f, x: lax.scan(lambda c, v: (f(c), f(v[None])), x, x),
    "map": lambda f, x: lax.map(lambda v: f(v[None]), x),
    "cond": lambda f, x: lax.cond(True, f, lambda v: v, x),
    "switch": lambda f, x: lax.switch(1, [lambda v: v, f], x),
    "switch of one": lambda f, x: lax.switch(0, [f], x),
    "checkpoint": lambda f, x: gpuflow.checkpoint(f)(x),
    "jit": lambda f, x: gpuflow.jit(f)(x),
    "jit, keyword": lambda f, x: gpuflow.jit(lambda *, v: f(v))(v=x),
    "jit, donated": lambda f, x: gpuflow.jit(f, donate_argnums=0)(x),
    "vmap": lambda f, x: gpuflow.vmap(lambda v: f(v[None]))(x),
    "grad": lambda f, x: gpuflow.grad(lambda v: jnp.sum(f(v)))(x),
    "jvp": lambda f, x: gpuflow.jvp(f, (x,), (x,)),
    "custom_jvp": lambda f, x: _with_jvp(f)(x),
    "custom_vjp": lambda f, x: _with_vjp(f)(x),
    "associative_scan": lambda f, x: lax.associative_scan(lambda a, b: f(a * 1) + b, x),
    "pure_callback": lambda f, x: _callback(x),
}


def _with_jvp(f):
    function = gpuflow.custom_jvp(f)
    function.defjvps(lambda t, out, x: t)
    return function


def _with_vjp(f):
    function = gpuflow.custom_vjp(f)
    function.defvjp(lambda x: (f(x), None), lambda _, ct: (ct,))
    return function


@together(size=20)
@pytest.mark.parametrize("disabled", [False, True], ids=["enabled", "disable_jit"])
@pytest.mark.parametrize("write", [_bump, _bump_item])
@pytest.mark.parametrize("name", CASES)
def test_caller_sees_no_writes(name, write, disabled):
    argument = np.arange(1.0, 4.0, dtype=np.float32)
    before = argument.copy()
    with gpuflow.disable_jit(disabled):
        first = CASES[name](write, argument)
        assert np.array_equal(argument, before)
        argument.flags.writeable = False
        second = CASES[name](write, argument)
    for one, other in zip(gpuflow.tree.leaves(first), gpuflow.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize("jitted", [False, True])
def test_callbacks_cannot_write_into_arrays(jitted):
    """What a callback is given is not the memory of the array."""
    x = jnp.arange(3.0)

    def write(v):
        host = np.asarray(v)
        if host.flags.writeable:
            host += 1
        return host

    def call(v):
        return gpuflow.pure_callback(write, gpuflow.ShapeDtypeStruct((3,), np.float32), v)

    (gpuflow.jit(call) if jitted else call)(x)
    assert np.array_equal(np.asarray(x), [0, 1, 2])


def test_results_do_not_share_the_callers_memory():
    source = np.arange(3.0, dtype=np.float32)
    arrays = [
        jnp.asarray(source),
        jnp.array(source),
        gpuflow.device_put(source),
        jnp.ravel(source),
        lax.reshape(source, (3,)),
        gpuflow.jit(lambda x: x)(source),
        lax.optimization_barrier(source),
    ]
    source[:] = 9
    for array in arrays:
        assert np.array_equal(np.asarray(array), [0, 1, 2])
