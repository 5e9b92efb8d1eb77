"""Writes random_distributions.json: what JAX draws from every distribution.

usage: python make_random_distributions.py   (in an environment with JAX 0.10)
"""

import json
from pathlib import Path

import jax
import numpy as np

# (name, positional arguments behind the key, keyword arguments)
DRAWS = [
    ("uniform", (), {"shape": (4,)}), ("uniform", (), {"shape": (3,), "minval": -2, "maxval": 5}),
    ("normal", (), {"shape": (2, 3)}), ("normal", (), {"shape": (2,), "dtype": "complex64"}),
    ("truncated_normal", (-1.0, 2.0), {"shape": (5,)}), ("bits", (), {"shape": (4,)}),
    ("bernoulli", (0.3,), {"shape": (9,)}), ("rademacher", (), {"shape": (6,)}),
    ("randint", (), {"shape": (6,), "minval": -3, "maxval": 1000}),
    ("permutation", (10,), {}), ("choice", (9,), {"shape": (4,), "replace": False}),
    ("categorical", ([0.1, 2.0, -1.0],), {"shape": (7,)}),
    ("exponential", (), {"shape": (4,)}), ("gumbel", (), {"shape": (4,)}),
    ("laplace", (), {"shape": (4,)}), ("logistic", (), {"shape": (4,)}),
    ("cauchy", (), {"shape": (4,)}), ("pareto", ([0.5, 3.0],), {}),
    ("lognormal", (0.7,), {"shape": (4,)}), ("rayleigh", ([0.5, 3.0],), {}),
    ("triangular", (-1.0, 0.5, 2.0), {"shape": (5,)}), ("wald", ([0.5, 3.0],), {}),
    ("weibull_min", (2.0, 1.5), {"shape": (4,)}), ("maxwell", (), {"shape": (4,)}),
    ("double_sided_maxwell", (1.0, 2.0), {"shape": (4,)}),
    ("geometric", ([0.1, 0.5, 0.9],), {}), ("geometric", (0.01,), {"shape": (5,)}),
    ("multivariate_normal", ([1.0, -1.0], [[2.0, 0.3], [0.3, 1.0]]), {"shape": (3,)}),
    ("gamma", ([0.01, 0.3, 1.0, 2.5, 40.0],), {}), ("gamma", (0.7,), {"shape": (3, 2)}),
    ("loggamma", ([0.001, 0.3, 1.0, 2.5, 40.0],), {}), ("beta", (0.5, 2.0), {"shape": (5,)}),
    ("dirichlet", ([0.5, 1.0, 3.0],), {"shape": (2,)}), ("chisquare", ([1.0, 7.0],), {}),
    ("f", (3.0, 5.0), {"shape": (4,)}), ("t", ([1.5, 30.0],), {}),
    ("generalized_normal", (1.5,), {"shape": (4,)}), ("ball", (3,), {"shape": (2,)}),
    ("poisson", ([0.0, 0.5, 3.0, 9.9, 30.0, 1000.0],), {}), ("poisson", (4.0,), {"shape": (6,)}),
    ("binomial", ([0.0, 5.0, 40.0, 1000.0], [0.3, 0.5, 0.7, 0.4]), {}),
    ("binomial", (-1.0, 0.5), {"shape": (2,)}),
    ("bernoulli", (0.3,), {"shape": (9,), "mode": "high"}),
    ("gumbel", (), {"shape": (5,), "mode": "high"}),
    ("categorical", ([0.1, 2.0, -1.0, 0.5],), {"shape": (3,), "replace": False}),
    ("multinomial", (20.0, [0.2, 0.5, 0.3]), {}), ("orthogonal", (3,), {}),
]  # fmt: skip


def draws() -> list:
    """Every distribution in both layouts, with its values."""
    rows = []
    for layout in (True, False):
        with jax.threefry_partitionable(layout):
            for number, (name, args, kwargs) in enumerate(DRAWS):
                key = jax.random.key(number)
                arrays = [np.asarray(x, np.float32) if isinstance(x, list) else x for x in args]
                out = np.asarray(getattr(jax.random, name)(key, *arrays, **kwargs))
                flat = (
                    np.concatenate([out.real.ravel(), out.imag.ravel()])
                    if (out.dtype.kind == "c")
                    else out.ravel()
                )
                values = [None if v != v else v for v in flat.tolist()]
                rows.append(
                    [layout, number, name, args, kwargs, str(out.dtype), list(out.shape), values]
                )
    return rows


if __name__ == "__main__":
    target = Path(__file__).with_name("random_distributions.json")
    target.write_text("[\n" + ",\n".join(json.dumps(row) for row in draws()) + "\n]\n")
