"""Writes random_bits.json with what JAX 0.10 draws: run it where JAX is installed."""

import json
import os
from pathlib import Path

os.environ["JAX_ENABLE_X64"] = "1"

import jax
import numpy as np

SHAPES = [[], [0], [1], [2], [3], [7], [8], [2, 3], [3, 0], [5, 1, 3], [129]]
SEEDS = [0, 1, 1337, -1, 2**31, 2**40 + 5]


def bits(key, width, shape):
    return np.asarray(jax.random.bits(key, shape, f"uint{width}")).ravel().tolist()


def words(keys):
    return np.asarray(jax.random.key_data(keys)).ravel().tolist()


def draws(partitionable):
    jax.config.update("jax_threefry_partitionable", partitionable)
    rows = []
    for seed in SEEDS:
        key = jax.random.key(seed)
        for shape in SHAPES:
            row = {"seed": seed, "shape": shape, "partitionable": partitionable}
            row["split"] = words(jax.random.split(key, tuple(shape)))
            for width in (8, 16, 32, 64):
                row[str(width)] = bits(key, width, tuple(shape))
            rows.append(row)
    return rows


def many_keys(partitionable):
    jax.config.update("jax_threefry_partitionable", partitionable)
    keys = jax.random.split(jax.random.key(5), (2, 3))
    values = jax.vmap(jax.vmap(lambda key: jax.random.bits(key, (5,), "uint16")))(keys)
    new = jax.vmap(jax.vmap(lambda key: jax.random.split(key, 3)))(keys)
    return {
        "partitionable": partitionable,
        "keys": words(keys),
        "bits16": np.asarray(values).ravel().tolist(),
        "split": words(new),
    }


data = {
    "seeds": {str(seed): words(jax.random.key(seed)) for seed in SEEDS},
    "draws": draws(True) + draws(False),
    "many_keys": [many_keys(True), many_keys(False)],
    "fold_in": [
        {
            "seed": seed,
            "data": number,
            "key": words(jax.random.fold_in(jax.random.key(seed), number)),
        }
        for seed in SEEDS
        for number in (0, 1, 7, 2**31, 2**32 - 1)
    ],
}
Path(__file__).with_name("random_bits.json").write_text(json.dumps(data, separators=(",", ":")))
