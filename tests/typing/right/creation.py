"""Making arrays, joining and reductions."""

import numpy as np

import gpuflow.numpy as jnp

x = jnp.array([[1, 2], [3, 4]], dtype=jnp.float32)
y = jnp.asarray(np.arange(3))
print(jnp.zeros(3), jnp.zeros((2, 3)), jnp.ones([2], dtype="int32"), jnp.full((2, 2), 7.0))
print(jnp.zeros_like(x), jnp.ones_like(x, dtype=bool), jnp.empty(x.shape), jnp.eye(2, 3, k=1))
print(jnp.linspace(0, 1, 5), jnp.arange(3, 10, 2), jnp.logspace(0, 1), jnp.tri(3), jnp.diag(y))
grid_x, grid_y = jnp.meshgrid(y, y, indexing="ij")
print(jnp.concatenate([x, x], axis=1), jnp.stack((x, x)), jnp.vstack([x, x]), jnp.hstack([x, x]))
print(*jnp.split(x, 2), jnp.tile(x, (2, 1)), jnp.pad(x, 1))
print(jnp.pad(x, ((1, 0), (0, 2)), mode="edge"))
print(jnp.sum(x, axis=0, keepdims=True), jnp.mean(x, dtype=jnp.float32))
print(jnp.max(x, where=x > 1, initial=0))
print(jnp.median(x), jnp.quantile(x, 0.5), jnp.percentile(x, jnp.array([10, 90])))
print(jnp.average(x, weights=x))
print(jnp.unique(y), jnp.sort(y), jnp.argsort(y), jnp.searchsorted(y, 1), jnp.bincount(y))
print(jnp.cumsum(y))
print(jnp.histogram(y)[0], jnp.allclose(x, x), jnp.isclose(x, x), jnp.expand_dims(x, 0))
print(grid_x + grid_y, jnp.finfo(jnp.float32).eps, jnp.result_type(x, y), jnp.squeeze(x))
print(jnp.promote_types("f4", "i4"))
print(jnp.pi * jnp.e, jnp.inf, jnp.newaxis, jnp.clip(x, 1, 2), jnp.maximum(x, 2), jnp.add.reduce(x))
