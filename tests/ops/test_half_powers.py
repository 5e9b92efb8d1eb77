"""Powers with exponents that are halves, which compiled code takes by roots."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler import pipeline

EXPONENTS = (0.5, -0.5, 1.5, -1.5)
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    4.0,
    1e-45,
    -1e-45,
    3.4e38,
    -3.4e38,
    2.0**86,
    1e-30,
    np.inf,
    -np.inf,
    np.nan,
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("y", EXPONENTS)
def test_values(y, dtype):
    rng = np.random.default_rng(0)
    with gf.enable_x64(), np.errstate(all="ignore"):
        numbers = np.concatenate([SPECIAL, 10 ** rng.uniform(-40, 38, 5000)])
        x = jnp.asarray(numbers).astype(dtype)
        got = np.asarray(gf.jit(lambda x: x**y)(x))
        want = np.asarray(x).astype(np.float64)
        want = np.power(want, np.full_like(want, y))  # of one exponent NumPy takes other roots
        assert got.dtype == x.dtype
        info = jnp.finfo(dtype)
        rounded = want.astype(got.dtype).astype(np.float64)
        finite = np.isfinite(rounded)
        wide = got.astype(np.float64)
        np.testing.assert_array_equal(wide[~finite], rounded[~finite])
        np.testing.assert_array_equal(np.signbit(wide[finite]), np.signbit(rounded[finite]))
        # Three roundings; of subnormal numbers as many of their last places.
        allowed = 3 * float(info.eps) * np.abs(rounded) + 3 * float(info.smallest_subnormal)
        assert (np.abs(wide - rounded)[finite] <= allowed[finite]).all()


@pytest.mark.parametrize("y", EXPONENTS)
def test_no_power_is_left(y):
    def names(function):
        plan = pipeline.compile_plan(gf.jit(function).lower(np.ones(9, "f")).jaxpr)[0]
        return [eqn.primitive.name for step in plan.steps for eqn in step.eqns]

    assert names(lambda x: x**y) == ["half_pow"]
    assert "pow" in names(lambda x: x**0.75)
    assert "pow" in names(lambda x: x ** x[0])


def test_derivatives_and_batches():
    x = np.array([0.25, 4.0, 9.0], np.float32)
    np.testing.assert_allclose(gf.jit(gf.grad(lambda x: (x**0.5).sum()))(x), 0.5 / np.sqrt(x), 1e-6)
    np.testing.assert_allclose(
        gf.jit(gf.vmap(gf.grad(gf.grad(lambda x: x**1.5))))(x), 0.75 / np.sqrt(x), 1e-6
    )
    np.testing.assert_allclose(
        gf.jit(gf.vmap(lambda x, y: x**-0.5 * y, (0, None)))(x, 2), 2 / np.sqrt(x), 1e-6
    )
