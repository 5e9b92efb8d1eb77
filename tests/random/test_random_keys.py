"""Keys: their dtype, the generators there are, and maps over keys in both layouts."""

import numpy as np
import pytest

import gpuflow as gf


def test_the_dtype_of_keys():
    assert gf.random.key_dtype() == gf.random.key(0).dtype
    assert gf.random.key_dtype("threefry2x32") == gf.random.key(0).dtype


@pytest.mark.parametrize("name", ["rbg", "unsafe_rbg"])
def test_generators_that_are_not_there(name):
    for make in (lambda: gf.random.key_dtype(name), lambda: gf.random.key(0, impl=name)):
        with pytest.raises(ValueError, match=r"threefry2x32.*Fix:"):
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
