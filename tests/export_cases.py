"""Functions that the tests of export write to files; who reads them never imports this."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from export_reader import plain

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax, nn, random

KEY = random.key(0)
X = random.normal(KEY, (37, 5))
SQUARE = random.normal(KEY, (6, 6))
WEIGHT = random.normal(KEY, (5, 7))
IMAGES = random.normal(KEY, (2, 3, 8, 8))
FILTERS = random.normal(KEY, (4, 3, 3, 3))


@gf.custom_jvp
def _own_rule(x):
    return x**2


_own_rule.defjvp(lambda primals, tangents: (primals[0] ** 2, 7.0 * tangents[0]))


def _descent(x):
    """Loops in a loop, and an update in place."""

    def turn(k, carry):
        return carry.at[k].add(lax.fori_loop(0, k, lambda i, s: s + 1.5, 0.0))

    return lax.fori_loop(0, 5, turn, x)


FUNCTIONS = {
    "layers": (lambda x: nn.softmax(jnp.tanh(x @ WEIGHT) @ WEIGHT.T), (X,)),
    "keys": (lambda k: (random.normal(k, (4,)), random.split(k)), (KEY,)),
    "raw_keys": (lambda k: random.uniform(k, (4,)), (random.PRNGKey(3),)),
    "draws": (lambda k: (random.gamma(k, 2.0, (5,)), random.permutation(k, 10)), (KEY,)),
    "bf16": (lambda x: (x @ x.T, x.sum()), (X.astype(jnp.bfloat16),)),
    "complex": (lambda x: (x * 1j).conj(), (X,)),
    "ints": (lambda a: (a // 3, a % 3, a << 2, a > 2), (jnp.arange(7),)),
    "weak": (lambda x: x * 2, (3.0,)),
    "scan": (lambda x: lax.scan(lambda c, a: (c * 0.9 + a, c.sum()), jnp.zeros(5), x), (X,)),
    "while": (
        lambda x: lax.while_loop(lambda s: s[0] < 10, lambda s: (s[0] + 1, s[1] * 1.1), (0, x)),
        (X,),
    ),
    "lanes": (
        gf.vmap(lambda x: lax.while_loop(lambda s: s < 10, lambda s: abs(s) * 1.1 + 0.1, x)),
        (X[:, 0],),
    ),
    "cond": (lambda x: lax.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, x), (X,)),
    "switch": (lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, jnp.tanh], x), (jnp.int32(1), X)),
    "loops": (_descent, (X,)),
    "solve": (lambda a: jnp.linalg.solve(a, jnp.ones(6)), (SQUARE,)),
    "factors": (
        lambda a: (jnp.linalg.qr(a), jnp.linalg.eigh(a @ a.T), jnp.linalg.svd(a)),
        (SQUARE,),
    ),
    "sorted": (lambda x: (jnp.sort(x, 0), jnp.argsort(x, 1), jnp.median(x)), (X,)),
    "fft": (lambda x: jnp.fft.rfft(x, axis=0), (X,)),
    "convolution": (lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME"), (IMAGES, FILTERS)),
    "pool": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"),
        (IMAGES,),
    ),
    "pool_gradient": (
        gf.grad(
            lambda x: lax.reduce_window(
                x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"
            ).sum()
        ),
        (IMAGES,),
    ),
    "reduce": (lambda x: lax.reduce(x, jnp.float32(0), lambda a, b: a + b * 2, (0,)), (X,)),
    "index": (lambda x: (x[jnp.array([3, 1, 2])], x.at[jnp.array([0, 1])].set(0)), (X,)),
    "attention": (
        lambda q: nn.dot_product_attention(q, q, q, is_causal=True),
        (IMAGES.reshape(2, 8, 3, 8),),
    ),
    "gradient": (gf.grad(lambda x: (nn.gelu(x) ** 2).sum()), (X,)),
    "own_rule": (gf.grad(lambda x: _own_rule(x).sum()), (X,)),
    "remat": (gf.grad(lambda x: gf.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum()), (X,)),
    "tree": (lambda d, *, s: {"o": [d["a"] + s, None, (d["b"],)]}, ({"a": X, "b": (X, [X])},)),
    "constants": (lambda x: (jnp.arange(3.0), x, 1.0, WEIGHT), (X,)),
    "special": (lambda x: (gf.scipy.special.gammaln(abs(x)), nn.logsumexp(x, 1)), (X,)),
    "nothing": (lambda: jnp.arange(4) * 2, ()),
    "large": (lambda x: (x @ x.T).sum(0) + jnp.sin(x @ x.T), (random.normal(KEY, (300, 200)),)),
}
KEYWORDS = {"tree": {"s": 2.0}}

ROOT = Path(__file__).parents[1]
CASES = Path(__file__).parent
READER = CASES / "export_reader.py"


def read_elsewhere(folder, *, compiler, cache, **environment):
    """What another process says of all files of a folder; it cannot import the tests."""
    told = {"PYTHONPATH": str(ROOT), "GPUFLOW_CACHE_DIR": str(cache), **environment}
    done = subprocess.run(
        [sys.executable, READER, folder, "compiler" if compiler else "no-compiler"],
        env={**os.environ, **told},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done, dict(json.loads(line) for line in done.stdout.splitlines())


def run_elsewhere(arguments, **environment):
    """A program in another process."""
    told = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-c", *map(str, arguments)]
    return subprocess.run(command, env=told, capture_output=True, text=True, check=True)


def write(folder, name, exported, leaves, **options):
    (folder / f"{name}.gf").write_bytes(exported.serialize(**options))
    np.savez(folder / f"{name}.npz", *map(plain, leaves))
