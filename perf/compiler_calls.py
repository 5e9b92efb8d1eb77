"""Workloads of bench_compiler.py about the price of a call, and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
from reference import as_array, check_close
from workload import Workload

COUNT = 10_000_000
SEED = 7
CHECKED = 1000
_U32 = np.uint32


# --- calls -------------------------------------------------------------------------------------


def make_two_arrays(jax: Any, jnp: Any) -> Callable[[], Any]:
    """A jitted sum of two arrays of 100 elements."""
    x, y = (jnp.asarray(value) for value in _pair())
    call = jax.jit(lambda x, y: x + y)
    return lambda: call(x, y)


def _pair() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    first = generator.random(100, dtype=np.float32)
    return first, generator.random(100, dtype=np.float32)


def check_two_arrays(result: Any) -> None:
    x, y = (value.astype(np.float64) for value in _pair())
    check_close("sum", result, x + y, 1e-6)


def _layers() -> list[dict[str, np.ndarray]]:
    """Twenty layers of two leaves each."""
    generator = np.random.default_rng(0)
    shapes = (("w", (4, 4)), ("b", 4))
    return [
        {name: generator.random(shape, dtype=np.float32) for name, shape in shapes}
        for _ in range(20)
    ]


def make_forty_leaves_in(jax: Any, jnp: Any) -> Callable[[], Any]:
    """Forty small arrays in; of two of them something is computed."""
    layers = jax.tree_util.tree_map(jnp.asarray, _layers())
    call = jax.jit(lambda layers: layers[0]["b"] + layers[-1]["b"])
    return lambda: call(layers)


def check_forty_leaves_in(result: Any) -> None:
    layers = _layers()
    check_close("sum", result, layers[0]["b"].astype(np.float64) + layers[-1]["b"], 1e-6)


def make_forty_leaves_through(jax: Any, jnp: Any) -> Callable[[], Any]:
    """Forty small arrays in and out, each halved."""
    layers = jax.tree_util.tree_map(jnp.asarray, _layers())
    call = jax.jit(lambda layers: jax.tree_util.tree_map(lambda x: 0.5 * x, layers))
    return lambda: call(layers)


def check_forty_leaves_through(result: Any) -> None:
    for got, wanted in zip(result, _layers(), strict=True):
        check_close("weights", got["w"], 0.5 * wanted["w"].astype(np.float64), 1e-6)
        check_close("biases", got["b"], 0.5 * wanted["b"].astype(np.float64), 1e-6)


# --- random numbers ----------------------------------------------------------------------------


def make_normals(jax: Any, jnp: Any) -> Callable[[], Any]:
    """Ten million normal numbers, as users write it: not inside a jit."""
    key = jax.random.key(SEED)
    return lambda: jax.random.normal(key, (COUNT,))


def make_jitted_normals(jax: Any, jnp: Any) -> Callable[[], Any]:
    """The same inside a jit."""
    key = jax.random.key(SEED)
    call = jax.jit(lambda key: jax.random.normal(key, (COUNT,)))
    return lambda: call(key)


def make_numpy_normals(jax: Any, jnp: Any) -> Callable[[], Any]:
    generator = np.random.Generator(np.random.Philox(SEED))
    return lambda: generator.standard_normal(COUNT, dtype=np.float32)


def make_torch_normals(torch: Any, _: Any) -> Callable[[], Any]:
    return lambda: torch.randn(COUNT)


def threefry(key: tuple[int, int], first: np.ndarray, second: np.ndarray) -> Any:
    """Twenty rounds of threefry2x32 (Salmon et al. 2011, section 3.3)."""
    keys = [_U32(key[0]), _U32(key[1]), _U32(key[0]) ^ _U32(key[1]) ^ _U32(0x1BD11BDA)]
    x, y = first + keys[0], second + keys[1]
    for turn in range(5):
        for bits in ((13, 15, 26, 6), (17, 29, 16, 24))[turn % 2]:
            x = x + y
            y = ((y << _U32(bits)) | (y >> _U32(32 - bits))) ^ x
        x = x + keys[(turn + 1) % 3]
        y = y + keys[(turn + 2) % 3] + _U32(turn + 1)
    return x, y


def check_normals(result: Any) -> None:
    """All numbers by their distribution; the first ones by threefry, which JAX promises."""
    got = as_array(result).astype(np.float64)
    check_close("number of normals", got.size, COUNT, 0.0)
    normal = NormalDist()
    places = np.arange(CHECKED // 2, COUNT, CHECKED)
    shares = [normal.cdf(x) for x in np.sort(got)[places]]
    # Kolmogorov and Smirnov: exceeded once in 10^7 samples.
    check_close("distribution", shares, places / COUNT, 0.0, 2.9 / COUNT**0.5)
    if type(result).__module__.startswith(("numpy", "torch")):
        return

    index = np.arange(CHECKED, dtype=_U32)
    high, low = threefry((0, SEED), np.zeros_like(index), index)
    mantissa = ((high ^ low) >> _U32(9)).astype(np.float64) / 2**23
    bottom = float(np.nextafter(np.float32(-1), np.float32(0)))
    uniform = np.maximum(bottom, mantissa * (1 - bottom) + bottom)
    wanted = [normal.inv_cdf((u + 1) / 2) for u in uniform]
    check_close("normal numbers", got[:CHECKED], wanted, 1e-5, 2e-6)


_RANDOM_MAKERS = {"numpy": make_numpy_normals, "torch": make_torch_normals}

ROWS = [
    Workload(
        "jitted call of 2 arrays", make_two_arrays, {"jax": 1.0}, ("jax",), {}, check_two_arrays
    ),
    Workload(
        "jitted call of 40 leaves, one result",
        make_forty_leaves_in,
        {"jax": 0.5},
        ("jax",),
        {},
        check_forty_leaves_in,
    ),
    Workload(
        "jitted call of 40 leaves, 40 results",
        make_forty_leaves_through,
        {"jax": 0.5},
        ("jax",),
        {},
        check_forty_leaves_through,
    ),
    Workload(
        "random.normal of 10M",
        make_normals,
        {"jax": 0.2},
        ("jax", "numpy", "torch"),
        _RANDOM_MAKERS,
        check_normals,
    ),
    Workload(
        "random.normal of 10M, jitted",
        make_jitted_normals,
        {"jax": 0.2},
        ("jax",),
        {},
        check_normals,
    ),
]
