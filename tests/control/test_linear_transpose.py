"""linear_transpose, closure_convert and custom_gradient."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax


def test_the_transpose_of_a_linear_function():
    f = gf.linear_transpose(lambda x, y: 0.5 * x - 0.5 * y, 1.0, gf.ShapeDtypeStruct((), "float32"))
    x, y = f(1.0)
    assert (x.item(), y.item()) == (0.5, -0.5)


def test_trees_matrices_loops_and_jit():
    a = np.arange(6, dtype="f").reshape(2, 3)

    def f(p):
        out = a @ p["x"]
        total, _ = lax.scan(lambda c, w: (c + w * p["y"], None), 0.0 * p["y"], jnp.arange(3.0))
        return {"out": gf.jit(lambda v: v * 2)(out), "total": total}

    struct = {"x": gf.ShapeDtypeStruct((3,), "float32"), "y": gf.ShapeDtypeStruct((), "float32")}
    transposed = gf.linear_transpose(f, struct)
    ct = {"out": np.array([1.0, -2.0], "f"), "total": np.float32(5.0)}
    for call in (transposed, gf.jit(transposed)):
        (cotangent,) = call(ct)
        np.testing.assert_allclose(cotangent["x"], 2 * a.T @ ct["out"])
        assert cotangent["y"].item() == 15.0
    again = gf.linear_transpose(lambda ct: transposed(ct)[0], ct)
    x = {"x": np.ones(3, "f"), "y": np.float32(1.0)}
    np.testing.assert_allclose(again(x)[0]["out"], f(x)["out"])


def test_constants_do_not_count_and_unused_inputs_are_zero():
    assert float(gf.linear_transpose(lambda x: x + 1.0, 2.0)(3.0)[0]) == 3.0
    x, y = gf.linear_transpose(lambda x, y: x * 2.0, np.ones(2, "f"), np.ones(3, "f"))(
        np.ones(2, "f")
    )
    np.testing.assert_array_equal(x, [2, 2])
    np.testing.assert_array_equal(y, [0, 0, 0])


def test_integers():
    x, y = gf.linear_transpose(lambda x, y: x - x - x, np.int32(1), np.int32(1))(np.int32(5))
    assert x.item() == -5 and y.item() == 0 and y.dtype == np.int32


def test_errors_of_linear_transpose():
    f = gf.linear_transpose(lambda x: x * 2.0, np.ones(2, "f"))
    with pytest.raises(TypeError, match=r"\[linear_transpose\] cotangents must have the types"):
        f(np.ones(3, "f"))
    with pytest.raises(TypeError, match=r"\[linear_transpose\] the cotangent must form the tree"):
        f((np.ones(2, "f"),))
    with pytest.raises(NotImplementedError, match=r"\[sin\].*transpose rule"):
        gf.linear_transpose(jnp.sin, 1.0)(1.0)
    with pytest.raises(TypeError, match="all floats or complex, or all integers"):
        gf.linear_transpose(lambda x: x * 1.0, np.int32(1))
    with pytest.raises(NotImplementedError, match="reduce_axes must be empty"):
        gf.linear_transpose(lambda x: x, 1.0, reduce_axes=("i",))


def test_a_product_of_two_unknowns_is_not_linear():
    ones = np.ones((2, 2), "f")
    for f in (
        lambda x: x * x,
        lambda x: x @ x,
        lambda x: 2.0 / x,
        lambda x: jnp.where(x > 0, x, 0),
    ):
        with pytest.raises(TypeError, match=r"linear in its unknown operands.*unknown .*\[2,2\]"):
            gf.linear_transpose(f, ones)(ones)


# --- closure_convert -----------------------------------------------------------------------


def test_closure_convert_moves_what_is_differentiated():
    seen = []

    def apply(f, x):
        converted, values = gf.closure_convert(f, x)
        seen.append(len(values))
        return converted(x, *values)

    def g(a, n):
        return apply(lambda x: {"y": x * a * n * 2.0}, 3.0)["y"]

    assert g(2.0, 5) == 60.0
    assert gf.grad(g)(2.0, 5).item() == 30.0
    assert gf.jit(g)(2.0, 5).item() == 60.0
    assert seen == [0, 1, 1]


def test_closure_convert_with_custom_vjp():
    def apply(f, x):
        converted, values = gf.closure_convert(f, x)
        return call(converted, x, *values)

    @gf.custom_vjp
    def call(converted, x, *values):
        return converted(x, *values)

    call = gf.custom_vjp(call.fun, nondiff_argnums=(0,))
    call.defvjp(
        lambda converted, x, *values: (converted(x, *values), (x, *values)),
        lambda converted, saved, g: tuple(10 * ct for ct in gf.vjp(converted, *saved)[1](g)),
    )
    grads = gf.grad(lambda a: apply(lambda x: x * a, 3.0))(2.0)
    assert grads.item() == 30.0


def test_closure_convert_checks_trees():
    converted, _ = gf.closure_convert(lambda x: x, 1.0)
    assert converted(2.0) == 2.0
    with pytest.raises(TypeError, match=r"\[closure_convert\] arguments must form the tree"):
        converted([1.0])


# --- custom_gradient -----------------------------------------------------------------------


@gf.custom_gradient
def scaled(x, y):
    return x * y, lambda g: (g * 100, g * y * 1000)


@gf.custom_gradient
def halved_square(x):
    return x**2, lambda g: g * x


def test_custom_gradient():
    assert scaled(2.0, 3.0) == 6.0 and scaled.__name__ == "scaled"
    grads = gf.grad(scaled, argnums=(0, 1))(1.0, 2.0)
    assert [g.item() for g in grads] == [100.0, 2000.0]
    assert gf.grad(halved_square)(3.0).item() == 3.0
    assert gf.grad(gf.grad(halved_square))(3.0).item() == 1.0
    assert gf.jit(gf.grad(halved_square))(3.0).item() == 3.0
    x = np.array([1.0, 2.0], "f")
    np.testing.assert_array_equal(gf.vmap(gf.grad(halved_square))(x), x)
    np.testing.assert_array_equal(gf.grad(lambda x: jnp.sum(gf.vmap(halved_square)(x)))(x), x)


def test_custom_gradient_of_trees():
    @gf.custom_gradient
    def f(p):
        return {"out": p["x"] * 2}, lambda g: ({"x": g["out"] * p["x"]},)

    assert gf.grad(lambda p: f(p)["out"])({"x": 3.0})["x"].item() == 3.0


def test_custom_gradient_needs_a_pair():
    with pytest.raises(TypeError, match=r"\[custom_gradient\] f must return a pair \(out, rule\)"):

        @gf.custom_gradient
        def f(x):
            return x

        f(1.0)


def test_cotangents_are_arrays():
    """Also where the number that was given is passed on as it is."""
    transposed = gf.linear_transpose(lambda d: d["a"] + d["b"], {"a": 1.0, "b": 2.0})
    for value in gf.tree.leaves(transposed(3.0)):
        assert isinstance(value, gf.Array) and value.item() == 3.0
