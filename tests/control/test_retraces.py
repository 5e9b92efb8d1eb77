"""Repeated traces of one line warn once they cost enough: where the time went, what differs."""

from __future__ import annotations

import functools
import re
import time
import warnings

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base.config import config


@pytest.fixture(autouse=True)
def at_once():
    """Any cost is enough."""
    with config.override("retrace_warning_seconds", 0.0):
        yield


def warnings_of(function, calls):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for args, kwargs in calls:
            function(*args, **kwargs)
    return [str(w.message) for w in seen if "should be traced" in str(w.message)], seen


def calls_of(*values):
    return [((value,), {}) for value in values]


DTYPES = ("float32", "int32", "int8", "uint8", "float16", "bool")


def test_the_argument_that_changed_is_named_once():
    @gf.jit
    def scaled(params, x):
        return params["w"] * x

    calls = [(({"w": jnp.ones(3, dtype)}, 2.0), {}) for dtype in DTYPES]
    (text,), seen = warnings_of(scaled, calls)
    line = scaled.__wrapped__.__code__.co_firstlineno
    start = "[jit] scaled should be traced rarely; got 4 traces of the function at "
    assert text.startswith(f"{start}{__file__}:{line}, of which all but the first took ")
    assert re.search(r"took [0-9.]+ s \([0-9.]+ s tracing, [0-9.]+ s compiling\): argument", text)
    assert "argument params['w'] is u8[3] and was i8[3]. Fix: pass one dtype and rank; " in text
    (warning,) = seen
    assert warning.filename == __file__ and warning.category is UserWarning


def test_three_traces_are_silent():
    function = gf.jit(lambda x: x + x)
    values = [jnp.ones(3, dtype) for dtype in DTYPES[:3]]
    assert not warnings_of(function, calls_of(*values, *values))[0]


def test_cheap_traces_are_silent_and_costs_add_up():
    """Users of libraries saw the warning at each start, of traces that took no time."""

    @gf.jit
    def slow(x):
        time.sleep(0.02)
        return x + 1

    sizes = [jnp.ones(k) for k in range(1, 12)]
    with config.override("retrace_warning_seconds", 300.0):
        assert not warnings_of(slow, calls_of(*sizes))[0]
    with config.override("retrace_warning_seconds", 0.2):
        (text,), _ = warnings_of(slow, calls_of(*[jnp.ones((k, 1)) for k in range(1, 4)]))
    tracing, compiling = map(float, re.findall(r"([0-9.]+) s (?:tracing|compiling)", text))
    assert 0.2 <= tracing < 60 and 0 <= compiling < 60
    assert config.retrace_warning_seconds == 0.0 and "got 12 traces" in text


def test_sizes_count_by_their_cost():
    function = gf.jit(lambda x: x + 1)
    (text,), _ = warnings_of(function, calls_of(*[jnp.ones((k, 3)) for k in range(12)]))
    assert "argument x is f32[3,3] and was f32[2,3]. Fix: pad to few shapes" in text


def test_static_arguments():
    # Each a function at a line of its own: jits of one function share their traces.
    first = gf.jit(lambda x, n: x**n, static_argnums=1)
    second = gf.jit(lambda x, n: x**n, static_argnames="n")
    for function in (first, second):
        (text,), _ = warnings_of(function, [((2.0, k), {}) for k in range(9)])
        assert "static argument n is 3 and was 2. Fix: pass it as an ordinary argument" in text
    named = gf.jit(lambda x, n, *, m=0: x**n + m, static_argnames=("n", "m"))
    (text,), _ = warnings_of(named, [((2.0, 2), {"m": k}) for k in range(9)])
    assert "static argument m is 3 and was 2." in text
    (text,), _ = warnings_of(
        gf.jit(lambda x, a=0, b=0: x, static_argnames=("a", "b")),
        [((2.0,), kwargs) for kwargs in ({}, {"a": 1}, {"a": 2}, {"b": 1})],
    )
    assert "static argument b was left out before" in text


class Macroscopic:
    @functools.partial(gf.jit, static_argnums=0)
    def velocity(self, x):
        return x + 1

    def __repr__(self):
        return "Macroscopic()"


def test_objects_without_equality():
    """The text named two objects that print alike."""
    objects = [Macroscopic() for _ in range(5)]
    (text,), _ = warnings_of(Macroscopic.velocity, [((one, 1.0), {}) for one in objects])
    assert (
        "static argument self is another object of Macroscopic, which has no __eq__, so that each "
        "object counts as new. Fix: give Macroscopic __eq__ and __hash__, or reuse one object; "
    ) in text


def test_functions_as_static_arguments():
    apply = gf.jit(lambda f, x: f(x), static_argnums=0)
    (text,), _ = warnings_of(apply, [((lambda x: x + 1, 1.0), {}) for _ in range(5)])
    assert f"static argument f is a new function each time, defined at {__file__}:" in text
    assert "Fix: define <lambda> once, outside of the loop or function that passes it" in text
    partials = gf.jit(lambda f, x: f(x), static_argnums=0)
    calls = [((functools.partial(lambda k, x: x + k, k), 1.0), {}) for k in range(5)]
    assert "is a new function each time" in warnings_of(partials, calls)[0][0]


def test_new_functions_of_one_line():
    def call(k, x):
        return gf.jit(lambda x: x + k)(x)

    (text,), _ = warnings_of(call, [((k, 1.0), {}) for k in range(9)])
    assert "got 4 traces of the function at" in text and text.startswith("[jit] <lambda> should")
    assert "each is of a new function, defined at this line. Fix: call gf.jit once, outside" in text


def test_trees_numbers_and_kinds_of_containers():
    function = gf.jit(lambda x: x)
    (text,), _ = warnings_of(function, calls_of([1.0], (1.0,), {"a": 1.0}, {"b": 1.0}))
    assert "the tree of arguments differs from the one before at [0][0] a dict with keys b" in text
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


def test_traces_after_clear_cache_are_asked_for():
    function = gf.jit(lambda x: x + x)
    for _ in range(9):
        assert not warnings_of(function, calls_of(jnp.ones(3)))[0]
        function.clear_cache()


def test_functions_of_gpuflow_and_partials():
    """Users cannot change how functions of gpuflow are jitted."""
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


@pytest.mark.parametrize("value", [-1.0, True, "3", float("nan")])
def test_the_setting_is_a_number(value):
    with pytest.raises(ValueError, match="retrace_warning_seconds must be a number of at least 0"):
        gf.config.update("retrace_warning_seconds", value)


def test_none_turns_the_warning_off():
    function = gf.jit(lambda x: x - 1)
    with config.override("retrace_warning_seconds", None):
        assert not warnings_of(function, calls_of(*[jnp.ones(3, d) for d in DTYPES]))[0]
