"""The third retrace of a jitted function warns once, and says what changed."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp


def warnings_of(function, calls):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for args, kwargs in calls:
            function(*args, **kwargs)
    return [str(w.message) for w in seen if "retrace" in str(w.message)], seen


def calls_of(*values):
    return [((value,), {}) for value in values]


DTYPES = ("float32", "int32", "int8", "uint8", "float16", "bool")


def test_the_argument_that_changed_is_named_once():
    @gf.jit
    def scaled(params, x):
        return params["w"] * x

    calls = [(({"w": jnp.ones(3, dtype)}, 2.0), {}) for dtype in DTYPES]
    (text,), seen = warnings_of(scaled, calls)
    assert text.startswith("[jit] scaled should be traced for few kinds of arguments; got the ")
    assert "argument params['w'] is u8[3] and was i8[3]" in text
    (warning,) = seen
    assert warning.filename == __file__ and warning.category is UserWarning


def test_two_retraces_are_silent():
    function = gf.jit(lambda x: x + x)
    values = [jnp.ones(3, dtype) for dtype in DTYPES[:3]]
    assert not warnings_of(function, calls_of(*values, *values))[0]


def test_sizes_do_not_count():
    function = gf.jit(lambda x: x + 1)
    assert not warnings_of(function, calls_of(*[jnp.ones((k, 3)) for k in range(12)]))[0]
    # Ranks do.
    assert len(warnings_of(function, calls_of(*[jnp.ones((1,) * k) for k in range(5)]))[0]) == 1


def test_static_arguments():
    # Each a function of its own: jits of one function share their traces.
    for options in ({"static_argnums": 1}, {"static_argnames": "n"}):
        function = gf.jit(lambda x, n: x**n, **options)
        (text,), _ = warnings_of(function, [((2.0, k), {}) for k in range(9)])
        assert "static argument n is 3 and was 2." in text
    named = gf.jit(lambda x, n, *, m=0: x**n + m, static_argnames=("n", "m"))
    (text,), _ = warnings_of(named, [((2.0, 2), {"m": k}) for k in range(9)])
    assert "static argument m is 3 and was 2." in text


def test_trees_numbers_and_kinds_of_containers():
    function = gf.jit(lambda x: x)
    (text,), _ = warnings_of(function, calls_of([1.0], (1.0,), {"a": 1.0}, {"b": 1.0}))
    assert "the tree of arguments differs from that of before at [0][0] a dict with keys b" in text
    weak = gf.jit(lambda *xs: xs)
    (text,), _ = warnings_of(weak, calls_of(jnp.float32(1), jnp.int32(1), True, 1))
    assert "argument number 0 is i32[] (a Python number) and was" in text


def test_settings_do_not_count():
    function = gf.jit(lambda x: x + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("debug_nans", "debug_infs", "enable_checks", "debug_key_reuse"):
            with getattr(gf, name)(True):
                function(jnp.ones(3))


def test_calls_that_find_their_program_ask_nothing(monkeypatch):
    function = gf.jit(lambda x: x + 1)
    x = jnp.ones(3)
    function(x)

    def fail(*args):
        raise AssertionError("a call that is known asked for retraces")

    monkeypatch.setattr(function._retraces, "note", fail)
    function(x)
    function(np.ones(3, np.float32))
    with pytest.raises(AssertionError):
        function(x.astype(int))


def test_cleared_functions_count_anew():
    function = gf.jit(lambda x: x + x)
    values = [jnp.ones(3, dtype) for dtype in DTYPES]
    calls = calls_of(*values[:3])
    assert not warnings_of(function, calls)[0]
    function.clear_cache()
    assert not warnings_of(function, calls)[0]
    assert len(warnings_of(function, calls_of(values[3]))[0]) == 1


def test_functions_of_gpuflow_and_partials():
    """Whoever calls a function of ours cannot change how it is jitted."""
    assert gf.jit(jnp.sin)._retraces is None
    function = gf.jit(functools.partial(lambda n, x: x * n, 2))
    assert len(warnings_of(function, calls_of(*[jnp.ones(3, d) for d in DTYPES]))[0]) == 1


def test_refs_have_kinds_too():
    @gf.jit
    def add(ref):
        ref[...] += 1

    refs = [gf.new_ref(jnp.zeros(3, dtype)) for dtype in ("float32", "int32", "int8", "int16")]
    (text,), _ = warnings_of(add, calls_of(*refs))
    assert "argument ref is Ref{i16[3]} and was Ref{i8[3]}" in text
