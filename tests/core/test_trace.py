"""Traces: one current trace for each thread, parents, and tracers that know their aval."""

import copy
import pickle
import sys
import threading

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.core.trace import EvalTrace, Tracer, current_trace, eval_trace, thread_state
from gpuflow.errors import ConcretizationTypeError, UnexpectedTracerError


def test_without_transformations_values_are_computed():
    assert thread_state.trace is eval_trace
    assert isinstance(jnp.sin(1.0), gf.Array)


def test_a_trace_belongs_to_one_thread():
    seen = []

    def outer(x):
        thread = threading.Thread(target=lambda: seen.append(jnp.sin(1.0)))
        thread.start()
        thread.join()
        return x

    gf.jit(outer)(1.0)
    assert isinstance(seen[0], gf.Array)


def test_current_trace_nests_and_restores():
    other = EvalTrace()
    with current_trace(other):
        assert thread_state.trace is other
        with pytest.raises(KeyError), current_trace(eval_trace):
            raise KeyError
        assert thread_state.trace is other
    assert thread_state.trace is eval_trace


def test_an_evaluator_must_be_plugged_in():
    with current_trace(EvalTrace()), pytest.raises(RuntimeError, match="no evaluator"):
        jnp.sin(1.0)


def test_tracers_look_like_arrays():
    def f(x):
        assert isinstance(x, Tracer)
        assert (x.shape, x.ndim, x.size, len(x)) == ((2, 3), 2, 6, 2)
        assert x.dtype == np.float32 and not x.weak_type
        assert x.T.shape == (3, 2) and not hasattr(x, "block_until_ready")
        assert gf.block_until_ready(x) is x
        assert [row.shape for row in x] == [(3,), (3,)]
        assert x.at[0].set(1).shape == (2, 3)
        return x

    gf.jit(f)(np.ones((2, 3), "f"))
    gf.vmap(f, in_axes=2)(np.ones((2, 3, 4), "f"))
    gf.jvp(f, (np.ones((2, 3), "f"),), (np.ones((2, 3), "f"),))
    gf.linearize(f, np.ones((2, 3), "f"))


@pytest.mark.parametrize(
    "transform", [gf.jit, gf.grad, gf.vmap, lambda f: gf.jit(gf.grad(gf.checkpoint(f)))]
)
def test_tracers_are_their_own_copies(transform):
    """Copying a tree of parameters inside of jit gave tracers of no trace."""

    def f(x):
        assert copy.copy(x) is x
        tree = copy.deepcopy({"w": x, "n": [x]})
        with pytest.raises(ConcretizationTypeError, match=r"\[pickle\] the value must be known"):
            pickle.dumps(tree)
        return (tree["w"] * tree["n"][0]).sum()

    transform(f)(np.ones(3, "f"))


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: gf.make_jaxpr(f)(1.0),
        lambda f: gf.jit(f)(1.0),
        lambda f: gf.jvp(f, (1.0,), (1.0,)),
        lambda f: gf.grad(f)(1.0),
        lambda f: gf.vmap(f)(np.ones(2, "f")),
        lambda f: gf.linearize(f, 1.0),
    ],
    ids=["make_jaxpr", "jit", "jvp", "grad", "vmap", "linearize"],
)
def test_every_trace_ends(transform):
    kept = []

    def f(x):
        kept.append(x * 2)
        return x

    transform(f)
    assert thread_state.trace is eval_trace
    with pytest.raises(UnexpectedTracerError, match=r"\[add\].*leaked tracer.*Fix: return"):
        kept[0] + 1
    assert "Tracer<float32[]" in repr(kept[0])


def test_functions_that_are_nested_too_deeply_name_the_limit():
    """Python's own error, "maximum recursion depth exceeded", did not say what to do."""

    def nested(depth):
        function = gf.jit(lambda x: 2.0 * x)
        for _ in range(depth):
            function = gf.jit(lambda x, inner=function: inner(x) + 1.0)
        return function

    def endless(x):
        return endless(x)

    limit = sys.getrecursionlimit()
    for call in (lambda: gf.grad(nested(limit // 10))(1.0), lambda: gf.jit(endless)(1.0)):
        with pytest.raises(RecursionError, match=r"^\[trace\] .*; got more than .* Fix: sys\.set"):
            call()
    try:
        sys.setrecursionlimit(5 * limit)
        assert gf.grad(nested(limit // 10))(1.0) == 2.0
    finally:
        sys.setrecursionlimit(limit)
