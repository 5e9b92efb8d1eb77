"""Column and full reductions store what they sum, and one loop does all that fits."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.kir.nodes import Reduce, Store
from gpuflow.kir.walk import statements

RANDOM = np.random.default_rng(0)


def kernels_of(f, *args):
    steps = compile_plan(gf.jit(f).lower(*args).jaxpr)[0].steps
    assert all(step.kind == "kernel" for step in steps)
    return [step.kernel for step in steps]


def gradient_and_bias(x, y):
    """What the backward pass of a dense layer with an activation stores."""
    g = x * jnp.where(y > 0, 1.0, 0.5)
    return g, g.sum(0)


def batch_statistics(x, y):
    g = x * y
    return g, g.sum((0, 2, 3)), (g * x).sum((0, 2, 3)), x.max((0, 2, 3))


def norm_and_scaled(x, y):
    scaled = x * 2 + y
    return scaled, (scaled * scaled).sum(), scaled.max(), scaled > 0


CASES = {
    "rows of columns": (gradient_and_bias, (300, 70), "column"),
    "few columns": (gradient_and_bias, (5000, 3), "column"),
    "one row": (gradient_and_bias, (2, 1025), "column"),
    "channels": (batch_statistics, (5, 7, 6, 9), "column"),
    "everything": (norm_and_scaled, (37, 41), "full"),
    "everything, long": (norm_and_scaled, (300, 401), "full"),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
@pytest.mark.parametrize("name", CASES)
def test_one_kernel_stores_and_reduces(name, dtype):
    f, shape, kind = CASES[name]
    with gf.enable_x64(dtype == "float64"):
        x, y = ((RANDOM.standard_normal(shape) * 5).astype("float32") for _ in range(2))
        x, y = jnp.asarray(x).astype(dtype), jnp.asarray(y).astype(dtype)
        (kernel,) = kernels_of(f, x, y)
        assert kernel.kind == kind
        reduces = [s for s in statements(kernel.body) if isinstance(s, Reduce)]
        assert len(reduces) == 1
        assert any(isinstance(s, Store) for s in reduces[0].body.body)
        got, want = gf.jit(f)(x, y), f(x, y)
        for a, b in zip(got, want, strict=True):
            assert a.dtype == b.dtype
            a, b = np.asarray(a).astype("float64"), np.asarray(b).astype("float64")
            # Sums of up to 120,000 numbers; bfloat16 rounds once at the end, eager at every op.
            scale = {"bfloat16": 0.03, "float32": 2e-5}.get(dtype, 1e-12)
            np.testing.assert_allclose(a, b, rtol=scale, atol=scale * np.abs(b).max(initial=1))


def test_nan_and_infinity_pass():
    x = np.ones((40, 6), np.float32)
    x[3, 1], x[5, 2], x[7, 3] = np.nan, np.inf, -np.inf
    stored, total, top = gf.jit(lambda x: (x * 1, x.sum(0), x.max(0)))(x)
    np.testing.assert_array_equal(stored, x)
    np.testing.assert_array_equal(total, x.sum(0))
    np.testing.assert_array_equal(top, x.max(0))


def test_a_result_that_is_needed_again_takes_a_second_kernel():
    assert len(kernels_of(lambda x: (x * 2 - (x * 2).sum(0), x), np.ones((4, 5)))) >= 2


def test_rows_stay_together():
    """A softmax whose gradient is also summed over the rows: the rows are one kernel."""

    def f(x, labels):
        shifted = x - x.max(1, keepdims=True)
        g = jnp.exp(shifted) / jnp.exp(shifted).sum(1, keepdims=True) - labels
        return g, g.sum(0)

    kinds = [kernel.kind for kernel in kernels_of(f, *[np.ones((9, 12), np.float32)] * 2)]
    assert kinds == ["row", "column"]


@pytest.mark.parametrize("operation", ["sum", "max", "min", "prod", "all", "any"])
def test_reductions_of_one_element_are_no_work(operation):
    x = RANDOM.standard_normal(5).astype(np.float32)
    x = x > 0 if operation in ("all", "any") else x
    f = lambda x: getattr(jnp, operation)(x[None, :, None], (0, 2))  # noqa: E731
    steps = compile_plan(gf.jit(f).lower(x).jaxpr)[0].steps
    assert not steps
    np.testing.assert_array_equal(gf.jit(f)(x), x)
