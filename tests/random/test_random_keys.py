"""Keys: their dtype, the generators there are, and maps over keys in both layouts."""

import numpy as np
import pytest

import gpuflow as gf

RAW = np.zeros(2, np.uint32)


def test_the_dtype_of_keys():
    assert gf.random.key_dtype() == gf.random.key(0).dtype
    assert gf.random.key_dtype("threefry2x32") == gf.random.key(0).dtype


def test_generators_that_are_not_there():
    for make in (lambda: gf.random.key_dtype("mt"), lambda: gf.random.key(0, impl="mt")):
        with pytest.raises(ValueError, match=r"threefry2x32.*Fix:"):
            make()
    for make in (lambda: gf.random.key(0, impl=3), lambda: gf.random.wrap_key_data(RAW, impl=3)):
        with pytest.raises(TypeError, match=r"a name or the dtype of its keys; got 3\. Fix:"):
            make()


@pytest.mark.parametrize("layout", [True, False])
def test_maps_over_keys_give_what_each_key_gives(layout):
    with gf.config.override("threefry_partitionable", layout):
        keys = gf.random.split(gf.random.key(7), 5)
        numbers = np.arange(5, dtype=np.uint32)
        split = gf.random.key_data(gf.vmap(lambda key: gf.random.split(key, 3))(keys))
        folded = gf.random.key_data(gf.vmap(gf.random.fold_in)(keys, numbers))
        for n in range(5):
            one = gf.random.key_data(gf.random.split(keys[n], 3))
            np.testing.assert_array_equal(split[n], one)
            one = gf.random.key_data(gf.random.fold_in(keys[n], n))
            np.testing.assert_array_equal(folded[n], one)


@pytest.mark.parametrize(("layout", "want"), [(True, 0.49067247), (False, 0.02251327)])
def test_first_number_of_each_layout(layout, want):
    """Values of JAX 0.10; printed with 8 digits, of which float32 holds 7."""
    with gf.config.override("threefry_partitionable", layout):
        np.testing.assert_allclose(gf.random.uniform(gf.random.PRNGKey(1337)), want, rtol=1e-6)


def test_bits_have_the_width_of_the_default_integer():
    """Values of JAX 0.10."""
    with gf.enable_x64(True):
        bits = gf.random.bits(gf.random.key(42), (3,))
    want = [0x6D3E048F1022172D, 0x3D7B32DADD083F4, 0x92FB20EA0F38D913]
    assert bits.dtype == np.uint64 and np.asarray(bits).tolist() == want
    assert gf.random.bits(gf.random.key(42), (3,)).dtype == np.uint32


@pytest.mark.parametrize(("mode", "want"), [("high", [6, 4, 8, 5]), (None, [9, 7, 8, 5])])
def test_choice_passes_its_mode_on(mode, want):
    """Values of JAX 0.10."""
    shares = np.arange(10, dtype=np.float32) / 45
    got = gf.random.choice(gf.random.key(42), 10, (4,), False, shares, mode=mode)
    assert np.asarray(got).tolist() == want


def test_counts_of_trials_have_the_default_integer_dtype():
    with gf.enable_x64(True):
        assert gf.random.geometric(gf.random.key(0), 0.5, (4,)).dtype == np.int64
    assert gf.random.geometric(gf.random.key(0), 0.5, (4,)).dtype == np.int32
    with pytest.raises(ValueError, match=r"\[geometric\] dtype must be an integer.*Fix:"):
        gf.random.geometric(gf.random.key(0), 0.5, (4,), np.float32)
