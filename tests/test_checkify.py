"""Checks whose results come out of compiled functions."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.experimental import checkify

ONE = np.float32(1)


def checked(x):
    checkify.check(x > 0, "x must be above {low}; got {x}", x=x, low=np.int32(0))
    checkify.check(x < 10, "too large")
    return x + 1


def inside_a_loop(x):
    def body(total, step):
        checkify.check(step < 3, "step {}", step)
        return total + step, None

    return lax.scan(body, x, jnp.arange(5.0))[0]


def text_of(f, *args):
    return checkify.checkify(f)(*args)[0].get()


def test_the_first_that_failed_counts():
    error, out = checkify.checkify(checked)(ONE)
    assert error.get() is None and float(out) == 2
    error.throw()
    error, out = checkify.checkify(checked)(-3 * ONE)
    assert error.get() == "x must be above 0; got -3.0 (`check` failed)" and float(out) == -2
    assert text_of(checked, 30 * ONE) == "too large (`check` failed)"
    with pytest.raises(checkify.JaxRuntimeError, match=r"got -3\.0"):
        error.throw()
    with pytest.raises(ValueError, match=r"got -3\.0"):
        checkify.check_error(error)


@pytest.mark.parametrize("wrap", [gf.jit, lambda f: f])
def test_under_jit_on_either_side(wrap):
    f = wrap(checkify.checkify(wrap(checked)))
    for _ in range(2):
        assert f(30 * ONE)[0].get() == "too large (`check` failed)"
    assert f(ONE)[0].get() is None


def test_under_vmap_on_either_side():
    x = np.array([1, -2, -3], np.float32)
    assert text_of(gf.vmap(checked), x) == "x must be above 0; got -2.0 (`check` failed)"
    error, _ = gf.vmap(checkify.checkify(checked))(x)
    lines = error.get().splitlines()
    assert lines[0] == "at mapped index 1: x must be above 0; got -2.0 (`check` failed)"
    assert lines[1].startswith("at mapped index 2: ") and len(lines) == 2
    assert "mapped index 1" in repr(error)


def test_under_derivatives():
    assert text_of(gf.grad(checked), -ONE) == "x must be above 0; got -1.0 (`check` failed)"
    assert text_of(gf.jit(gf.grad(checked)), ONE) is None


def while_body(x):
    def body(c):
        checkify.check(c < 3, "body {}", c)
        return c + 1

    return lax.while_loop(lambda c: c < 5, body, x)


def while_condition(x):
    def condition(c):
        checkify.check(c < 3, "condition {}", c)
        return c < 5

    return lax.while_loop(condition, lambda c: c + 1, x)


def in_branches(x):
    def high(x):
        checkify.check(x < 3, "high {x}", x=x)
        return x

    def low(x):
        checkify.check(x > -3, "low {x}", x=x)
        return -x

    return lax.cond(x > 0, high, low, x)


def in_all(x):
    return lax.scan(lambda c, y: (while_body(c) * 0 + 9 + in_branches(y), None), x, ROWS)[0]


ROWS = np.array([1, 2, 7, 8], np.float32)


@pytest.mark.parametrize("wrap", [gf.jit, lambda f: f])
@pytest.mark.parametrize(
    ("function", "x", "text"),
    [
        (inside_a_loop, 0, "step 3.0"),
        (while_body, 0, "body 3.0"),
        (while_body, 9, None),
        (while_condition, 0, "condition 3.0"),
        (while_condition, 4, "condition 4.0"),
        (in_branches, 1, None),
        (in_branches, 5, "high 5.0"),
        (in_branches, -5, "low -5.0"),
        (in_all, 9, "high 7.0"),
        (in_all, 0, "body 3.0"),
        (gf.checkpoint(in_branches), 5, "high 5.0"),
        (gf.grad(gf.checkpoint(lambda x: jnp.sin(in_branches(x)))), 5, "high 5.0"),
        (gf.grad(inside_a_loop), 0, "step 3.0"),
        (gf.jit(in_all), 9, "high 7.0"),
    ],
)
def test_inside_of_loops_and_branches(function, x, text, wrap):
    """Texts are those of JAX 0.10, which loses the check of grad of scan."""
    expected = None if text is None else f"{text} (`check` failed)"
    assert wrap(checkify.checkify(wrap(function)))(np.float32(x))[0].get() == expected


def test_results_are_those_without_checks():
    error, out = checkify.checkify(in_all)(9 * ONE)
    assert float(out) == 17 and "high 7.0" in error.get()
    assert float(checkify.checkify(while_body)(ONE)[1]) == 5
    gradient = gf.grad(lambda x: checkify.checkify(lambda x: jnp.sin(while_free(x)))(x)[1])(ONE)
    np.testing.assert_allclose(gradient, 8 * np.cos(8), rtol=1e-5)


def while_free(x):
    return lax.scan(lambda c, _: (c * 2, None), x, None, length=3)[0]


def test_the_first_in_time_counts_in_a_loop():
    def f(x):
        def body(c, k):
            checkify.check(k < 3, "A {}", k)
            checkify.check(k < 2, "B {}", k)
            return c / (2 - k), None

        return lax.scan(body, x, jnp.arange(5.0))[0]

    assert text_of(f, ONE) == "B 2.0 (`check` failed)"
    both = checkify.user_checks | checkify.div_checks
    assert checkify.checkify(f, both)(ONE)[0].get() == "B 2.0 (`check` failed)"
    assert checkify.checkify(f, checkify.div_checks)(ONE)[0].get() == "division by zero"


@pytest.mark.parametrize("function", [while_body, while_condition, in_branches, in_all])
def test_lanes_of_loops_and_branches(function):
    """vmap inside: the first in time; outside: a line for each. JAX refuses such loops."""
    x = np.array([9, 1, -5], np.float32)
    alone = [text_of(function, value) for value in x]
    error, out = checkify.checkify(gf.vmap(function))(x)
    assert error.get() in [text for text in alone if text is not None]
    np.testing.assert_array_equal(out, [checkify.checkify(function)(value)[1] for value in x])
    lines = gf.vmap(checkify.checkify(function))(x)[0].get()
    wanted = [f"at mapped index {k}: {text}" for k, text in enumerate(alone) if text]
    assert lines == ("\n".join(wanted) or None)


@gf.custom_jvp
def with_jvp(x):
    checkify.check(x > 0, "jvp {}", x)
    return jnp.log(x)


with_jvp.defjvp(lambda primals, tangents: (with_jvp(*primals), tangents[0] * 3))


@gf.custom_vjp
def with_vjp(x):
    checkify.check(x > 0, "vjp {}", x)
    return x / (x - 1)


with_vjp.defvjp(lambda x: (with_vjp(x), x), lambda x, ct: (ct * x,))


@pytest.mark.parametrize(
    ("function", "name", "slope"), [(with_jvp, "jvp", 3.0), (with_vjp, "vjp", 2.0)]
)
def test_functions_with_rules_keep_them(function, name, slope):
    assert text_of(function, -ONE) == f"{name} -1.0 (`check` failed)"
    assert text_of(gf.grad(function), -ONE) == f"{name} -1.0 (`check` failed)"
    for wrap in (gf.jit, lambda f: f):
        gradient = wrap(gf.grad(lambda x: checkify.checkify(function)(x)[1]))
        assert float(gradient(2 * ONE)) == slope


def test_programs_that_cannot_hand_checks_on():
    def f(b):
        def solve(matvec, b):
            checkify.check(b[0] > 0, "b")
            return b

        return lax.custom_linear_solve(lambda x: x, b, solve, symmetric=True)

    with pytest.raises(NotImplementedError, match=r"\[checkify\] .*solve must not have checks in"):
        checkify.checkify(f)(np.ones(2, np.float32))


def test_values_read_as_arrays_inside_of_trees():
    def function(x, key):
        checkify.check(x > 1, "{} {:.2f} {} {k}", x, x, {"a": x}, k=key)
        return x

    error, _ = gf.jit(checkify.checkify(function))(jnp.float32(0.1), gf.random.key(7))
    wanted = "0.10000000149011612 0.10 {'a': Array(0.1, dtype=float32)} [0 7] (`check` failed)"
    assert error.get() == wanted


def test_one_inside_another():
    def outer(x):
        checkify.check_error(checkify.checkify(checked)(x)[0])
        return x

    assert text_of(outer, 30 * ONE) == "too large (`check` failed)"


def test_without_checkify():
    checked(ONE)
    with pytest.raises(checkify.JaxRuntimeError, match="too large"):
        checked(30 * ONE)
    with pytest.raises(ValueError, match=r"\[check\] programs with checks must be made with check"):
        gf.jit(checked)(ONE)
    gf.jit(lambda x: checkify.debug_check(x > 0, "x"))(-ONE)


def nan_text(name):
    return f"nan generated by primitive: {name}."


@pytest.mark.parametrize(
    ("function", "x", "text"),
    [
        (jnp.log, -1, nan_text("log")),
        (jnp.log, 1, None),
        (lambda x: x * 2, np.nan, nan_text("mul")),
        (lambda x: x[None] + 1, np.nan, nan_text("add")),
        (lambda x: -jnp.maximum(x, 1), np.nan, None),
        (lambda x: jnp.where(x > 0, np.nan, x), 1, None),
        (lambda x: 0 / x, 0, nan_text("div")),
        (gf.nn.softmax, [np.inf, np.inf], nan_text("sub")),
        (lambda x: x * 0, -np.inf, nan_text("mul")),
        (gf.jit(jnp.log), -1, nan_text("log")),
        (
            lambda x: lax.scan(lambda c, _: (jnp.log(c), None), x, None, length=3)[0],
            1,
            nan_text("log"),
        ),
        (lambda x: lax.switch(2, [jnp.sin, jnp.cos, jnp.log], x), -1, nan_text("log")),
        (gf.grad(jnp.sqrt), 0, None),
        (with_jvp, -1, nan_text("log")),
    ],
)
@pytest.mark.parametrize("wrap", [gf.jit, lambda f: f])
def test_nan(function, x, text, wrap):
    """As in JAX 0.10: ops that only move numbers generate none."""
    error, _ = wrap(checkify.checkify(function, checkify.nan_checks))(np.float32(x))
    assert error.get() == text


@pytest.mark.parametrize(
    ("function", "x", "fails"),
    [
        (lambda x: 1 / x, 0, True),
        (lambda x: 1 / x, 2, False),
        (lambda x: jnp.int32(3) // x.astype(int), 0, True),
        (lambda x: x % 0, 1, False),
        (gf.grad(jnp.sqrt), 0, True),
        (lambda x: jnp.mean(x[None][:0]), 0, True),
        (lambda x: lax.fori_loop(0, 3, lambda k, c: c + 1 / (x - k), x), 2, True),
    ],
)
def test_division_by_zero(function, x, fails):
    for wrap in (gf.jit, lambda f: f):
        error, _ = wrap(checkify.checkify(function, checkify.div_checks))(np.float32(x))
        assert error.get() == ("division by zero" if fails else None)


TABLE = np.arange(12, dtype=np.float32).reshape(3, 4)


def outside(index, axis, shape=(3, 4)):
    return (
        f"out-of-bounds indexing for array of shape {shape}: index {index} is out of bounds for "
        f"axis {axis} with size {shape[axis]}. "
    )


@pytest.mark.parametrize(
    ("function", "at_7", "at_minus_7"),
    [
        (lambda x, i: x[i], (7, 0), (-4, 0)),
        (lambda x, i: x[:, i], (7, 1), (-3, 1)),
        (lambda x, i: x[i, i], (7, 0), (-4, 0)),
        (lambda x, i: x[0, i, None], (7, 1), (-3, 1)),
        (lambda x, i: x[10], (10, 0), (10, 0)),
        (lambda x, i: x[-3, 3], None, None),
        (lambda x, i: x.at[i].set(1.0), (7, 0), (-4, 0)),
        (lambda x, i: x.at[10].add(1.0), (10, 0), (10, 0)),
        (lambda x, i: x.at[0, i].add(1.0), (7, 1), (-3, 1)),
        (lambda x, i: x.at[i].set(1.0, mode="drop"), (7, 0), (-4, 0)),
        (lambda x, i: x.at[i].get(mode="fill"), (7, 0), (-4, 0)),
        (lambda x, i: jnp.take(x, i, axis=1, mode="clip"), (7, 1), (-7, 1)),
        (lambda x, i: jnp.take_along_axis(x, i + jnp.zeros((3, 1), int), 1), (7, 1), (-3, 1)),
        (lambda x, i: lax.dynamic_slice(x, (i, i), (2, 2)), (7, 0), (-4, 0)),
        (lambda x, i: lax.dynamic_update_slice(x, x[:2], (0, i)), (7, 1), (-3, 1)),
        (lambda x, i: gf.grad(lambda x: x[i].sum())(x), (7, 0), (-4, 0)),
        (
            lambda x, i: lax.scan(lambda c, k: (c + x[k, 0], None), 0.0, i + jnp.arange(2)),
            (7, 0),
            (-4, 0),
        ),
        (lambda x, i: jnp.sort(x) + jnp.median(x) + jnp.diag(x)[0], None, None),
        (lambda x, i: gf.nn.one_hot(i, 3) + jnp.cumsum(x)[0], None, None),
    ],
)
def test_indices_outside(function, at_7, at_minus_7):
    """Texts are those of JAX 0.10."""
    checked = checkify.checkify(function, checkify.index_checks)
    for wrap in (gf.jit, lambda f: f):
        for number, wanted in ((0, None), (7, at_7), (-7, at_minus_7)):
            known_anyway = (10, 0) in (at_7, at_minus_7)
            wanted = (10, 0) if known_anyway else wanted
            text = wrap(checked)(TABLE, np.int32(number))[0].get()
            assert text == (None if wanted is None else outside(*wanted))


def test_the_first_of_several_indices():
    checked = checkify.checkify(lambda x, i: x[i], checkify.index_checks)
    assert checked(TABLE, np.array([0, 5, 9]))[0].get() == outside(5, 0)
    error, _ = gf.vmap(checked, in_axes=(None, 0))(TABLE, np.array([0, 9, -9]))
    lines = [f"at mapped index {k}: {outside(i, 0)}" for k, i in ((1, 9), (2, -6))]
    assert error.get() == "\n".join(lines)
    mapped = gf.vmap(lambda x, i: x[i], in_axes=(None, 0))
    error, _ = checkify.checkify(mapped, checkify.index_checks)(TABLE, np.array([0, 9, -9]))
    assert error.get() == outside(9, 0)


def test_indices_are_not_looked_at_elsewhere():
    """A function that was traced inside of checkify is another program outside of it."""
    f = gf.jit(lambda x, i: x[i])
    assert checkify.checkify(f, checkify.index_checks)(TABLE, np.int32(9))[0].get() == outside(9, 0)
    np.testing.assert_array_equal(f(TABLE, np.int32(9)), TABLE[2])
    assert "check" not in str(gf.make_jaxpr(f)(TABLE, np.int32(9)))


def test_all_checks_together():
    def f(x, i):
        checkify.check(i < 5, "i {}", i)
        return jnp.log(x[i] / x[0])

    checked = checkify.checkify(f, checkify.all_checks)
    x = np.ones((3, 2), np.float32)
    assert checked(x, np.int32(1))[0].get() is None
    assert checked(x, np.int32(9))[0].get() == "i 9 (`check` failed)"
    assert checked(x, np.int32(4))[0].get() == outside(4, 0, (3, 2))
    assert checked(x * 0, np.int32(1))[0].get() == "division by zero"
    x[1] = -1
    assert checked(x, np.int32(1))[0].get() == nan_text("log")


def test_other_arguments_than_arrays_stay_as_they_are():
    """Under jit they are static ones: a count of a Python loop, a function, a string."""

    def power(function, x, count, name="x"):
        for _ in range(count):
            x = function(x)
        checkify.check(x < 10, name + " is {x}", x=x)
        return x

    program = checkify.checkify(power)
    for call in (program, gf.jit(program, static_argnums=(0, 2), static_argnames="name")):
        for x, count in ((2.0, 2), (np.float32(2), 2), (2.0, 3)):
            error, out = call(lambda x: x * 2, x, count, name="y")
            assert out.item() == 2 * 2**count
            assert error.get() == (f"y is {out} (`check` failed)" if count == 3 else None)
    gradient = gf.jit(lambda x: checkify.checkify(gf.grad(power, 1))(jnp.square, x, 2)[1])
    np.testing.assert_allclose(gradient(1.5), 4 * 1.5**3, rtol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (lambda: checkify.check(1, "a"), TypeError, r"\[check\] pred must be one bool; got 1"),
        (lambda: checkify.check(jnp.ones(2) > 0, "a"), TypeError, "must be one bool"),
        (lambda: checkify.check(True, "{}", "a"), TypeError, "values must be trees of arrays"),
        (lambda: checkify.check_error(3), TypeError, "must be an Error; got 3"),
        (lambda: checkify.checkify(3), TypeError, r"\[checkify\] the first argument must be a fun"),
        (lambda: checkify.checkify(abs, 3), TypeError, "errors must be a set of categories; got 3"),
        (lambda: checkify.checkify(abs, {ValueError}), TypeError, "errors must be a set of categ"),
        (
            lambda: gf.jit(lambda x: checkify.check_error(checkify.checkify(checked)(x)[0]))(ONE),
            ValueError,
            "must be made with checkify",
        ),
    ],
)
def test_errors(wrong, error, text):
    with pytest.raises(error, match=text):
        wrong()
