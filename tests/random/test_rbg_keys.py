"""Keys of rbg and unsafe_rbg: bit for bit those of JAX, and 128 bits that stay what they are."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from together import together

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax, random
from gpuflow.ops.random.keys import random_wrap

STORED = json.loads((Path(__file__).parents[1] / "data" / "rbg_values.json").read_text())["values"]
CASES = [(name, text) for name, own in STORED.items() for text in own]


def value(out):
    is_key = jnp.issubdtype(out.dtype, gf.dtypes.prng_key)
    return np.asarray(random.key_data(out) if is_key else out)


@together(by="name", size=17)
@pytest.mark.parametrize("run", ["eager", "jit"])
@pytest.mark.parametrize(("name", "text"), CASES)
def test_values_of_jax(name, text, run):
    def of(k, ks):
        names = {"jax": gf, "jnp": jnp, "lax": lax, "random": random, "k": k, "ks": ks}
        return eval(text, names)

    k = random.key(7, impl=name)
    out = (gf.jit(of) if run == "jit" else of)(k, random.split(k, 3))
    want = STORED[name][text]
    assert str(out.dtype) == want["dtype"] and list(out.shape) == want["shape"]
    got = value(out).ravel()
    if got.dtype.kind in "fV":
        # Bits are equal; functions of them may round otherwise in the last place.
        got = got.astype(np.float64)
        tolerance = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2}[want["dtype"]]
        np.testing.assert_allclose(got, want["values"], rtol=tolerance, atol=tolerance)
    else:
        assert got.tolist() == want["values"]


# As the floats that keys are stored as: nan with a payload, a signaling one, -0, subnormals.
ODD = np.array(
    [[0, 0x7FF80000, 0, 0x80000000], [1, 0x7FF00000, 1, 0], [5, 0xFFF80001, 9, 0x7FF80000]],
    np.uint32,
)


@pytest.mark.parametrize("run", [lambda f: f, gf.jit])
def test_any_bits_stay_and_are_equal_to_themselves(run):
    keys = random.wrap_key_data(ODD, impl="rbg")
    same = run(lambda k: (k == k, k != k, k == k[::-1]))(keys)
    assert [x.tolist() for x in same] == [[True] * 3, [False] * 3, [False, True, False]]
    moves = {
        "reverse": (lambda k: k[::-1], ODD[::-1]),
        "gather": (lambda k: k[jnp.array([2, 0])], ODD[[2, 0]]),
        "where": (lambda k: jnp.where(jnp.array([True, False, True]), k, k[::-1]), ODD),
        "concatenate": (lambda k: jnp.concatenate([k, k[:1]]), ODD[[0, 1, 2, 0]]),
        "transpose": (lambda k: jnp.broadcast_to(k, (2, 3)).T[:, 1], ODD),
        "update": (lambda k: k.at[1].set(k[2]), ODD[[0, 2, 2]]),
        "loop": (lambda k: lax.fori_loop(0, 3, lambda i, c: jnp.roll(c, 1), k), ODD),
        "scan": (lambda k: lax.scan(lambda c, x: (x, c), k[0], k)[1], ODD[[0, 0, 1]]),
    }
    for move, want in moves.values():
        np.testing.assert_array_equal(random.key_data(run(move)(keys)), want)


def test_copies_and_pickles_of_keys():
    keys = random.wrap_key_data(ODD, impl="unsafe_rbg")
    for same in (pickle.loads(pickle.dumps(keys)), copy.deepcopy(keys), keys.copy()):
        assert same.dtype is keys.dtype
        np.testing.assert_array_equal(random.key_data(same), ODD)
    assert "4294443009" in repr(keys) and keys.itemsize == 16 and keys.nbytes == 48


def test_generators_by_name_by_dtype_and_by_default():
    k = random.key(3, impl="rbg")
    assert random.key(3, impl=k.dtype).dtype == k.dtype == random.key_dtype("rbg")
    assert random.wrap_key_data(random.key_data(k), impl=k.dtype) == k
    assert random.key_impl(k) == "rbg" and random.PRNGKey(3, impl="rbg").tolist() == [0, 3, 0, 3]
    with gf.default_prng_impl("rbg"):
        raw = random.PRNGKey(3)
        assert random.key(3) == k and random.key_impl(raw) == "rbg"
        np.testing.assert_array_equal(random.split(raw), random.key_data(random.split(k)))
        assert random.normal(raw) == random.normal(k)
        with pytest.raises(TypeError, match=r"a raw one of u32\[4\]; got u32\[2\]. Fix:"):
            random.normal(np.zeros(2, np.uint32))
    with pytest.raises(TypeError, match=r"a raw one of u32\[2\]; got u32\[4\]. Fix:"):
        random.normal(raw)
    with pytest.raises(TypeError, match=r"\[random_wrap\] raw keys must be .* dimension of 4 for"):
        random_wrap(np.zeros((3, 2), np.uint32), "rbg")


def test_what_keys_of_rbg_do_not_do():
    k = random.key(3, impl="rbg")
    with pytest.raises(NotImplementedError, match=r"\[poisson\] .* key<rbg>\[\]. Fix:"):
        random.poisson(k, 2.0)
    with pytest.raises(TypeError):
        k + k
    for mixed in (lambda x: k == x, lambda x: jnp.stack([k, x]), lambda x: jnp.where(True, k, x)):
        with pytest.raises((TypeError, ValueError)):
            mixed(random.key(3))


@pytest.mark.parametrize("seed", [True, np.uint64(2**63 + 5), np.int64(-5), np.uint8(3)])
def test_seeds_of_any_integer_dtype(seed):
    want = int(seed) % 2**32
    assert random.key_data(random.key(seed)).tolist() == [0, want]


@pytest.mark.parametrize("name", ["threefry2x32", "rbg"])
def test_arrays_of_keys_made_of_a_number(name):
    dtype = random.key_dtype(name)
    words = dtype.key_shape[0]
    for keys, word in ((jnp.zeros((2,), dtype), 0), (jnp.full((2,), 3, dtype), 3)):
        assert keys.dtype == dtype and random.key_data(keys).tolist() == [[word] * words] * 2
    like = jnp.ones_like(random.split(random.key(0, impl=name)))
    assert random.key_data(like).tolist() == [[1] * words] * 2
