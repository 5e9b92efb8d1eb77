"""linearize and vjp: one evaluation, residuals, a reusable linear map, float0 cotangents."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.transforms.linearize import linearize_flat, linearize_jaxpr


def test_the_function_runs_once():
    runs = []

    def f(x):
        runs.append(1)
        return jnp.sin(x) * 2

    out, f_jvp = gf.linearize(f, 0.5)
    slopes = [f_jvp(t).item() for t in (1.0, 2.0, -1.0)]
    assert runs == [1]
    np.testing.assert_allclose(out, np.sin(0.5) * 2, rtol=1e-6)
    np.testing.assert_allclose(slopes, np.cos(0.5) * 2 * np.array([1, 2, -1]), rtol=1e-6)


def test_the_linear_map_is_linear_and_transforms():
    _, f_jvp = gf.linearize(lambda x: jnp.tanh(x) * x, np.array([0.1, 0.5], "f"))
    eye = np.eye(2, dtype="f")
    rows = gf.vmap(f_jvp)(eye)
    np.testing.assert_allclose(rows, np.stack([f_jvp(row) for row in eye]), rtol=1e-6)
    np.testing.assert_allclose(gf.jit(f_jvp)(eye[0] * 2 + eye[1]), rows[0] * 2 + rows[1], rtol=1e-5)


def test_residuals_are_only_what_tangents_need():
    _, jaxpr, residuals, nonzeros = linearize_flat(
        lambda x, y: [x + y, jnp.sum(x)], [jnp.ones(3), jnp.ones(3)]
    )
    assert residuals == [] and nonzeros == [True, True]
    assert {eqn.primitive.name for eqn in jaxpr.eqns} <= {"add_any", "reduce_sum"}


def test_unused_inputs_and_constant_outputs():
    out, f_vjp = gf.vjp(lambda x, y: (x * 2, 3.0, jnp.zeros(2)), 1.0, jnp.ones(2))
    gx, gy = f_vjp((1.0, 1.0, jnp.ones(2)))
    assert gx.item() == 2.0 and out[1] == 3.0
    np.testing.assert_array_equal(gy, [0, 0])


def test_vjp_reuse_trees_and_integers():
    out, f_vjp = gf.vjp(lambda p, n: {"y": p["w"] * n, "n": n}, {"w": jnp.ones(2), "k": None}, 3)
    assert out["n"] == 3
    for scale in (1.0, 2.0):
        grads, g_n = f_vjp({"y": jnp.full(2, scale), "n": np.zeros((), gf.float0)})
        np.testing.assert_array_equal(grads["w"], [3 * scale] * 2)
        assert grads["k"] is None and g_n.dtype == gf.float0


def test_an_output_that_is_an_input():
    _, f_vjp = gf.vjp(lambda x: (x, x), 1.0)
    assert f_vjp((2.0, 3.0))[0].item() == 5.0
    value, slope = gf.value_and_grad(lambda x: x)(2.0)
    assert float(value) == 2.0 and isinstance(slope, gf.Array) and slope.item() == 1.0


def test_linearize_jaxpr_splits_and_remembers():
    closed = gf.make_jaxpr(lambda x, y: (jnp.sin(x) * y, y * 2))(1.0, 2.0)
    known, linear, nonzeros, count = linearize_jaxpr(closed, (True, False))
    assert nonzeros == (True, False)
    assert linearize_jaxpr(closed, (True, False))[0] is known
    outs = known(1.0, 2.0)
    assert len(outs) == 2 + count and len(linear.invars) == count + 1


def test_jit_is_split_into_two_programs():
    jaxpr = gf.make_jaxpr(gf.grad(gf.jit(lambda x: jnp.sin(x) * x)))(1.0)
    names = [eqn.params["name"] for eqn in jaxpr.eqns if eqn.primitive.name == "jit"]
    assert names == ["<lambda>", "transpose(linear(<lambda>))"]


def test_value_and_grad_with_everything():
    def f(x, n, *, scale):
        return jnp.sum(x**n) * scale, {"n": n, "twice": x * 2}

    both = gf.value_and_grad(f, has_aux=True)
    (value, aux), slope = gf.jit(both, static_argnums=1)(jnp.asarray([1.0, 2.0]), 2, scale=3.0)
    assert value.item() == 15.0
    np.testing.assert_array_equal(slope, [6, 12])
    np.testing.assert_array_equal(aux["twice"], [2, 4])


def test_argnums():
    def f(x, y, z):
        return x * y * y * z

    assert gf.grad(f, argnums=1)(2.0, 3.0, 4.0).item() == 48.0
    assert gf.grad(f, argnums=-1)(2.0, 3.0, 4.0).item() == 18.0
    for twice in ((0, 0), (0, -3)):
        with pytest.raises(TypeError, match=r"argnums must name each argument once; got"):
            gf.grad(f, argnums=twice)(2.0, 3.0, 4.0)
    assert [g.item() for g in gf.grad(f, argnums=(2, 0))(2.0, 3.0, 4.0)] == [18.0, 36.0]
    assert [g.item() for g in gf.grad(f, argnums=[0])(2.0, 3.0, z=4.0)] == [36.0]


def test_complex_gradients_follow_the_convention():
    """JAX's: the gradient of a real function is the conjugate of NumPy's usual one."""
    z = np.complex64(1 + 2j)
    got = gf.grad(lambda z: jnp.real(z * jnp.conj(z)))(z)
    np.testing.assert_allclose(got, 2 * np.conj(z), rtol=1e-6)
    np.testing.assert_allclose(gf.grad(lambda z: z * z, holomorphic=True)(z), 2 * z, rtol=1e-6)


@pytest.mark.parametrize("transform", [gf.jacfwd, gf.jacrev])
def test_jacobians_of_trees(transform):
    x = {"a": np.array([1.0, 2.0], "f"), "b": np.float32(3)}
    out = transform(lambda p: {"s": p["a"] * p["b"], "t": p["b"] ** 2})(x)
    np.testing.assert_allclose(out["s"]["a"], 3 * np.eye(2))
    np.testing.assert_allclose(out["s"]["b"], x["a"])
    np.testing.assert_allclose(out["t"]["a"], [0, 0])
    np.testing.assert_allclose(out["t"]["b"], 6)
    constant = transform(lambda v: jnp.zeros(2))(x["a"])
    np.testing.assert_array_equal(constant, np.zeros((2, 2)))
    assert transform(lambda v: v)(np.zeros(0, "f")).shape == (0, 0)
    matrix = transform(lambda v: v.T)(np.ones((2, 3), "f"))
    assert matrix.shape == (3, 2, 2, 3)
    value, aux = transform(lambda v: (v * 2, v), has_aux=True)(np.float32(3))
    assert (value.item(), float(aux)) == (2.0, 3.0)


def test_jacrev_of_integers():
    out = gf.jacrev(lambda n, x: x * n, argnums=(0, 1), allow_int=True)(2, np.ones(3, "f"))
    assert out[0].dtype == np.int32 and out[0].shape == (3,) and not out[0].any()
    np.testing.assert_allclose(out[1], 2 * np.eye(3))


def test_hessian():
    x = np.array([0.3, 0.7], "f")
    out = gf.hessian(lambda x: jnp.sum(x**3) * x[0])(x)
    a, b = x
    np.testing.assert_allclose(out, [[12 * a * a, 3 * b * b], [3 * b * b, 6 * a * b]], rtol=1e-5)
