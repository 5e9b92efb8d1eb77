"""debug_nans and debug_infs name the op, its operands and the line, wherever it happens."""

import re

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax, random

X = np.ones((2, 3), "f")
HERE = r".*test_replay\.py:(\d+)"


def log_of_less(x, less=2.0):
    return jnp.log(x - less)  # the line


LINE = log_of_less.__code__.co_firstlineno + 1


def refused(function, *args, setting="debug_nans"):
    """The text of the one error that a call raises."""
    function = gf.jit(function) if not hasattr(function, "lower") else function
    with gf.config.override(setting, True), pytest.raises(FloatingPointError) as caught:
        function(*args)
    assert caught.value.__context__ is None and caught.value.__cause__ is None
    return str(caught.value)


def turns(x):
    def body(carry, t):
        carry = lax.cond(t > 2, lambda c: c + log_of_less(c), lambda c: c, carry)
        return carry, t

    return lax.scan(body, x, jnp.arange(5))


def until(x):
    return lax.while_loop(
        lambda c: c[0] < 9, lambda c: (c[0] + 1, log_of_less(c[1], -1 + c[0])), (0, x)
    )


CASES = {
    "jit": (lambda x: jnp.exp(log_of_less(x) + 1), r"of log\(-1\), at"),
    "inner jit": (lambda x: 2 * gf.jit(log_of_less)(x), r"of log\(-1\), at"),
    "vmap": (gf.vmap(log_of_less), r"of log\(-1\), at"),
    "checkpoint": (gf.checkpoint(log_of_less), r"of log\(-1\), at"),
    "branch": (
        lambda x: lax.cond(x[0, 0] > 0, log_of_less, jnp.sin, x),
        r"of log\(-1\), in branch 1 of cond, at",
    ),
    "branches of lanes": (
        gf.vmap(lambda x: lax.cond(x[0] > 0, log_of_less, jnp.sin, x)),
        r"of log\(-1\), at",
    ),
    "scan": (turns, r"of log\(-1\), in turn 3 of scan, in branch 1 of cond, at"),
    "reverse": (
        lambda x: lax.scan(lambda c, t: (c, log_of_less(c, t)), x, jnp.arange(4.0), reverse=True),
        r"of log\(-2\), in turn 0 of scan, at",
    ),
    "while": (until, r"of log\(-1\.\d*\), in turn 2 of while, at"),
    "in place of where": (
        lambda x: jnp.where(x > 2, jnp.sqrt(-x), log_of_less(x)),
        r"of log\(-1\), at",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_op_the_operands_and_the_line(name):
    function, part = CASES[name]
    text = refused(function, X)
    assert text.startswith("[log] results must be finite with debug_nans set; got nan in f32[")
    found = re.search(part + HERE, text)
    assert found, text
    assert int(found[1]) == LINE and "(log_of_less)" in text


def test_loops_and_branches_outside_of_jit():
    with gf.debug_nans(True):
        for run in (lambda: turns(X), lambda: lax.fori_loop(0, 3, lambda _, c: log_of_less(c), X)):
            with pytest.raises(FloatingPointError, match=r"\[log\].*in turn \d of scan.*log_of_l"):
                run()
        with pytest.raises(FloatingPointError, match=rf"\[log\].*log\(-1\).*replay.py:{LINE} "):
            log_of_less(jnp.asarray(X))


def test_operands_of_other_shapes_are_told_by_their_range():
    text = refused(
        lambda x, y: (x @ y).sum(),
        np.full((2, 3), 1e38, "f"),
        np.full(3, -1e2, "f"),
        setting="debug_infs",
    )
    assert "got inf in f32[2] at [0], of dot_general(f32[2,3] from 1e+38 to 1e+38, " in text
    assert "f32[3] from -100 to -100)" in text


def test_infinities_and_kinds_of_numbers():
    assert "[div]" in refused(lambda x: 1 / (x - 1), X, setting="debug_infs")
    assert "nan in bf16[2,3]" in refused(log_of_less, X.astype("bfloat16"))
    assert "of div(0+0j, 0+0j)" in refused(lambda x: (x - 1) / (x - 1), X.astype("complex64"))
    keys = random.split(random.key(0), 3)
    text = refused(lambda keys: lax.map(lambda key: jnp.log(random.uniform(key) - 2), keys), keys)
    assert "in turn 0 of scan" in text


def test_what_does_not_matter_is_not_blamed():
    """A nan that `where` leaves out comes before the one that is in the result."""
    text = refused(lambda x: jnp.where(x > 0, 1, jnp.sqrt(-x)) + jnp.log(x - 2), X)
    assert text.startswith("[log]")


def test_lines_of_derivatives_are_those_of_what_is_derived():
    def turn(carry, t):
        return carry * t, jnp.sqrt(carry - 1)  # the line

    def loss(x):
        return sum(jnp.sum(out) for out in lax.scan(turn, x, jnp.ones(2)))

    line = turn.__code__.co_firstlineno + 1
    for derivative in (gf.grad(loss), gf.grad(gf.jit(loss)), gf.vmap(gf.grad(loss))):
        text = refused(derivative, X, setting="debug_infs")
        assert f"test_replay.py:{line} (turn)" in text and "[div]" in text, text
    with gf.debug_infs(True), pytest.raises(FloatingPointError, match=rf"replay.py:{line} \(turn"):
        gf.grad(loss)(X)


def test_gradients_and_arguments():
    wrong = gf.grad(lambda x: jnp.where(x > 1, jnp.sqrt(x - 1), 0.0).sum())
    assert "[mul]" in refused(wrong, X) and "of mul(0, inf)" in refused(wrong, X)
    assert "of add(nan, 1)" in refused(lambda x: x + 1, np.float32("nan"))


def test_donated_arguments_are_kept_while_results_are_checked():
    donating = gf.jit(log_of_less, donate_argnums=0)
    x = jnp.asarray(X)
    assert "of log(-1)" in refused(donating, x)
    np.testing.assert_array_equal(x, X)
    donating(x)
    assert x.is_deleted()


def test_what_prints_prints_once(capsys):
    def noisy(x):
        gf.debug.print("sum {}", x.sum())
        return log_of_less(x)

    refused(noisy, X)
    assert capsys.readouterr().out == "sum 6.0\n"


def test_results_that_are_finite_pass():
    with gf.debug_nans(True), gf.debug_infs(True):
        np.testing.assert_allclose(gf.jit(log_of_less)(X + 2), 0)
        assert np.isfinite(np.asarray(gf.jit(turns)(X + 5)[0])).all()
