"""jvp: tangents beside values, symbolic zeros, integers, weak types, auxiliary data."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.core.rules import Zero
from gpuflow.transforms.jvp import jvp_flat, jvp_jaxpr


def test_values_and_tangents():
    out, tangent = gf.jvp(lambda x, y: jnp.sin(x) * y, (0.5, 2.0), (1.0, 3.0))
    np.testing.assert_allclose(out, np.sin(0.5) * 2, rtol=1e-6)
    np.testing.assert_allclose(tangent, np.cos(0.5) * 2 + np.sin(0.5) * 3, rtol=1e-6)


def test_lists_and_trees():
    p, t = {"a": 2.0, "b": 3.0}, {"a": 1.0, "b": 0.0}
    out, tangent = gf.jvp(lambda p: [p["a"] * p["b"]], [p], [t])
    assert out[0].item() == 6.0 and tangent[0].item() == 3.0


def test_a_constant_output_has_a_zero_tangent():
    out, tangent = gf.jvp(lambda x: (jnp.ones(3), 2), (1.0,), (1.0,))
    np.testing.assert_array_equal(tangent[0], np.zeros(3))
    assert tangent[0].dtype == np.float32
    assert tangent[1].dtype == gf.float0 and out[1] == 2


def test_integer_operands_take_float0():
    x = jnp.arange(3)
    out, tangent = gf.jvp(lambda x, y: x * y, (x, 2.0), (np.zeros(3, gf.float0), 1.0))
    np.testing.assert_array_equal(out, [0, 2, 4])
    np.testing.assert_array_equal(tangent, [0, 1, 2])


def test_unknown_zeros_are_never_made():
    outs, tangents = jvp_flat(
        lambda x, y: [x * 2, jnp.sin(y)],
        [jnp.ones(2), jnp.ones(2)],
        [jnp.ones(2), Zero(jnp.ones(2).aval)],
    )
    assert type(tangents[1]) is Zero and isinstance(outs[1], gf.Array)
    np.testing.assert_array_equal(tangents[0], [2, 2])


def test_jvp_of_a_jaxpr_is_made_once():
    closed = gf.make_jaxpr(lambda x, y: (x * y, y + 1))(1.0, 2.0)
    derivative, nonzeros = jvp_jaxpr(closed, (True, False), False)
    assert nonzeros == (True, False)
    assert jvp_jaxpr(closed, (True, False), False)[0] is derivative
    assert [float(v) for v in derivative(3.0, 4.0, 1.0)] == [12.0, 5.0, 4.0]
    instantiated, nonzeros = jvp_jaxpr(closed, (True, False), True)
    assert nonzeros == (True, True) and float(instantiated(3.0, 4.0, 1.0)[3]) == 0.0


def test_auxiliary_values_are_plain():
    """They once came back as tracers of the finished trace."""
    out, tangent, aux = gf.jvp(
        lambda x: (x * x, {"x": x + 1, "s": "text", "n": None}), (2.0,), (1.0,), has_aux=True
    )
    assert isinstance(aux["x"], gf.Array) and aux["x"].item() == 3.0
    assert (aux["s"], aux["n"]) == ("text", None)
    assert (out.item(), tangent.item()) == (4.0, 4.0)


def test_auxiliary_values_inside_other_transformations():
    def f(x):
        return gf.grad(lambda y: (y * y * x, y * x), has_aux=True)(x)

    slope, aux = gf.jit(f)(3.0)
    assert (slope.item(), aux.item()) == (18.0, 9.0)
    slopes, auxes = gf.vmap(f)(jnp.asarray([1.0, 2.0]))
    np.testing.assert_array_equal(slopes, [2, 8])
    np.testing.assert_array_equal(auxes, [1, 4])
    # aux depends on x through the outer derivative as well.
    assert gf.grad(lambda x: f(x)[1])(3.0).item() == 6.0


def test_python_floats_take_the_dtype_of_their_primal():
    x = jnp.ones((), "float16")
    tangent = gf.jvp(lambda x: x * 2, (x,), (1.0,))[1]
    assert tangent.dtype == np.float16
    # Also where the scalar is traced.
    out = gf.jit(lambda t: gf.jvp(lambda x: x * 2, (x,), (t * 2,))[1])(1.0)
    assert out.dtype == np.float16 and out.item() == 4.0


def test_wide_arrays_outside_x64():
    with gf.enable_x64():
        x = jnp.arange(3.0)
    slope = gf.grad(lambda v: jnp.sum(v * v))(x)
    assert slope.dtype == np.float64
    np.testing.assert_array_equal(slope, [0, 2, 4])


def test_complex_values():
    z, t = np.complex64(1 + 2j), np.complex64(1j)
    out, tangent = gf.jvp(lambda z: z * z, (z,), (t,))
    np.testing.assert_allclose(out, z * z)
    np.testing.assert_allclose(tangent, 2 * z * t)


def test_conditions_on_known_values():
    assert gf.jvp(lambda x: x * 2 if x > 0 else x, (3.0,), (1.0,))[1].item() == 2.0
    assert gf.grad(lambda x: x * int(x) if x else x)(3.0).item() == 3.0
    assert gf.grad(lambda x: x * x.item())(3.0).item() == 3.0


@pytest.mark.parametrize(
    ("f", "want"),
    [
        (lambda x: x * gf.grad(lambda y: x + y)(1.0), 1.0),
        (lambda x: x * gf.grad(lambda y: x * y)(2.0), 6.0),
        (lambda x: gf.jvp(lambda y: x * y * y, (2.0,), (x,))[1], 24.0),
        (lambda x: gf.grad(lambda y: gf.grad(lambda z: x * y * z)(1.0))(2.0), 1.0),
        (lambda x: gf.linearize(lambda y: y * x, x)[1](x), 6.0),
    ],
)
def test_no_perturbation_confusion(f, want):
    assert gf.grad(f)(3.0).item() == want
    assert gf.jvp(f, (3.0,), (1.0,))[1].item() == want
    assert gf.grad(gf.jit(f))(3.0).item() == want
    assert gf.vmap(gf.grad(f))(jnp.asarray([3.0]))[0].item() == want


def test_weakness_of_derivatives():
    """As in JAX: the gradient with respect to a Python number yields in promotion."""
    assert gf.grad(lambda x: x * x)(2.0).weak_type
    assert gf.grad(lambda x: x)(2.0).weak_type
    assert gf.grad(lambda x: 3.0)(2.0).weak_type
    assert not gf.grad(lambda x: x * x)(np.float32(2)).weak_type
    assert gf.jit(gf.grad(jnp.sin))(2.0).weak_type
