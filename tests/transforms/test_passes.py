"""vjp as a pytree, fwd_and_bwd, and what jvp, vjp, linearize and grad say about wrong arguments."""

import inspect

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp

X = np.linspace(0.1, 0.9, 4, dtype="f").reshape(2, 2)


def f(x, w):
    return jnp.tanh(x @ w)


def test_f_vjp_passes_through_jit():
    y, f_vjp = gf.vjp(f, X, X)
    expected = f_vjp(y)
    got = gf.jit(lambda pullback, ct: pullback(ct))(f_vjp, y)
    again = gf.jit(lambda x, w: gf.vjp(f, x, w))(X, X)[1](y)
    for a, b, c in zip(expected, got, again, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
        np.testing.assert_allclose(a, c, rtol=1e-6)
    leaves, treedef = gf.tree.flatten(f_vjp)
    assert leaves and gf.tree.unflatten(treedef, leaves)(y)[0].shape == (2, 2)


def test_f_jvp_passes_through_jit():
    _, f_jvp = gf.linearize(f, X, X)
    got = gf.jit(lambda push, t: push(t, t))(f_jvp, X)
    np.testing.assert_allclose(got, f_jvp(X, X), rtol=1e-6)


@pytest.mark.parametrize("jitted", [True, False])
def test_fwd_and_bwd(jitted):
    fwd, bwd = gf.fwd_and_bwd(f, argnums=(0, 1), jitted=jitted)
    for scale in (1.0, 2.0):
        x = (scale * X).astype("f")
        y, residuals = fwd(x, X)
        np.testing.assert_allclose(y, np.tanh(x @ X), rtol=1e-5)
        expected = gf.vjp(f, x, X)[1](y)
        for a, b in zip(bwd(residuals, y), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
    if jitted:
        assert fwd._cache_size() == bwd._cache_size() == 1


def test_fwd_and_bwd_of_one_argument_with_aux():
    fwd, bwd = gf.fwd_and_bwd(lambda x, n: (x * n, {"n": n}), argnums=-2, has_aux=True)
    out, residuals, aux = fwd(2.0, 3)
    assert out.item() == 6.0 and aux["n"].item() == 3
    assert bwd(residuals, jnp.float32(1.0)).item() == 3.0
    with pytest.raises(TypeError, match=r"\[fwd_and_bwd\] the first argument must be a function"):
        gf.fwd_and_bwd(3, 0)
    with pytest.raises(TypeError, match=r"\[fwd_and_bwd\] argnums must name positional"):
        gf.fwd_and_bwd(f, 2)[0](X, X)


def test_argnums_take_every_kind_of_integer():
    def g(x, y):
        return x * y

    for argnums in (np.int64(1), -1, np.int32(-1)):
        assert gf.grad(g, argnums=argnums)(2.0, 3.0).item() == 2.0
        assert gf.jacfwd(g, argnums=argnums)(2.0, 3.0).item() == 2.0
        assert gf.jacrev(g, argnums=argnums)(2.0, 3.0).item() == 2.0
    several = ([1, -2], np.array([1, 0]), jnp.array([1, 0]), (k for k in (1, 0)), {1: "a", 0: "b"})
    for argnums in several:  # read once: a generator serves any number of calls
        f = gf.grad(g, argnums=argnums)
        for _ in range(2):
            assert [v.item() for v in f(2.0, 3.0)] == [2.0, 3.0]
    assert isinstance(gf.grad(g, argnums={1})(2.0, 3.0), tuple)
    assert gf.grad(g, argnums=jnp.array(1), reduce_axes=None)(2.0, 3.0).item() == 2.0
    for wrong in (2, -3, 0.0, (0, 5), "a", [0.5]):
        error = ValueError if wrong == -3 else TypeError
        with pytest.raises(error, match=r"argnums must name positional arguments"):
            gf.grad(g, argnums=wrong)(2.0, 3.0)


def test_wrong_leaves_are_named():
    _out, f_vjp = gf.vjp(lambda x: {"a": x, "b": [x, 2 * x]}, 1.0)
    with pytest.raises(ValueError, match=r"got f32\[2\] at \['b'\]\[1\]"):
        f_vjp({"a": 1.0, "b": [1.0, jnp.ones(2)]})
    with pytest.raises(TypeError, match=r"\[vjp\] cotangents must be arrays.*'text'.*\['b'\]\[1\]"):
        f_vjp({"a": 1.0, "b": [1.0, "text"]})
    with pytest.raises(TypeError, match=r"got i32\[\] at \[0\]\['w'\]"):
        gf.jvp(lambda p: p["w"], ({"w": 1.0},), ({"w": 1},))
    _, f_jvp = gf.linearize(lambda p: p["w"], {"w": 1.0})
    with pytest.raises(ValueError, match=r"got f32\[3\] at \[0\]\['w'\]"):
        f_jvp({"w": jnp.ones(3)})
    for transform in (gf.vjp, gf.linearize, lambda f, x: gf.jvp(f, (x,), (x,)), _grad):
        with pytest.raises(TypeError, match=r"arguments must be arrays.*'text'.*at \[0\]\['w'\]"):
            transform(lambda p: 1.0, {"w": "text"})
        with pytest.raises(TypeError, match="the first argument must be a function; got 3"):
            transform(3, 1.0)


def _grad(f, x):
    return gf.grad(f)(x)


def test_reduce_axes_are_refused():
    for call in (
        lambda: gf.grad(f, reduce_axes=("i",)),
        lambda: gf.value_and_grad(f, reduce_axes=("i",)),
        lambda: gf.vjp(f, X, X, reduce_axes=("i",)),
    ):
        with pytest.raises(NotImplementedError, match=r"reduce_axes must be empty; got \('i',\)"):
            call()


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (gf.grad, "fun argnums has_aux holomorphic allow_int reduce_axes"),
        (gf.value_and_grad, "fun argnums has_aux holomorphic allow_int reduce_axes"),
        (gf.jacfwd, "fun argnums has_aux holomorphic"),
        (gf.jacrev, "fun argnums has_aux holomorphic allow_int"),
        (gf.hessian, "fun argnums has_aux holomorphic"),
        (gf.linearize, "fun primals has_aux"),
        (gf.vjp, "fun primals has_aux reduce_axes"),
        (gf.jvp, "fun primals tangents has_aux"),
        (gf.linear_transpose, "fun primals reduce_axes"),
        (gf.fwd_and_bwd, "fun argnums has_aux jitted"),
        (gf.closure_convert, "fun example_args"),
        (gf.checkpoint, "fun prevent_cse policy static_argnums static_argnames concrete"),
        (gf.lax.custom_root, "f initial_guess solve tangent_solve has_aux"),
        (gf.lax.custom_linear_solve, "matvec b solve transpose_solve symmetric has_aux"),
        (gf.custom_jvp.defjvp, "self jvp symbolic_zeros"),
        (gf.custom_vjp.defvjp, "self fwd bwd symbolic_zeros optimize_remat"),
        (gf.custom_jvp, "fun nondiff_argnums nondiff_argnames"),
        (gf.custom_vjp, "fun nondiff_argnums nondiff_argnames"),
    ],
)
def test_signatures_are_those_of_jax(function, names):
    assert list(inspect.signature(function).parameters) == names.split()


def test_holomorphic_and_integers_and_aux():
    z = 1 + 2j
    assert gf.grad(lambda z: z**2, holomorphic=True)(z).item() == pytest.approx(2 * z)
    jacobian, aux = gf.jacfwd(lambda z: (z**3, "aux"), has_aux=True, holomorphic=True)(z)
    assert jacobian.item() == pytest.approx(3 * z**2, rel=1e-5) and aux == "aux"
    second, aux = gf.hessian(lambda z: (z**3, 5), has_aux=True, holomorphic=True)(z)
    assert second.item() == pytest.approx(6 * z, rel=1e-5) and aux == 5
    rows = gf.jacrev(lambda x, n: x * n, argnums=(0, 1), allow_int=True)(2.0, 3)
    assert rows[0].item() == 3.0 and rows[1].dtype == np.int32 and not rows[1].any()
