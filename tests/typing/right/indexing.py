"""Indices of all kinds, and ``x.at``."""

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp

x = jnp.arange(24.0).reshape(2, 3, 4)
i = jnp.array([0, 1])
print(x[0], x[-1, ..., 2:], x[:, None, ::-1], x[i], x[i, 1], x[x > 3.0].shape)
print(x[np.array([1, 0])], x[0, [0, 1]], x[0, 1, 2].item(), x[jnp.int32(1)], x[gf.ds(0, 1)])
y = x.at[0].set(1.0).at[:, 1].add(x[:, 0]).at[i, 2].multiply(2)
y = y.at[..., 0].max(0.0).at[0, 0, 0].apply(jnp.sin)
z = y.at[5].get(mode="fill", fill_value=0.0)
w = y.at[i].set(0.0, unique_indices=True, indices_are_sorted=True)
print(z.sum(), w.min(), jnp.take(x, i, axis=1), jnp.take_along_axis(x[0], jnp.argsort(x[0]), 1))
a, b = jnp.nonzero(x[0] > 2, size=3)
print(a + b, jnp.unravel_index(5, (2, 3)), jnp.ix_(i, i))
for row in x:
    print(row.shape)
print(len(x), 3.0 in x[0, 0])
