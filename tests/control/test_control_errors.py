"""What control flow refuses: the class that JAX raises, and a message that says what to write."""

import re

import numpy as np
import pytest
from together import together

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax


def _refuses(error, pattern, function, *args):
    with pytest.raises(error, match=pattern) as caught:
        function(*args)
    message = str(caught.value)
    assert re.match(r"\[[a-z_]+\] .*(;|:) got .* Fix: ", message, re.DOTALL), message


X = jnp.arange(3.0)

CARRIES = {
    "shape": (
        lambda c, x: (jnp.stack([c, c]), None),
        0.0,
        r"carry is f32\[\] at first and f32\[2\]",
    ),
    "dtype": (lambda c, x: (c.astype(jnp.int32), None), X[0], r"f32\[\] at first and i32\[\]"),
    "leaf": (
        lambda c, x: ({"a": c["a"], "b": c["b"] > 0}, None),
        {"a": X, "b": X},
        r"carry\['b'\] is f32\[3\] at first and bool\[3\] after the body",
    ),
    "structure": (lambda c, x: ((c, c), None), 0.0, r"structure that it gets; got .* and a tuple"),
}


@pytest.mark.parametrize("name", CARRIES)
def test_carries_that_change(name):
    step, init, pattern = CARRIES[name]
    _refuses(TypeError, pattern, lax.scan, step, init, X)
    _refuses(TypeError, pattern, lax.fori_loop, 0, 3, lambda k, c: step(c, k)[0], init)
    _refuses(TypeError, pattern, lax.while_loop, lambda v: True, lambda v: step(v, None)[0], init)


BESIDE = {
    "shape": (
        lambda c: {**c, "b": [c["b"][0], jnp.stack([c["b"][1]] * 2)]},
        [
            r"carry\['b'\]\[1\] is f32\[\] at first and f32\[2\] after the body",
            r"\n +at first +{'a': i32\[\], 'b': \[f32\[\], f32\[\]\]}",
            r"\n +after the body +{'a': i32\[\], 'b': \[f32\[\], f32\[2\]\]}",
            r"Fix: jnp.broadcast_to\(carry\['b'\]\[1\], \(2,\)\) at first",
        ],
    ),
    "dtype": (
        lambda c: {**c, "a": c["a"] + 0.5},
        [
            r"carry\['a'\] is i32\[\] at first and f32\[\] after the body",
            r"at first +{'a': i32",
            r"after the body +{'a': f32",
            r"Fix: carry\['a'\].astype\('int32'\) after the body, or .astype\('float32'\) at first",
        ],
    ),
    "tree": (
        lambda c: {**c, "b": tuple(c["b"])},
        [
            r"differ at \['b'\] a list and a tuple",
            r"at first +{'a': i32\[\], 'b': \[f32",
            r"after the body +{'a': i32\[\], 'b': \(f32",
            "Fix: return a tree with the same",
        ],
    ),
    "leaf": (
        lambda c: {"a": c["a"]},
        [
            "keys a, b and with keys a",
            r"at first +{'a': i32\[\], 'b'",
            r"after the body +{'a': i32\[\]}",
        ],
    ),
}
LOOPS = {
    "while_loop": lambda body, init: lax.while_loop(lambda c: c["a"] < 3, body, init),
    "fori_loop": lambda body, init: lax.fori_loop(0, 3, lambda _, c: body(c), init),
    "bounded": lambda body, init: lax.while_loop(lambda c: c["a"] < 3, body, init, max_steps=3),
    "scan": lambda body, init: lax.scan(lambda c, _: (body(c), None), init, None, length=3),
    "traced bounds": lambda body, init: lax.fori_loop(0, init["a"], lambda _, c: body(c), init),
}
INSIDE = {
    "alone": lambda f: f(0),
    "jit": lambda f: gf.jit(f)(0),
    "vmap": lambda f: gf.vmap(f)(jnp.arange(3)),
    "kernel": lambda f: gf.kernel(grid=lambda: (3,))(f)(),
}


@together(size=20)
@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", BESIDE)
def test_both_carries_are_shown(name, loop, inside):
    """Beside each other, with the path of the leaf, wherever the loop stands."""
    body, patterns = BESIDE[name]

    def function(i):
        return LOOPS[loop](body, {"a": jnp.int32(1) + i, "b": [jnp.float32(1), jnp.float32(2)]})

    with pytest.raises(TypeError, match=r"^\[[a-z_]+\] the body must return a carry") as caught:
        INSIDE[inside](function)
    for pattern in patterns:
        assert re.search(pattern, str(caught.value)), pattern


def test_both_results_are_shown():
    with pytest.raises(TypeError) as caught:
        lax.cond(True, lambda x: (x, {"u": x}), lambda x: (x, {"u": x > 0}), 1.0)
    for text in (
        "result[1]['u'] is bool[] from false_fun and f32[] from true_fun",
        "\n    from false_fun  (f32[], {'u': bool[]})\n    from true_fun   (f32[], {'u': f32[]})\n",
        "Fix: result[1]['u'].astype('bool') from true_fun, or .astype('float32') from false_fun.",
    ):
        assert text in str(caught.value)
    with pytest.raises(TypeError, match=r"from branches\[0\] +f32\[\]\n +from branches\[2\] +None"):
        lax.switch(0, [lambda: 1.0, lambda: 2.0, lambda: None])


def test_weak_numbers_take_the_type_of_the_body():
    assert lax.while_loop(lambda c: c < 3, lambda c: c + np.float32(1), 0).dtype == jnp.float32
    assert lax.scan(lambda c, x: (c + x, None), 0, X)[0].dtype == jnp.float32
    assert gf.vmap(lambda x: lax.fori_loop(0, 3, lambda i, c: c * x, 1))(X).dtype == jnp.float32


def test_scan_refusals():
    _refuses(TypeError, "a pair", lax.scan, lambda c, x: c, 0.0, X)
    _refuses(TypeError, "a pair", lax.scan, lambda c, x: (c, x, x), 0.0, X)
    _refuses(
        ValueError, "leading sizes .* xs\\[1\\]: 2", lax.scan, lambda c, x: (c, None), 0, (X, X[:2])
    )
    _refuses(ValueError, "equal the length 4", lax.scan, lambda c, x: (c, None), 0, X, 4)
    _refuses(ValueError, "length must be given", lax.scan, lambda c, x: (c, None), 0)
    _refuses(ValueError, "not be negative", lax.scan, lambda c, x: (c, None), 0, None, -1)
    _refuses(ValueError, "leading axis", lax.scan, lambda c, x: (c, None), 0, (X, 1.0))
    _refuses(TypeError, "callable", lax.scan, None, 0, X)
    _refuses(TypeError, "must be arrays", lax.scan, lambda c, x: (c, None), "text", X)
    _refuses(TypeError, "must be arrays", lax.scan, lambda c, x: (c, None), 0, ["text"])
    _refuses(TypeError, "must return arrays", lax.scan, lambda c, x: (c, "text"), 0, X)
    _refuses(ValueError, "unroll", lax.scan, lambda c, x: (c, None), 0, X, None, False, -1)
    _refuses(
        TypeError,
        "length must be known",
        gf.jit(lambda n: lax.scan(lambda c, x: (c, None), 0, None, length=n)),
        3,
    )


def test_while_refusals():
    _refuses(
        TypeError, "bool scalar; got bool\\[3\\]", lax.while_loop, lambda v: v > 0, lambda v: v, X
    )
    _refuses(TypeError, "bool scalar; got f32\\[\\]", lax.while_loop, lambda v: v, lambda v: v, 0.5)
    _refuses(TypeError, "bool scalar", lax.while_loop, lambda v: (v > 0, v > 1), lambda v: v, 0.5)
    _refuses(TypeError, "callable", lax.while_loop, None, lambda v: v, 0.5)
    _refuses(
        ValueError,
        "max_steps",
        lambda: lax.while_loop(lambda v: v > 0, lambda v: v, 0.5, max_steps=-1),
    )


def test_reverse_mode_of_loops_of_unknown_length():
    def f(x):
        return lax.while_loop(lambda v: v[0] < 3, lambda v: (v[0] + 1, v[1] * x), (0, x))[1]

    for g in (gf.grad(f), gf.jit(gf.grad(f)), lambda x: gf.vjp(f, x)[1](1.0)):
        _refuses(ValueError, "max_steps", g, 2.0)

    def power(x, n):
        return gf.jit(lambda n: lax.fori_loop(0, n, lambda k, c: c * x, x))(n)

    _refuses(ValueError, "Python ints as bounds", gf.grad(power), 2.0, 3)


def test_fori_refusals():
    _refuses(TypeError, "or float scalar; got 1j", lax.fori_loop, 0, 1j, lambda k, c: c, 0)
    _refuses(TypeError, "one dtype", lax.fori_loop, 0.0, 3, lambda k, c: c, 0)
    _refuses(TypeError, "one dtype", lax.fori_loop, 0, np.uint8(3), lambda k, c: c, 0)
    _refuses(TypeError, "integer or float scalar", lax.fori_loop, 0, X, lambda k, c: c, 0)
    _refuses(TypeError, "one dtype", lax.fori_loop, np.int8(0), np.int16(3), lambda k, c: c, 0)


def test_branch_refusals():
    f, g = (lambda x: x), (lambda x: jnp.stack([x, x]))
    differ = r"f32\[2\] from false_fun and f32\[\] from true_fun"
    _refuses(TypeError, differ, lax.cond, True, f, g, 1.0)
    _refuses(TypeError, "one structure", lax.cond, True, f, lambda x: (x, x), 1.0)
    _refuses(
        TypeError,
        r"result\['a'\] is",
        lax.cond,
        True,
        lambda x: {"a": x},
        lambda x: {"a": g(x)},
        1.0,
    )
    _refuses(TypeError, "must be a scalar; got bool\\[3\\]", lax.cond, X > 0, f, f, 1.0)
    _refuses(TypeError, "predicate", lax.cond, "yes", f, f, 1.0)
    _refuses(TypeError, "a function", lax.cond, f, f, f, 1.0)
    _refuses(TypeError, "callable", lax.cond, True, f, 3.0, 1.0)
    _refuses(TypeError, "number", lax.cond, 1j, f, f, 1.0)
    _refuses(TypeError, "arrays", lax.cond, True, f, f, "text")
    _refuses(ValueError, "at least one", lax.switch, 0, [])
    _refuses(TypeError, "must be an integer; got f32", lax.switch, 0.5, [f, f], 1.0)
    _refuses(TypeError, "integer scalar", lax.switch, X, [f, f], 1.0)
    _refuses(TypeError, "callable", lax.switch, 0, [f, 3], 1.0)
    _refuses(TypeError, r"branches\[2\]", lax.switch, 0, [f, f, g], 1.0)


def test_map_and_associative_scan_refusals():
    _refuses(ValueError, "length must be given", lax.map, lambda x: x, ())
    _refuses(ValueError, "batch_size", lambda: lax.map(lambda x: x, X, batch_size=-1))
    _refuses(ValueError, "equal", lax.associative_scan, lambda a, b: a, (X, X[:2]))
    _refuses(TypeError, "callable", lax.associative_scan, 3, X)
    _refuses(ValueError, "axis", lambda: lax.associative_scan(jnp.add, X, axis=1))


def test_values_that_leave_a_loop_are_leaked():
    leaked = []
    lax.scan(lambda c, x: (leaked.append(x), (c, None))[1], 0, X)
    with pytest.raises(gf.errors.UnexpectedTracerError):
        jnp.sin(leaked[0])


@pytest.mark.parametrize(
    ("lower", "upper", "name"),
    [
        (0, 2**40, "upper"),
        (0, 2**70, "upper"),
        (2**40, 2**40 + 3, "lower"),
        (-(2**40), 3 - 2**40, "lower"),
        (np.int64(0), np.int64(2**40), "upper"),
        (2**31 - 2, 2**31 + 1, "upper"),
    ],
)
def test_bounds_that_the_index_cannot_hold(lower, upper, name):
    """The indices of such a loop were allocated; under jit it ran no iterations."""
    add = lambda k, total: total + k  # noqa: E731
    value = int(upper if name == "upper" else lower)
    pattern = rf"indices must fit int32; got {name}={value}\. Fix: enable 64 bits"
    with gf.enable_x64(False):
        loop = lambda: lax.fori_loop(lower, upper, add, 0)  # noqa: E731
        for call in (loop, gf.jit(loop), lambda: gf.vmap(lambda x: loop() + x)(X)):
            _refuses(OverflowError, pattern, call)
        _refuses(
            OverflowError, pattern, gf.grad(lambda x: lax.fori_loop(lower, upper, add, x)), 1.0
        )
        if name == "upper" and isinstance(upper, int):
            traced = gf.jit(lambda lower: lax.fori_loop(lower, upper, add, 0))
            _refuses(OverflowError, pattern, traced, np.int32(lower))


def test_the_last_index_may_be_the_largest_integer():
    with gf.enable_x64(False):
        start = 2**31 - 3
        for loop in (lax.fori_loop, gf.jit(lax.fori_loop, static_argnums=(0, 1, 2))):
            out = loop(start, 2**31, lambda k, total: total + (k - start), 0)
            assert int(out) == 3
            assert int(loop(5, -(2**40), lambda k, total: total + k, 7)) == 7
    with gf.enable_x64(True):
        assert int(lax.fori_loop(2**40, 2**40 + 3, lambda k, n: n + k, 0)) == 3 * 2**40 + 3


def test_lengths_of_scan_that_are_no_integers_are_told_what_helps():
    """All were told to use static_argnums, which helps with none of them."""

    def scanned(length):
        return lax.scan(lambda c, x: (c, None), 0.0, None, length=length)[0]

    for call in (
        lambda: gf.jit(lambda x: scanned(x.sum()))(jnp.arange(3)),
        lambda: gf.vmap(scanned)(jnp.arange(3)),
        lambda: gf.jit(scanned)(3),
    ):
        with pytest.raises(gf.errors.ConcretizationTypeError) as caught:
            call()
        text = str(caught.value)
        assert text.startswith("[scan] length must be known while the function is traced; got ")
        assert "Fix: lax.fori_loop(0, n, body, init) or lax.while_loop, which take" in text
        assert text.endswith("argument of a jitted function, name it in static_argnames.")
    with pytest.raises(TypeError, match=r"\[scan\] length must be an integer; got \[3\].*an int"):
        scanned([3])
