"""Settings as context managers: what each changes, only inside its block."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import errors, lax

MATRIX = np.ones((3, 3), "f")


def test_nan_and_infinity_are_found_inside_the_block_only():
    with gf.debug_nans(True), pytest.raises(FloatingPointError, match=r"nan.*Fix:"):
        jnp.log(-1.0)
    with gf.debug_infs(), pytest.raises(FloatingPointError, match=r"inf.*Fix:"):
        gf.jit(lambda x: 1 / x)(0.0)
    with gf.debug_nans(True), gf.debug_nans(False):
        assert np.isnan(jnp.log(-1.0))
    assert np.isnan(jnp.log(-1.0))


def test_they_decorate_functions():
    @gf.debug_nans()
    def logarithm(x):
        return jnp.log(x)

    with pytest.raises(FloatingPointError, match="log"):
        logarithm(-1.0)


def test_promotion_of_rank():
    x, row = jnp.asarray(MATRIX), jnp.ones(3)
    with gf.numpy_rank_promotion("raise"):
        assert (x + 1).shape == (x @ row)[:, None].repeat(3, 1).shape == (3, 3)
        for add in (jnp.add, gf.jit(jnp.add)):
            with pytest.raises(ValueError, match=r"one rank.*Fix:"):
                add(x, row)
    with gf.numpy_rank_promotion("warn"), pytest.warns(UserWarning, match="rank"):
        x + row
    with pytest.raises(ValueError, match="must be one of"), gf.numpy_rank_promotion("loud"):
        pass


def test_promotion_of_dtypes():
    with gf.numpy_dtype_promotion("strict"):
        assert (jnp.ones(3) + 1).dtype == np.float32
        for wrong in (lambda: jnp.ones(3) + jnp.arange(3), lambda: jnp.arange(3) + 1.5):
            with pytest.raises(errors.TypePromotionError, match="Fix:"):
                wrong()
    assert (jnp.ones(3) + jnp.arange(3)).dtype == np.float32


def test_precision_of_products():
    with gf.default_matmul_precision("highest"):
        inside = str(gf.make_jaxpr(lambda x: x @ x)(MATRIX))
    assert "HIGHEST" in inside
    assert "HIGHEST" not in str(gf.make_jaxpr(lambda x: x @ x)(MATRIX))


def test_layouts_and_generators():
    """Bits of both layouts are those of JAX 0.10."""
    with gf.threefry_partitionable(False):
        bits = gf.random.bits(gf.random.key(0), (5,))
    want = [2467461003, 428148500, 1688610540, 3840466878, 2562233961]
    assert np.asarray(bits).tolist() == want
    assert np.asarray(gf.random.bits(gf.random.key(0), (5,))).tolist() != want
    with gf.default_prng_impl("threefry2x32"):
        assert np.asarray(gf.random.PRNGKey(3)).tolist() == [0, 3]
    with pytest.raises(ValueError, match="must be one of"), gf.default_prng_impl("dice"):
        pass


def test_processes_and_devices():
    assert (gf.process_count(), gf.process_index()) == (1, 0)
    assert gf.local_device_count() == len(gf.local_devices())


def test_callbacks_have_happened_behind_the_barrier():
    seen = []
    gf.jit(lambda x: gf.debug.callback(lambda v: seen.append(float(v)), x))(2.0)
    gf.effects_barrier()
    assert seen == [2.0]


def test_device_get_leaves_python_objects_as_they_are():
    got = gf.device_get({"a": jnp.arange(3), "b": 2, "c": "text"})
    assert isinstance(got["a"], np.ndarray) and got["a"].tolist() == [0, 1, 2]
    assert type(got["b"]) is int and got["c"] == "text"


WINDOWS = [((2,), (1, 1)), ((2, 2), (1, 0)), ((0, 2), (1, 1))]


@pytest.mark.parametrize(("window", "strides"), WINDOWS)
def test_windows_that_do_not_fit_are_type_errors_as_in_jax(window, strides):
    with pytest.raises(TypeError, match=r"\[reduce_window\].*Fix:"):
        lax.reduce_window(MATRIX, 0.0, lax.add, window, strides, "VALID")
