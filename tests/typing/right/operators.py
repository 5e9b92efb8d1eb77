"""Operators and methods of arrays."""

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import Array

x = jnp.arange(6, dtype=jnp.float32).reshape((2, 3))
n = jnp.arange(6)
a: Array = x + 1 - 2.0 * x / 3 + np.float32(1.0) - np.ones(3, np.float32)
b: Array = 1 + x
c: Array = x @ x.T
d: Array = x**2 // 2 % 3
e: Array = (n & 3) | (n << 1) ^ (n >> 1)
f: Array = (x > 1) & ~(x == 2) | (x != 3)
quotient, rest = divmod(n, 4)
x += 1
print(a.sum(), b.mean(axis=0), c.mT, d.astype(int), e, f.any(), quotient + rest, -x, +x, abs(x))
print(x.max(axis=(0, 1)), x.min(0), x.std(ddof=1), x.var(), x.prod(), x.argmax(), x.argmin(1))
print(x.reshape(3, -1), x.reshape((3, 2)), x.ravel(), x.flatten(), x.T.transpose(1, 0), x.squeeze())
print(x.cumsum(axis=1), x.sort(), x.argsort(axis=0), x.clip(0, 1), x.round(2), x.dot(x.T), x.copy())
print(x.all(), x.take(n[:1], axis=0), x.repeat(2), x.swapaxes(0, 1), x.conj().real, x.imag)
print(float(x[0, 0]), int(n[0]), bool(x.any()), complex(x[0, 0]), x.tolist(), np.asarray(x).shape)
print(x.dtype, x.shape[0] + x.ndim + x.size + x.nbytes + x.itemsize, x.devices(), x.is_ready())
x.block_until_ready()
