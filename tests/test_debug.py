"""debug.print and debug.callback, in every transformation."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp


def test_print_eager_jit_and_vmap(capsys):
    gf.debug.print("x = {} and {y:.2f}", jnp.arange(3), y=1.0)
    gf.jit(lambda v: gf.debug.print("v = {}", v))(np.float32(2))
    gf.vmap(lambda v: gf.debug.print("{}", v, ordered=True))(jnp.arange(3))
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["x = [0 1 2] and 1.00", "v = 2.0", "0", "1", "2"]


def test_ordered_prints_keep_program_order_under_jit(capsys):
    @gf.jit
    def f(x):
        for k in range(4):
            x = jnp.sin(x)
            gf.debug.print("{k}", k=k, ordered=True)
        return x

    f(1.0)
    assert capsys.readouterr().out.split() == ["0", "1", "2", "3"]


def test_callback_gets_trees_and_derivatives_ignore_it():
    seen = []

    def f(params):
        gf.debug.callback(lambda tree, scale: seen.append((tree, scale)), params, scale=2.0)
        return (params["a"] ** 2).sum()

    gradient = gf.jit(gf.grad(f))({"a": jnp.arange(3.0), "b": None})
    np.testing.assert_array_equal(gradient["a"], [0, 2, 4])
    ((tree, scale),) = seen
    assert isinstance(tree["a"], np.ndarray) and tree["b"] is None and scale == 2


@pytest.mark.parametrize(
    ("fmt", "args", "kwargs", "error"),
    [
        ("{}", (), {}, IndexError),
        ("{} {}", (1,), {}, IndexError),
        ("{x}", (), {"y": 1}, KeyError),
        ("none", (1,), {}, ValueError),
    ],
)
def test_fields_must_match_values(fmt, args, kwargs, error):
    with pytest.raises(error, match=r"\[debug.print\] the fields .* Fix: write one"):
        gf.debug.print(fmt, *args, **kwargs)


def test_callback_must_be_a_function():
    with pytest.raises(TypeError, match=r"\[debug.callback\] the first argument must be a func"):
        gf.debug.callback(3, 4)


@pytest.mark.parametrize("run", [lambda f: f, gf.jit])
def test_breakpoint_opens_the_debugger_in_the_callers_frame(run, monkeypatch):
    seen = []

    def function(x):
        gf.debug.breakpoint()
        return x + 1

    monkeypatch.setattr("pdb.Pdb.interaction", lambda self, frame, trace: seen.append(frame.f_code))
    run(function)(1.0)
    assert seen == [function.__code__]
