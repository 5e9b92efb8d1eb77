"""Random keys and bits, against what JAX 0.10 drew (tests/data/random_bits.json)."""

import json
from pathlib import Path

import numpy as np
import pytest
from rule_checks import run_body
from together import together

import gpuflow as gf
from gpuflow.base.config import config
from gpuflow.core.aval import KEY_DTYPES, ShapedArray
from gpuflow.ops.random import bits, keys, rng_bit_generator, threefry

DATA = json.loads((Path(__file__).parents[1] / "data" / "random_bits.json").read_text())
KEY = KEY_DTYPES["threefry2x32"]


@pytest.fixture(autouse=True)
def wide_numbers():
    with config.override("enable_x64", True):
        yield


def words(key):
    return np.asarray(keys.random_unwrap(key)).ravel().tolist()


def stored(key):
    """The uint64 numbers in which keys are stored."""
    pairs = np.asarray(keys.random_unwrap(key)).astype(np.uint64)
    return pairs[..., 0] | (pairs[..., 1] << np.uint64(32))


def row_name(row):
    return f"{row['seed']}-{row['shape']}-{'new' if row['partitionable'] else 'legacy'}"


@pytest.mark.parametrize("seed", DATA["seeds"])
def test_seed(seed):
    key = keys.random_seed(int(seed))
    assert key.shape == () and key.dtype is KEY
    assert words(key) == DATA["seeds"][seed]


@together(size=22)
@pytest.mark.parametrize("row", DATA["draws"], ids=row_name)
def test_bits_and_split(row):
    key = keys.random_seed(row["seed"])
    shape, layout = tuple(row["shape"]), row["partitionable"]
    for width in (8, 16, 32, 64):
        drawn = bits.random_bits(key, width, shape, layout)
        assert drawn.shape == shape and drawn.dtype == f"uint{width}"
        assert np.asarray(drawn).ravel().tolist() == row[str(width)]
    new = bits.random_split(key, shape, layout)
    assert new.shape == shape
    assert words(new) == row["split"]


@pytest.mark.parametrize("row", DATA["many_keys"], ids=["partitionable", "legacy"])
def test_arrays_of_keys(row):
    layout = row["partitionable"]
    many = bits.random_split(keys.random_seed(5), (2, 3), layout)
    assert words(many) == row["keys"]
    drawn = bits.random_bits(many, 16, (5,), layout)
    assert drawn.shape == (2, 3, 5)
    assert np.asarray(drawn).ravel().tolist() == row["bits16"]
    assert words(bits.random_split(many, (3,), layout)) == row["split"]


@pytest.mark.parametrize("row", DATA["fold_in"], ids=lambda row: f"{row['seed']}-{row['data']}")
def test_fold_in(row):
    assert words(keys.random_fold_in(keys.random_seed(row["seed"]), row["data"])) == row["key"]


def test_fold_in_broadcasts():
    many = bits.random_split(keys.random_seed(1), (3,))
    numbers = np.arange(3, dtype=np.uint32)
    together = words(keys.random_fold_in(many, numbers))
    raw = np.asarray(keys.random_unwrap(many))
    apart = [
        words(keys.random_fold_in(keys.random_wrap(raw[number]), number)) for number in range(3)
    ]
    assert together == [word for pair in apart for word in pair]


def test_first_uniforms_of_1337():
    """The two figures that tell the layouts apart."""

    def uniform(layout):
        words = np.asarray(bits.random_bits(keys.random_seed(1337), 32, (), layout))
        return float(((words >> 9) | 0x3F800000).view(np.float32) - np.float32(1))

    assert f"{uniform(True):.8f}" == "0.49067247"
    assert f"{uniform(False):.8f}" == "0.02251327"


def test_layout_follows_config():
    key = keys.random_seed(3)
    with config.override("threefry_partitionable", False):
        legacy = np.asarray(bits.random_bits(key, 32, (5,)))
    assert legacy.tolist() == np.asarray(bits.random_bits(key, 32, (5,), False)).tolist()
    assert legacy.tolist() != np.asarray(bits.random_bits(key, 32, (5,))).tolist()


def test_seeds_are_32_bits_without_x64():
    with config.override("enable_x64", False):
        assert words(keys.random_seed(2**40 + 5)) == [0, 5]
        assert words(keys.random_seed(-1)) == [0, 2**32 - 1]
        assert words(keys.random_seed(np.int8(-1))) == [0, 2**32 - 1]
        assert words(keys.random_seed(np.uint8(200))) == [0, 200]


def test_wrap_inverts_unwrap():
    many = bits.random_split(keys.random_seed(9), (2, 2))
    again = keys.random_wrap(np.asarray(keys.random_unwrap(many)))
    assert again.shape == (2, 2) and words(again) == words(many)


def test_tiles_do_not_matter(monkeypatch):
    many = bits.random_split(keys.random_seed(2), (3,))
    for layout in (True, False):
        whole = np.asarray(bits.random_bits(many, 32, (101,), layout))
        with monkeypatch.context() as patch:
            patch.setattr(threefry, "_TILE", 16)
            tiled = np.asarray(bits.random_bits(many, 32, (101,), layout))
        assert whole.tolist() == tiled.tolist()


def test_vmap_over_keys_and_shapes():
    many = bits.random_split(keys.random_seed(4), (3, 2))
    whole = np.asarray(bits.random_bits(many, 32, (5,)))
    mapped = gf.vmap(lambda key: bits.random_bits(key, 32, (5,)), in_axes=1, out_axes=1)(many)
    assert np.asarray(mapped).tolist() == whole.tolist()
    split = gf.vmap(lambda key: bits.random_split(key, (2,)), in_axes=1)(many)
    straight = np.asarray(keys.random_unwrap(bits.random_split(many, (2,))))
    assert np.asarray(keys.random_unwrap(split)).tolist() == straight.swapaxes(0, 1).tolist()
    numbers = np.arange(3, dtype=np.uint32)
    folded = gf.vmap(keys.random_fold_in, in_axes=(None, 0))(keys.random_seed(4), numbers)
    assert words(folded) == words(keys.random_fold_in(keys.random_seed(4), numbers))
    raw = gf.vmap(keys.random_unwrap, in_axes=1, out_axes=1)(many)
    assert np.asarray(raw).tolist() == np.asarray(keys.random_unwrap(many)).tolist()
    wrapped = gf.vmap(keys.random_wrap, in_axes=2)(np.moveaxis(np.asarray(raw), 1, 2))
    assert words(wrapped) == np.asarray(raw).swapaxes(0, 1).ravel().tolist()


def test_hash_vmap():
    numbers = np.arange(4, dtype=np.uint32)
    a, b = gf.vmap(lambda x: threefry.threefry2x32(np.uint32(1), np.uint32(2), x, x))(numbers)
    whole = threefry.threefry2x32(np.uint32(1), np.uint32(2), numbers, numbers)
    assert [np.asarray(a).tolist(), np.asarray(b).tolist()] == [
        np.asarray(w).tolist() for w in whole
    ]


@pytest.mark.parametrize("layout", [True, False])
@pytest.mark.parametrize("shape", [(), (1,), (2,), (7,), (3, 5)])
def test_kernel_bodies(shape, layout):
    many = bits.random_split(keys.random_seed(6), (2,))
    avals = [ShapedArray((2,), KEY)]
    for width in (8, 16, 32, 64):
        params = {"bit_width": width, "shape": shape, "partitionable": layout}
        got = run_body(bits.random_bits_p, stored(many), avals=avals, **params)
        assert got.tolist() == np.asarray(bits.random_bits(many, width, shape, layout)).tolist()
    got = run_body(
        bits.random_split_p, stored(many), avals=avals, shape=shape, partitionable=layout
    )
    assert got.tolist() == stored(bits.random_split(many, shape, layout)).tolist()


def test_key_kernel_bodies():
    many = bits.random_split(keys.random_seed(6), (2,))
    raw = np.asarray(keys.random_unwrap(many))
    wrapped = run_body(keys.random_wrap_p, raw, impl="threefry2x32")
    assert wrapped.tolist() == stored(many).tolist()
    unwrapped = run_body(keys.random_unwrap_p, stored(many), avals=[ShapedArray((2,), KEY)])
    assert unwrapped.tolist() == raw.tolist()
    for seeds in (np.array([-1, 7], np.int32), np.array([-1, 2**40], np.int64), np.int8([-3, 3])):
        avals = [ShapedArray(seeds.shape, seeds.dtype)]
        result = run_body(keys.random_seed_p, seeds, avals=avals, impl="threefry2x32")
        assert result.tolist() == stored(keys.random_seed(seeds)).tolist()
    numbers = np.array([3, 2**32 - 1], np.uint32)
    avals = [ShapedArray((2,), KEY), ShapedArray((2,), np.uint32)]
    folded = run_body(keys.random_fold_in_p, stored(many), numbers, avals=avals)
    assert folded.tolist() == stored(keys.random_fold_in(many, numbers)).tolist()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_philox_in_kernels(dtype):
    """The equations that the compiler writes out give NumPy's bits; counters carry."""
    generate, full = rng_bit_generator.rng_bit_generator_p, 2**32 - 1
    states = [[1, 2, 3, 4], [1, 2, full, full], [full, full, full - 1, full], [0, full, 5, 0]]
    for shape in ((), (3,), (5, 7), (2, 3, 5), (1000,)):
        params = {
            "shape": shape,
            "dtype": np.dtype(dtype),
            "is_shared": False,
            "algorithm": rng_bit_generator.RandomAlgorithm.RNG_PHILOX,
        }
        compiled = gf.jit(lambda state, params=params: generate.bind(state, **params))
        for words in (np.array(states, np.uint32), np.array(states, np.uint32).view(np.uint64)):
            for state in (words, words[1]):
                want = generate.impl(np, state, **params)
                for own, bits_wanted in zip(compiled(state), want, strict=True):
                    np.testing.assert_array_equal(np.asarray(own), bits_wanted)
        assert "library" not in compiled.lower(words).compile().as_text()


def test_errors():
    key = keys.random_seed(0)
    raw = np.zeros((3,), np.uint32)
    with pytest.raises(TypeError, match=r"\[random_bits\] .* typed random keys; got u32\[3\]"):
        bits.random_bits(raw, 32, ())
    with pytest.raises(TypeError, match=r"bit_width must be one of .*; got 12"):
        bits.random_bits(key, 12, ())
    with pytest.raises(ValueError, match=r"\[random_bits\] sizes must not be negative"):
        bits.random_bits(key, 32, (-1,))
    with pytest.raises(ValueError, match=r"legacy layout has at most .*threefry_partitionable"):
        bits.random_bits(key, 32, (2**33,), False)
    with pytest.raises(ValueError, match=r"\[random_split\] sizes must not be negative"):
        bits.random_split(key, (-2,))
    with pytest.raises(TypeError, match=r"\[random_seed\] .* integer seeds; got f64\[\]"):
        keys.random_seed(1.5)
    with pytest.raises(OverflowError, match=r"a seed must fit into 64 bits"):
        keys.random_seed(2**64)
    with pytest.raises(ValueError, match=r"implementation must be one of .*; got 'rbg'"):
        keys.random_seed(0, "rbg")
    with pytest.raises(TypeError, match=r"last dimension of 2 for .*; got u32\[3\]"):
        keys.random_wrap(raw)
    with pytest.raises(TypeError, match=r"\[random_fold_in\] data must be uint32; got i32\[\]"):
        keys.random_fold_in(key, np.int32(1))
    with pytest.raises(TypeError, match=r"\[threefry2x32\] operands must be uint32"):
        threefry.threefry2x32(1, 2, 3, 4)
