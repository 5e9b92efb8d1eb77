"""Reads exported functions in a process of its own, calls them, and prints digests of results.

``python export_reader.py FOLDER compiler|no-compiler``: for each ``name.gf`` the arguments are in
``name.npz``; a line of JSON says what came of each. Without a compiler, importing one raises.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

if sys.argv[2:] == ["no-compiler"]:
    for package in ("llvmlite", "llvmlite.binding", "llvmlite.ir", "numba"):
        sys.modules[package] = None

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import export, random


def plain(value):
    is_key = hasattr(value, "dtype") and jnp.issubdtype(value.dtype, gf.dtypes.prng_key)
    return np.asarray(random.key_data(value) if is_key else value)


def digest(leaves):
    hashed = hashlib.sha256()
    for leaf in map(plain, leaves):
        hashed.update(f"{leaf.dtype} {leaf.shape} ".encode() + leaf.tobytes())
    return hashed.hexdigest()


def argument(value, aval):
    if jnp.issubdtype(aval.dtype, gf.dtypes.prng_key):
        return random.wrap_key_data(jnp.asarray(value))
    if aval.weak_type:
        return value.item()
    return jnp.asarray(value.view(aval.dtype) if value.dtype.kind == "V" else value)


def main():
    for path in sorted(Path(sys.argv[1]).glob("*.gf")):
        exported = export.deserialize(path.read_bytes())
        stored = np.load(path.with_suffix(".npz"))
        values = [stored[f"arr_{k}"] for k in range(len(stored.files))]
        leaves = [argument(v, a) for v, a in zip(values, exported.in_avals, strict=True)]
        args, kwargs = gf.tree.unflatten(exported.in_tree, leaves)
        print(json.dumps([path.stem, digest(gf.tree.leaves(exported.call(*args, **kwargs)))]))
    stats = gf.cache_stats()
    print(json.dumps(["built", stats.built]))


if __name__ == "__main__":
    main()
